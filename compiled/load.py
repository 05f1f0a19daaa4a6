"""Chooses, once a process, between the compiled modules and the same modules in plain Python.

A build is a folder `build/compiled/<digest>` beside the packages. Its name is the digest of every source
the compiler saw, so a build is used only while exactly those sources lie there: whoever edits a file sees
the edit, and never runs yesterday's machine code with today's Python around it. It becomes visible by one
rename, complete, or not at all. Imports nothing of ours: `fleet` and `admission` call it as they start.

`RHODECK_COMPILED=0` in the environment asks for plain Python.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping, MutableSequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from compiled.modules import MODULES

SWITCH = "RHODECK_COMPILED"
ROOT = Path(__file__).resolve().parents[1]
BUILDS = Path("build", "compiled")
SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]  # names Python's version, system and processor
GROUP = "rhodeck__mypyc"  # the one library all compiled modules live in
SOURCES = "sources.txt"  # in a build: first what compiled it, then every source it saw, a line each
SIZES = "sizes.txt"  # in a build: the bytes and the name of each library, a line each

COMPILED = "compiled"
NOT_BUILT = "plain: not built"
STALE = "plain: sources changed since the build"
SWITCHED_OFF = "plain: switched off"


class Choice(NamedTuple):
    """Which way this process runs. `folder` is the build, None for plain Python; `state` says why."""

    folder: Path | None
    state: str


def digest(compiler: str, sources: Iterable[tuple[str, bytes]]) -> str:
    """Return the name of the build `compiler` (name and version) makes of `sources` (path, content)."""
    total = hashlib.sha256(f"{compiler}\n{SUFFIX}\n".encode())
    for path, content in sources:
        total.update(f"{path}\n{len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()[:24]


def library(folder: Path, module: str) -> Path:
    """Return the file a build keeps `module` (dotted name) in."""
    return folder.joinpath(*module.split(".")).with_name(module.rpartition(".")[2] + SUFFIX)


def sizes(folder: Path, names: Iterable[str]) -> str:
    """Return what `SIZES` says of the libraries `names` in `folder`. Raises OSError if one is not there."""
    return "\n".join(f"{library(folder, name).stat().st_size} {name}" for name in (GROUP, *names))


def is_usable(folder: Path, root: Path) -> bool:
    """Return whether `folder` is a whole build of the sources that lie under `root` now.

    Whole: each library has the length it was written with. A copy that broke off, or a machine that lost
    its power, leaves shorter ones.
    """
    try:
        compiler, *paths = (folder / SOURCES).read_text(encoding="utf-8").splitlines()
        present = digest(compiler, [(path, (root / path).read_bytes()) for path in paths])
        is_whole = (folder / SIZES).read_text(encoding="utf-8") == sizes(folder, MODULES)
    except (OSError, ValueError):  # a source or library is gone, or a list is not one
        return False
    return is_whole and present == folder.name


def choose(root: Path, environ: Mapping[str, str]) -> Choice:
    """Return which way to run with the packages under `root`. Reads, and changes nothing."""
    asked = environ.get(SWITCH, "")
    if asked == "0":
        return Choice(None, SWITCHED_OFF)
    if asked not in ("", "1"):
        return Choice(None, f"plain: {SWITCH} is {asked!r}, neither 0 nor 1")
    try:
        names = sorted(os.listdir(root / BUILDS))
    except OSError:
        names = []
    folders = [root / BUILDS / name for name in names if not name.startswith(".")]
    for folder in folders:
        if is_usable(folder, root):
            return Choice(folder, COMPILED)
    return Choice(None, STALE if folders else NOT_BUILT)


def _load_group(folder: Path) -> None:
    """Load the library the compiled modules live in. Raises ImportError if this system cannot."""
    loader = importlib.machinery.ExtensionFileLoader(GROUP, str(library(folder, GROUP)))
    spec = importlib.util.spec_from_loader(GROUP, loader)
    if spec is None:
        raise ImportError(f"{GROUP} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[GROUP] = module


def _elsewhere() -> str | None:
    """Return a package with compiled modules that this process takes from another place than beside us."""
    for package in dict.fromkeys(module.partition(".")[0] for module in MODULES):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            here = (ROOT / package).resolve()
            if Path(spec.origin).resolve().parent != here:
                return package
    return None


@cache
def _chosen() -> Choice:
    choice = choose(ROOT, os.environ)
    if choice.folder is None:
        return choice
    # All packages or none: compiled modules call each other without asking which are there.
    other = _elsewhere()
    if other is not None:
        return Choice(None, f"plain: {other} comes from another folder than {ROOT}")
    try:
        _load_group(choice.folder)
    except ImportError as exc:
        return Choice(None, f"plain: the build does not load here ({exc})")
    return choice


def prefer(package: str, path: MutableSequence[str]) -> None:
    """Let `package`, whose `__path__` is `path`, find its compiled modules before its sources.

    To be called from the package's `__init__`, before any module of it is imported.
    """
    folder = _chosen().folder
    if folder is not None and (folder / package).is_dir():
        path.insert(0, str(folder / package))


def is_compiled() -> bool:
    """Return whether this process runs the compiled modules."""
    return _chosen().folder is not None


def state() -> str:
    """Return which way this process runs and why: "compiled", or "plain: " and the reason."""
    return _chosen().state
