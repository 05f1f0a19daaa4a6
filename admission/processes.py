"""N gateway processes on one port: started, watched, started again, reloaded one after the other, ended.

Each process is a gateway of its own: name NAME-k, state folder STATE_DIR/k, an admin port. The supervisor
binds all sockets and keeps them open, so that a connection dealt to a process that is away waits for
nobody: a neighbour accepts it, also while a process hangs, which is killed if that lasts. Times are
seconds. Prevents: an upgrade that refuses clients, one process that died or hung without a word, and two
supervisors that share a port unknowingly.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from admission.doors import BACKLOG, INHERITED_VARIABLE, admin_host, bind
from admission.durable import lock_folder
from admission.rehearsal import fault_of_a_start
from admission.settings import Settings
from admission.siblings import TICK_S, Siblings, Silence
from fleet import logs
from fleet.clock import Clock
from fleet.errors import InvalidInput

log = logging.getLogger(__name__)

PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
STEADY_S = 60.0  # a process that ran this long starts again with the first pause
START_S = 60.0  # a process listens by then, or is killed
KILL_S = 10.0  # after its time to drain a process is killed
BAD_SETTINGS = 2  # a process ended with this code: it said what is wrong with its settings
MAX_NAME = 60  # of the group: -64 has room


def cover(listening: Sequence[bool]) -> dict[int, int]:
    """Return who accepts for each process that does not listen: the next one that does.

    Empty when all or none listen.
    """
    count = len(listening)
    return {
        place: next((place + step) % count for step in range(1, count) if listening[(place + step) % count])
        for place in range(count)
        if not listening[place] and any(listening)
    }


@dataclass(slots=True)
class Place:
    """One of the N processes."""

    number: int  # from 1
    name: str
    public: socket.socket
    admin: socket.socket
    silence: Silence
    process: asyncio.subprocess.Process | None = None
    line: asyncio.StreamWriter | None = None
    listens: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0
    is_replaced: bool = False  # it was asked to make room for its successor
    is_silent: bool = False  # for so long that a neighbour accepts for it
    is_hung: bool = False  # and is killed for it
    is_ending: bool = False  # it said so, and gives no more signs of life
    condition: str = "starts"


def supervise(settings: Settings, clock: Clock, arguments: Sequence[str]) -> None:
    """Run `settings.processes` gateways until SIGTERM or SIGINT. SIGHUP starts them anew, one by one.

    `arguments` are those of the command line; each process gets them with its own name and folder.
    Raises InvalidInput when the port cannot be had or shared, the folder is in use, or the first processes
    find fault with their settings.
    """
    if len(settings.name) > MAX_NAME:
        raise InvalidInput(
            f"the name has {len(settings.name)} characters; with several processes {MAX_NAME} at most",
            field="--name",
        )
    try:
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = lock_folder(settings.state_dir)
    except OSError as exc:
        raise InvalidInput(f"{settings.state_dir}: {exc.strerror}", field="--state-dir") from exc
    if lock is None:
        raise InvalidInput(f"another gateway runs in {settings.state_dir}", field="--state-dir")
    places = open_places(settings)
    logs.configure(settings.name, level=settings.log_level)
    try:
        supervisor = Supervisor(settings, clock, places, arguments)
        asyncio.run(supervisor.run())
        if supervisor.is_refused:
            raise InvalidInput("the processes refuse their settings", hint="Each said above what is wrong")
    finally:
        for place in places:
            place.public.close()
            place.admin.close()
        os.close(lock)


def open_places(settings: Settings) -> list[Place]:
    """Bind the public port N times and the admin ports. Raises InvalidInput where that cannot be done."""
    # Sharing a port asks nobody who has it already: without this look a second start would join the first.
    probe = bind(settings.host, settings.port)
    port = int(probe.getsockname()[1])
    probe.close()
    first = settings.admin_port
    if first is None:
        first = port + 1 if settings.port else 0
    made: list[Place] = []
    sockets: list[socket.socket] = []
    try:
        for number in range(1, settings.processes + 1):
            public = bind(settings.host, port, is_shared=True)
            sockets.append(public)
            admin_port = first + number - 1 if first else 0
            admin = bind(admin_host(settings), admin_port, field="--admin-port")
            sockets.append(admin)
            name, silence = f"{settings.name}-{number}", Silence(settings.hang_s)
            made.append(Place(number, name, public, admin, silence))
    except InvalidInput:
        for one in sockets:
            one.close()
        raise
    for one in sockets:
        one.listen(BACKLOG)
    return made


class Supervisor:
    """Keeps the processes running. One event loop; signals arrive in it."""

    def __init__(
        self, settings: Settings, clock: Clock, places: Sequence[Place], arguments: Sequence[str]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._places = places
        self._arguments = tuple(arguments)
        self._stopping = asyncio.Event()
        self._reload = asyncio.Event()
        self._covered: dict[int, int] = {}
        self._said = ""
        self._ends = {"died": 0, "hung": 0}
        self._have_served = False  # any of them, ever
        self.is_refused = False

    async def run(self) -> None:
        """Run until asked to stop; then every process drains, and all are waited for."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        host, port = self._places[0].public.getsockname()[:2]
        admin = {place.name: place.admin.getsockname()[1] for place in self._places}
        where = ", ".join(f"{name} at port {number}" for name, number in admin.items())
        log.info("processes start", extra={"host": host, "port": port, "admin": where, "pid": os.getpid()})
        keepers = [asyncio.create_task(self._keep(place)) for place in self._places]
        others = [asyncio.create_task(self._reload_when_asked()), asyncio.create_task(self._watch())]
        await self._stopping.wait()
        for place in self._places:  # each ends with its process; who connects is dealt to those left
            place.public.close()
        for one in others:
            one.cancel()
        log.info("processes drain", extra={"limit_s": self._settings.drain_s})
        await asyncio.gather(*others, *keepers, return_exceptions=True)
        log.info("processes stopped")

    # -- one process --------------------------------------------------------------------------------

    async def _keep(self, place: Place) -> None:
        """Run one process, again and again, until all are to stop."""
        while not self._stopping.is_set():
            began_s = self._clock.monotonic_s()
            why = await self._run_once(place)
            place.listens.clear()
            code = None if place.process is None else place.process.returncode
            if code == BAD_SETTINGS and not self._have_served:  # starting again would not mend them
                self.is_refused = True
                self._stopping.set()
            if place.is_replaced or self._stopping.is_set():
                place.is_replaced = False
                place.condition = "starts"
                self._look()
                continue
            if self._clock.monotonic_s() - began_s >= STEADY_S:
                place.failures = 0
            self._ends["hung" if place.is_hung else "died"] += 1
            pause_s = PAUSES_S[min(place.failures, len(PAUSES_S) - 1)]
            place.failures += 1
            place.condition = f"{why}; starts again in {pause_s:g} s"
            self._look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            place.condition = "starts"

    async def _run_once(self, place: Place) -> str:
        """Run one process to its end; return how it ended."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as exc:
            return f"cannot be started: {exc.strerror}"
        try:
            place.process = await self._spawn(place, theirs)
        except OSError as exc:
            ours.close()
            return f"cannot be started: {exc.strerror}"
        finally:
            theirs.close()
        reader, place.line = await asyncio.open_connection(sock=ours)
        place.is_silent = place.is_hung = place.is_ending = False
        hearing = asyncio.create_task(self._hear(place, reader))
        stopping = asyncio.create_task(self._stop_when_asked(place.process))
        code = await place.process.wait()
        stopping.cancel()
        place.line.close()
        place.line = None
        await asyncio.gather(hearing, stopping, return_exceptions=True)
        if place.is_hung:
            return f"was silent for {self._settings.hang_s:g} s and was killed"
        return f"ended with code {code}" if code >= 0 else f"ended by signal {-code}"

    async def _spawn(self, place: Place, line: socket.socket) -> asyncio.subprocess.Process:
        public = [one.public.fileno() for one in self._places]
        inherited = {
            "public": public,
            "own": place.number - 1,
            "admin": place.admin.fileno(),
            "line": line.fileno(),
        }
        own = ("--name", place.name, "--state-dir", str(self._settings.state_dir / str(place.number)))
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "admission",
            *self._arguments,
            *own,
            "--processes",
            "1",
            env={**os.environ, INHERITED_VARIABLE: json.dumps(inherited)},
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(*public, place.admin.fileno(), line.fileno()),
        )

    async def _hear(self, place: Place, reader: asyncio.StreamReader) -> None:
        """Note when the process listens; kill one that does not come to it."""
        try:
            async with asyncio.timeout(START_S):
                said = await reader.readline()
        except TimeoutError:
            log.error("process does not start", extra={"gateway": place.name, "after_s": START_S})
            self._signal(place.process, signal.SIGKILL)
            return
        except ConnectionError:
            return
        if not said:
            return
        place.condition = ""
        place.silence.heard()
        place.listens.set()
        self._have_served = True
        self._look()
        with contextlib.suppress(ConnectionError):
            while said := await reader.readline():
                self._heard(place, said)

    def _heard(self, place: Place, said: bytes) -> None:
        place.silence.heard()
        place.is_ending = place.is_ending or said == b"ends\n"
        if place.is_silent and not place.is_hung:
            place.is_silent, place.condition = False, ""
            self._look()

    async def _watch(self) -> None:
        """Count the silence of who should give signs of life."""
        looked_s = self._clock.monotonic_s()
        while True:
            await asyncio.sleep(TICK_S)
            before_s, looked_s = looked_s, self._clock.monotonic_s()
            for place in self._places:
                if place.listens.is_set() and not place.is_ending and not place.is_hung:
                    place.silence.passed(looked_s - before_s)
                    self._judge(place)

    def _judge(self, place: Place) -> None:
        """Let a neighbour accept for who is silent; kill who hangs, to start it anew."""
        if place.silence.is_too_long:
            place.is_hung = True
            log.error("process hangs", extra={"gateway": place.name, "after_s": self._settings.hang_s})
            self._signal(place.process, signal.SIGKILL)
        elif place.silence.is_long and not place.is_silent:
            place.is_silent, place.condition = True, "is silent"
            self._look()

    async def _stop_when_asked(self, process: asyncio.subprocess.Process) -> None:
        await self._stopping.wait()
        self._signal(process, signal.SIGTERM)
        await asyncio.sleep(self._settings.drain_s + KILL_S)
        self._signal(process, signal.SIGKILL)

    @staticmethod
    def _signal(process: asyncio.subprocess.Process | None, number: signal.Signals) -> None:
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    # -- all of them --------------------------------------------------------------------------------

    def _look(self) -> None:
        """See who listens: let neighbours accept for who does not, and say the state when it changed."""
        if self._stopping.is_set():
            return
        listening = [
            place.listens.is_set() and not place.is_replaced and not place.is_silent
            for place in self._places
        ]
        wanted = cover(listening)
        for place, neighbour in self._covered.items():
            if wanted.get(place) != neighbour:
                self._tell(neighbour, f"drop {place}")
        for place, neighbour in wanted.items():
            self._tell(neighbour, f"take {place}")  # again, if it holds it: it may have started anew
        self._covered = wanted
        words = [f"{place.name} {place.condition}" for place in self._places if place.condition]
        said = "; ".join([f"{sum(listening)} of {len(listening)} serve", *words])
        if said != self._said:
            self._said = said
            log.info("processes", extra={"state": said})
        words = Siblings(sum(listening), len(listening), **self._ends).words()
        for place in range(len(self._places)):
            self._tell(place, words)

    def _tell(self, place: int, words: str) -> None:
        line = self._places[place].line
        if line is not None and not line.is_closing():
            line.write(words.encode() + b"\n")

    async def _reload_when_asked(self) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            if (fault := await fault_of_a_start(self._arguments)) is not None:
                log.error("reload refused", extra={"reason": fault})
                continue
            with contextlib.suppress(TimeoutError):
                for place in self._places:
                    await self._replace(place)
                log.info("processes reloaded")

    async def _replace(self, place: Place) -> None:
        """Let a neighbour accept, the process end what runs, and its successor start."""
        if not place.listens.is_set():
            return  # it starts anyway
        place.is_replaced, place.condition = True, "makes room"
        self._look()
        process = place.process
        self._tell(place.number - 1, "leave")
        late = asyncio.create_task(self._kill_late(process))
        try:
            async with asyncio.timeout(self._settings.drain_s + KILL_S + START_S):
                while place.process is process or not place.listens.is_set():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            log.error("reload stops", extra={"gateway": place.name, "reason": "it does not start again"})
            raise
        finally:
            late.cancel()

    async def _kill_late(self, process: asyncio.subprocess.Process | None) -> None:
        await asyncio.sleep(self._settings.drain_s + KILL_S)
        self._signal(process, signal.SIGKILL)
