"""How far a command is: a bar for a person at a terminal, plain lines for whoever reads standard error.

A line is `progress: STEP DONE/OF`, one for each twentieth. Prevents: a page that can only say "wait",
because a bar draws nothing where no terminal is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import click

_LINE = re.compile(r"progress: ([^\n]{1,60}) (\d{1,12})/(\d{1,12})")
_STEPS = 20


@contextmanager
def progress(length: int, step: str) -> Generator[Callable[[int, int], bool]]:
    """Give a function to be told (done, of) with; it returns True: go on."""
    if sys.stderr.isatty():
        with click.progressbar(length=length, label=step, file=sys.stderr) as bar:

            def told(done: int, _of: int) -> bool:
                bar.update(done - bar.pos)
                return True

            yield told
        return
    shown = -1

    def line(done: int, of: int) -> bool:
        nonlocal shown
        part = _STEPS * done // of if of else _STEPS
        if part > shown:
            shown = part
            click.echo(f"progress: {step} {done}/{of}", err=True)
        return True

    line(0, length)
    yield line


def read_progress(line: str) -> tuple[str, int, int] | None:
    """Return (step, done, of) of a line that `progress` wrote; None for any other."""
    found = _LINE.fullmatch(line.strip())
    return None if found is None else (found[1], int(found[2]), int(found[3]))
