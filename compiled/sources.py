"""What a build depends on: the compiled modules and every module of ours that the compiler reads for them.

The compiler takes types and constants from what a module imports, for types only or not, and so on from
there: if any of it changes, the machine code may be wrong. Read in one go, so that a file that is edited
meanwhile cannot make a build of half the old and half the new.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

# How builds are made is part of what they are.
BUILDER = ("compiled/build.py", "compiled/compiler.py", "compiled/sources.py")

_FUTURE = "from __future__ import annotations\n"


def _file(root: Path, module: str) -> str | None:
    """Return the path from `root` of a module of ours, None where it is somebody else's."""
    stem = module.replace(".", "/")
    for path in (f"{stem}.py", f"{stem}/__init__.py"):
        if (root / path).is_file():
            return path
    return None


def _imported(text: bytes) -> Iterator[str]:
    """Yield the dotted names a source may import, anywhere in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)  # it may be a module


def _with_parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[: n + 1]) for n in range(len(parts)))


def read(root: Path, modules: Sequence[str]) -> dict[str, bytes]:
    """Return the content of every source that a build of `modules` depends on, by path from `root`, sorted.

    Raises FileNotFoundError if one of `modules` is not there and SyntaxError if a source is no Python.
    """
    found: dict[str, bytes] = {path: (root / path).read_bytes() for path in BUILDER}
    for module in modules:
        if _file(root, module) is None:
            raise FileNotFoundError(f"compiled/modules.py names {module}, which is no file here")
    waiting = [*modules, "compiled.modules"]
    seen: set[str] = set()
    while waiting:
        for module in _with_parents(waiting.pop()):
            if module in seen:
                continue
            seen.add(module)
            path = _file(root, module)
            if path is not None:
                found[path] = (root / path).read_bytes()
                waiting.extend(_imported(found[path]))
    return dict(sorted(found.items()))


def without_slots(text: str) -> str:
    """Return a source whose dataclasses ask for no slots, each line where it was.

    Compiled classes have no `__dict__` anyway, and `slots=True` would make a second class beside the
    compiled one, which cannot be.
    """
    lines = text.splitlines(keepends=True)
    asked = [
        keyword
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("dataclass")
        for keyword in decorator.keywords
        if keyword.arg == "slots"
    ]
    for keyword in asked:  # `slots=True` -> `slots=False`: asks for nothing, moves nothing
        value = keyword.value
        line = lines[value.lineno - 1].encode()
        lines[value.lineno - 1] = (
            line[: value.col_offset] + b"False" + line[value.end_col_offset :]
        ).decode()
    return "".join(lines)


def with_reuse(text: str, classes: Collection[str], acyclic: Collection[str]) -> str:
    """Return a source that tells the compiler how objects of some classes live, each line where it was.

    Of `classes` the last one let go is kept, to be the next one made. Those of `acyclic` are not looked at
    for cycles. What it says takes the place of blank lines, and is there for the compiler only.
    """
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and node.name in classes:
            above = node.lineno - 2
            if node.decorator_list or lines[above].strip():
                raise ValueError(f"{node.name} needs a blank line above it and no decorator")
            free = f"free_list_len=1, acyclic={node.name in acyclic}"
            lines[above] = f"@mypyc_attr({free})\n"
    if classes:
        above = lines.index(_FUTURE)
        lines[above] = _FUTURE.rstrip() + "; from typing import TYPE_CHECKING\n"
        lines[above + 1] = "if TYPE_CHECKING: from mypy_extensions import mypyc_attr\n"
    return "".join(lines)
