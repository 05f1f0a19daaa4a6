"""Builds the compiled modules: `python -m compiled.build` (`make compile`).

Works on a copy of the sources in a hidden folder and shows the result by one rename, so a build that is
killed leaves nothing that would be used, and whoever edits meanwhile spoils nothing. One build runs at a
time; a second waits and finds the work done. Half-done and outdated builds go. Times are seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.metadata
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from compiled import compiler, load, sources
from compiled.compiler import CannotBuild
from compiled.modules import ACYCLIC, MODULES, REUSED

HALF_DONE = ".building-"


@contextlib.contextmanager
def _alone(builds: Path) -> Generator[None]:
    """Hold the lock of the folder of builds, and see that nothing half-done lies there then."""
    try:
        builds.mkdir(parents=True, exist_ok=True)
        lock = (builds / ".lock").open("w")
    except OSError as exc:
        raise CannotBuild(f"builds go into {builds}, which cannot be written ({exc.strerror})") from exc
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel gives it back, however we end
        for folder in builds.glob(f"{HALF_DONE}*"):
            shutil.rmtree(folder, ignore_errors=True)  # somebody else's stays; nobody would use it
        yield


def _extensions(modules: Sequence[str]) -> list[Any]:
    """Turn the modules of the present folder into C. Returns setuptools' extensions.

    Raises CannotBuild with the faults mypy and mypyc find.
    """
    try:
        import setuptools  # pyright: ignore[reportUnusedImport]  # noqa: F401 - mypyc takes its classes if it is there
        from mypyc.build import mypycify
    except ImportError as exc:
        raise CannotBuild(
            f"{exc.name} is not installed: run `make setup`, or install mypy and setuptools"
        ) from exc
    files = [module.replace(".", "/") + ".py" for module in modules]
    options = ["--config-file=", f"--cache-dir={os.devnull}"]
    options += ["--ignore-missing-imports", "--follow-imports=silent"]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return list(
                mypycify(
                    [*options, *files],
                    multi_file=True,
                    group_name=load.GROUP.removesuffix("__mypyc"),
                    target_dir="c",
                )
            )
    except SystemExit as exc:
        raise CannotBuild(f"mypyc does not take the modules as they are:\n{said.getvalue()}") from exc


def _write(folder: Path, found: dict[str, bytes], modules: Sequence[str]) -> None:
    """Lay a copy of the sources into `folder`, as the compiler wants them."""
    compiled = {module.replace(".", "/") + ".py" for module in modules}
    for path, content in found.items():
        copy = folder / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(_for_compiler(path, content.decode()).encode() if path in compiled else content)


def _for_compiler(path: str, text: str) -> str:
    """Return a source as the compiler wants it, each line where it was."""
    classes = REUSED.get(path.removesuffix(".py").replace("/", "."), ())
    return sources.with_reuse(sources.without_slots(text), classes, ACYCLIC)


def _compile(
    cc: Sequence[str], copy: Path, out: Path, found: dict[str, bytes], modules: Sequence[str]
) -> None:
    """Write the libraries of `modules` into `out`, by way of a copy of the sources `found` in `copy`."""
    _write(copy, found, modules)
    with contextlib.chdir(copy):
        extensions = _extensions(modules)
        wanted = {load.library(out, extension.name): extension.sources for extension in extensions}
        folders = sorted({folder for extension in extensions for folder in extension.include_dirs})
        compiler.libraries(cc, wanted, folders)


def build(root: Path, modules: Sequence[str]) -> tuple[Path, bool]:
    """Build `modules` of the packages under `root`. Returns the folder, and whether it had to be built.

    Raises CannotBuild if there is no compiler, no Python.h, or a fault in the modules; what is there stays.
    """
    cc = compiler.command()
    compiler.require_headers()
    builds = root / load.BUILDS
    with _alone(builds):
        found = _sources(root, modules)
        mypy = f"mypy {_version('mypy')}"
        finished = builds / load.digest(mypy, found.items())
        is_new = not load.is_usable(finished, root)
        if is_new:
            try:
                with tempfile.TemporaryDirectory(prefix=HALF_DONE, dir=builds) as work:
                    out = Path(work, "out")
                    _compile(cc, Path(work, "src"), out, found, modules)
                    (out / load.SOURCES).write_text("\n".join([mypy, *found]), encoding="utf-8")
                    (out / load.SIZES).write_text(load.sizes(out, modules), encoding="utf-8")
                    shutil.rmtree(finished, ignore_errors=True)  # it lost a file
                    out.rename(finished)
            except OSError as exc:  # a full disk
                raise CannotBuild(f"the build cannot be written: {exc}") from exc
        for folder in builds.iterdir():
            if not folder.name.startswith(".") and folder != finished:
                shutil.rmtree(folder, ignore_errors=True)  # one that stays is outdated, and never used
    return finished, is_new


def _sources(root: Path, modules: Sequence[str]) -> dict[str, bytes]:
    try:
        return sources.read(root, modules)
    except (FileNotFoundError, SyntaxError) as exc:
        raise CannotBuild(f"the sources cannot be read: {exc}") from exc


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError as exc:
        raise CannotBuild(f"{distribution} is not installed: run `make setup`") from exc


def main() -> None:
    """Build, and say in a line what came of it. Ends with code 1 and the next step if it cannot be done."""
    reader = argparse.ArgumentParser(
        prog="python -m compiled.build", description="Compile the hot modules."
    )
    reader.add_argument(
        "--if-possible", action="store_true", help="where it cannot be done, say so and end with code 0"
    )
    asked = reader.parse_args()
    before = os.times()
    try:
        folder, is_new = build(load.ROOT, MODULES)
    except CannotBuild as exc:
        print(f"Not compiled, plain Python it is: {exc}", file=sys.stderr)
        sys.exit(0 if asked.if_possible else 1)
    after = os.times()
    spent = sum(after[:4]) - sum(before[:4])
    print(
        f"{len(MODULES)} modules compiled in {after.elapsed - before.elapsed:.0f} s"
        f" ({spent:.0f} s of processor time): {folder}"
        if is_new
        else f"{len(MODULES)} modules are compiled already: {folder}"
    )


if __name__ == "__main__":
    main()
