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


def is_usable(folder: Path, root: Path) -> bool:
    """Return whether `folder` is a whole build of the sources that lie under `root` now."""
    try:
        compiler, *paths = (folder / SOURCES).read_text(encoding="utf-8").splitlines()
        present = digest(compiler, [(path, (root / path).read_bytes()) for path in paths])
    except (OSError, ValueError):  # a source is gone, or the list is not one
        return False
    return present == folder.name and all(library(folder, name).is_file() for name in (GROUP, *MODULES))


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


@cache
def _chosen() -> Choice:
    choice = choose(ROOT, os.environ)
    if choice.folder is None:
        return choice
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
