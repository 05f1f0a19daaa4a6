"""The C compiler a build uses: the system's, or the one of the `ziglang` wheel where there is none.

Says what is missing and what to do before anything is built. A build needs Python's own headers too;
the wheel does not bring those. Compiles as many files at a time as there are processors to use.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Integers wrap around as in Python's own build; nothing but the entry is seen from outside, so that calls
# inside go straight; warnings about generated code help nobody.
FLAGS = (
    "-O2",
    "-g0",
    "-DNDEBUG",
    "-fPIC",
    "-fwrapv",
    "-fvisibility=hidden",
    "-w",
)  # -O3 makes nothing here faster
AS_LIBRARY = ("-bundle", "-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-shared",)


class CannotBuild(Exception):
    """Why nothing was built, and the next step. Everything goes on in plain Python."""


def command(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the words that call a C compiler: `CC`, else cc, gcc or clang on the PATH, else ziglang's.

    Raises CannotBuild if there is none.
    """
    asked = shlex.split(environ.get("CC", ""))
    if asked:
        return asked
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name, path=environ.get("PATH", ""))
        if found is not None:
            return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]  # not for this processor alone
    raise CannotBuild(
        "there is no C compiler (cc, gcc or clang) on the PATH: install one, or run `make compile`,"
        " which fetches the ziglang wheel (100 MB) into .venv"
    )


def require_headers(include: str | None = None) -> None:
    """Raise CannotBuild if Python.h is not in `include`, by default this Python's own folder of headers."""
    folder = Path(include or sysconfig.get_path("include"))
    if not (folder / "Python.h").is_file():
        raise CannotBuild(
            f"Python.h is not in {folder}: install the headers of this Python"
            f" (Debian and Ubuntu: python3.{sys.version_info.minor}-dev)"
        )


def _run(words: Sequence[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    except OSError as exc:
        raise CannotBuild(f"{words[0]} cannot be run ({exc.strerror})") from exc
    if done.returncode != 0:
        raise CannotBuild(f"{shlex.join(words)} ended with code {done.returncode}:\n{done.stderr[-4000:]}")


def libraries(cc: Sequence[str], wanted: Mapping[Path, Sequence[str]], include: Sequence[str]) -> None:
    """Make each library of `wanted` (file to write: its C files), with `include` as folders of headers.

    Raises CannotBuild with what the compiler said.
    """
    folders = [f"-I{folder}" for folder in (sysconfig.get_path("include"), *include)]
    sources = [source for files in wanted.values() for source in files]
    sources.sort(key=lambda source: -Path(source).stat().st_size)  # no processor waits for a last long one
    compiling = [[*cc, *FLAGS, *folders, "-c", source, "-o", f"{source}.o"] for source in sources]
    linking = [
        [*cc, *AS_LIBRARY, *(f"{source}.o" for source in files), "-o", str(library)]
        for library, files in wanted.items()
    ]
    for library in wanted:
        library.parent.mkdir(parents=True, exist_ok=True)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(usable) as pool:
        for step in (compiling, linking):
            list(pool.map(_run, step))
