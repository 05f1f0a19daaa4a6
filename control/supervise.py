"""Runs the parts of one machine as child processes, and takes all of them along when it ends.

A child that exits on its own is started again after a growing pause (seconds: 1, 2, 4 ... 30). Children
get SIGTERM and a grace period, then SIGKILL; the kernel ends them too if this process is killed (Linux).
Prevents: an orphan that keeps a port, and a part that died an hour ago without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from control.parent_death import die_with_parent, has_death_signal
from fleet.clock import Clock
from fleet.errors import FleetError, Unavailable

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
STEADY_S = 60.0  # a child that ran this long starts again with the first pause
GRACE_S = 15.0


@dataclass(frozen=True, slots=True)
class Part:
    """One process to keep running. The next part starts when this one is ready.

    Ready: `ready_url` answers below 500, or `ready_file` appears.
    """

    name: str
    arguments: Sequence[str]  # after the Python executable
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    ready_url: str | None = None
    ready_file: Path | None = None
    ready_timeout_s: float = 180.0  # one that ends is seen at once; a first start compiles every module
    restart: bool = True


@dataclass(slots=True)
class _Running:
    part: Part
    process: asyncio.subprocess.Process
    started_s: float
    failures: int = 0  # exits and failed starts in a row before it, none of them steady
    log_start: int = 0  # bytes of the log that are from before this start


def free_port(preferred: int, *, host: str = "127.0.0.1") -> int:
    """Return `preferred` if it can be bound on `host`, else a free port."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((host, port))
                return int(probe.getsockname()[1])
    raise Unavailable(f"no free port on {host}", hint="End another program that holds many ports")


class Supervisor:
    """Starts parts in order, restarts them, ends them in reverse order. Use from the main thread."""

    def __init__(self, clock: Clock, logs: Path, say: Callable[[str], None]) -> None:
        self._clock = clock
        self._logs = logs
        self._say = say
        self._running: dict[str, _Running] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    async def start(self, part: Part) -> None:
        """Start one part and wait until it is ready. Raises Unavailable with the end of its log."""
        running = await self._spawn(part, failures=0)
        await self._wait_ready(running)
        self._say(f"  {part.name:<12} started, pid {running.process.pid}")
        if part.restart:
            self._watchers.append(asyncio.create_task(self._watch(part.name)))

    async def run(self) -> None:
        """Wait until `stop` is called."""
        await self._stopping.wait()

    def request_stop(self) -> None:
        """Make `run` return. Safe in a signal handler of the loop."""
        self._stopping.set()

    async def stop(self) -> None:
        """End all parts, newest first."""
        self._stopping.set()
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        for running in reversed(list(self._running.values())):
            await self._end(running)

    async def _spawn(self, part: Part, *, failures: int) -> _Running:
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / f"{part.name}.log").open("ab") as log:
            log_start = log.tell()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # import nothing from the folder we happen to be in
                *part.arguments,
                env={**os.environ, **part.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(signal.SIGTERM) if has_death_signal() else None,
            )
        running = _Running(part, process, self._clock.monotonic_s(), failures, log_start)
        self._running[part.name] = running
        return running

    async def _wait_ready(self, running: _Running) -> None:
        part = running.part
        if part.ready_url is None and part.ready_file is None:
            return
        deadline = self._clock.monotonic_s() + part.ready_timeout_s
        async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
            while self._clock.monotonic_s() < deadline:
                if running.process.returncode is not None:
                    raise self._failed(running, f"exited with code {running.process.returncode}")
                if part.ready_file is not None and part.ready_file.exists():
                    return
                with contextlib.suppress(httpx.HTTPError):
                    if part.ready_url and (await client.get(part.ready_url)).status_code < 500:
                        return
                await asyncio.sleep(0.1)
        raise self._failed(running, f"was not ready in {part.ready_timeout_s:g} s")

    def _failed(self, running: _Running, what: str) -> FleetError:
        log = self._logs / f"{running.part.name}.log"
        said = log.read_bytes()[running.log_start :].decode(errors="replace")
        tail = "\n".join(said.splitlines()[-8:])
        return Unavailable(f"{running.part.name} {what}\n{tail}", hint=f"The whole log is {log}")

    async def _watch(self, name: str) -> None:
        while not self._stopping.is_set():
            running = self._running[name]
            code = await running.process.wait()
            if self._stopping.is_set():
                return
            steady = self._clock.monotonic_s() - running.started_s >= STEADY_S
            failures = 0 if steady else running.failures
            pause_s = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
            self._say(f"  {name:<12} exited with code {code}; starting again in {pause_s:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
                return
            try:
                await self._spawn(running.part, failures=failures + 1)
            except OSError as exc:  # no memory, no room for its log: a later try may find some
                self._say(f"  {name:<12} cannot be started: {exc.strerror}")
                running.failures, running.started_s = failures + 1, self._clock.monotonic_s()

    async def _end(self, running: _Running) -> None:
        process = running.process
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), GRACE_S)
            except TimeoutError:
                self._say(f"  {running.part.name:<12} did not stop in {GRACE_S:g} s; killed")
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
