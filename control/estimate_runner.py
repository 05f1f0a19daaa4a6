"""Starts the process that simulates estimates when something waits, and ends it with the controller.

Prevents: a controller that computes months itself and scrapes late, and a simulation that outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from control.database import session_scope
from control.deps import Deps
from control.estimate_runs import has_work
from control.estimate_worker import STALE
from control.parent_death import die_with_parent, has_death_signal

#: How long the process may take to keep where it stands.
END_S = 10.0
WORK = ("-P", "-m", "control", "estimate", "work")


@dataclass(slots=True)
class EstimateRunner:
    """One process at most. `command` is what is started, after the interpreter's own path."""

    deps: Deps
    command: Sequence[str] = WORK
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)

    async def tick(self) -> str:
        """Start the process if a simulation waits and none runs; return what happened."""
        said = ""
        if self._process is not None:
            if self._process.returncode is None:
                return ""
            code, self._process = self._process.returncode, None
            said = "" if code == 0 else f"the simulating process ended with code {code}; "
        if not await asyncio.to_thread(self._waits):
            return said
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            preexec_fn=die_with_parent(signal.SIGTERM) if has_death_signal() else None,
        )
        return f"{said}simulating estimates"

    def _waits(self) -> bool:
        with session_scope(self.deps.engine) as session:
            return has_work(session, self.deps.clock.now() - STALE)

    async def close(self) -> None:
        """End the process; it keeps where it stands first."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.wait()
                return
        process.kill()
        await process.wait()
