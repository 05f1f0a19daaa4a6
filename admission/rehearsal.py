"""Whether a gateway process would start now: its code and settings are tried before a running one ends.

A rehearsal is a process that reads the same flags, variables, files of secrets and code as a new one,
opens no socket and no state folder, and ends. Times are seconds. Prevents: a reload that ends a process
which serves and cannot be replaced, because a file of secrets or the code is faulty.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from admission.settings import Settings
from admission.tokenizer_files import TokenizerFiles
from admission.tracing_form import open_tracing
from fleet.clock import Clock

#: Tells a process that it is a rehearsal; not a setting.
REHEARSAL_VARIABLE = "RHODECK_REHEARSES_START"
WITHIN_S = 60.0  # as long as a process has to start
_MOST_CHARACTERS = 500


def is_rehearsal() -> bool:
    """Say whether this process is one."""
    return REHEARSAL_VARIABLE in os.environ


def rehearse(settings: Settings, clock: Clock) -> None:
    """Try what a start needs beside sockets and the state folder. Raises InvalidInput as a start would."""
    open_tracing(settings, clock)
    if settings.tokenizers_dir is not None:
        TokenizerFiles(settings.tokenizers_dir)


async def fault_of_a_start(arguments: Sequence[str], within_s: float = WITHIN_S) -> str | None:
    """Return why a process with these flags would not start now, in words; None: it would."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "admission",
            *arguments,
            env={**os.environ, REHEARSAL_VARIABLE: "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # a hangup of the terminal is not for it
        )
    except OSError as exc:
        return f"a process cannot be started: {exc.strerror}"
    try:
        async with asyncio.timeout(within_s):
            _, said = await process.communicate()
    except TimeoutError:
        return f"a process did not come to its start within {within_s:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return None if process.returncode == 0 else _fault_in(said.decode(errors="replace"))


def _fault_in(said: str) -> str:
    """Return what a process that did not start said of it: its error, or the end of its traceback."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    begin = next((at for at, line in enumerate(lines) if line.startswith("Error: ")), len(lines) - 1)
    words = " ".join(lines[max(begin, 0) :]).removeprefix("Error: ")
    return words[:_MOST_CHARACTERS] or "it said nothing"
