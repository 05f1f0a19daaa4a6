"""The sockets a gateway process accepts on, and the line to the process that started it.

A process on its own has one public socket, and one for the admin API where that has its own port. One of N
(`admission.processes`) gets all N public sockets from its supervisor and accepts on its own; while a
neighbour is away it accepts on the neighbour's too. Times are seconds. Prevents: a connection refused or
left waiting because the process that it was dealt to ended or starts again.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from admission.settings import Settings
from admission.siblings import BEAT_EVERY_S, Siblings
from fleet.errors import InvalidInput

log = logging.getLogger(__name__)

#: Where a supervisor tells a process which descriptors are its sockets; not a setting.
INHERITED_VARIABLE = "RHODECK_INHERITED_SOCKETS"
BACKLOG = 2_048


@dataclass(frozen=True, slots=True)
class Doors:
    """What one process accepts on. `public[own]` is its own socket."""

    public: tuple[socket.socket, ...]
    own: int = 0
    admin: socket.socket | None = None
    line: socket.socket | None = None  # to the supervisor

    @property
    def admin_port(self) -> int | None:
        """Return the port that alone serves /admin and /metrics; None: the public one does."""
        return None if self.admin is None else int(self.admin.getsockname()[1])

    def close(self) -> None:
        """Close them all. A supervisor's own descriptors stay open."""
        for one in (*self.public, self.admin, self.line):
            if one is not None:
                one.close()


def own_doors(settings: Settings) -> Doors:
    """Bind what `settings` ask for. Raises InvalidInput when an address is taken or not ours."""
    public = bind(settings.host, settings.port)
    if settings.admin_port is None:
        return Doors((public,))
    try:
        return Doors((public,), admin=bind(admin_host(settings), settings.admin_port, field="--admin-port"))
    except InvalidInput:
        public.close()
        raise


def inherited_doors() -> Doors | None:
    """Return what a supervisor left to this process, None without one. The variable is taken away."""
    said = os.environ.pop(INHERITED_VARIABLE, None)
    if said is None:
        return None
    given: dict[str, Any] = json.loads(said)
    public = tuple(socket.socket(fileno=number) for number in given["public"])
    admin, line = socket.socket(fileno=given["admin"]), socket.socket(fileno=given["line"])
    return Doors(public, given["own"], admin, line)


def admin_host(settings: Settings) -> str:
    """Return the address of the admin port."""
    return settings.host if settings.admin_host is None else settings.admin_host


def bind(host: str, port: int, *, is_shared: bool = False, field: str = "--port") -> socket.socket:
    """Return a bound socket; `is_shared`: others of ours bind the same port (SO_REUSEPORT).

    Raises InvalidInput when the address is taken or not ours, or the kernel cannot share a port.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError as exc:
        raise InvalidInput(f"cannot listen on {host}:{port}: {exc.strerror or exc}", field=field) from exc
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            _share(made)
        made.bind(address)
    except OSError as exc:
        made.close()
        raise InvalidInput(
            f"cannot listen on {host}:{port}: {exc.strerror or exc}",
            field=field,
            hint="Is another gateway running there? --port 0 picks a free port",
        ) from exc
    except InvalidInput:
        made.close()
        raise
    return made


def _share(made: socket.socket) -> None:
    option = getattr(socket, "SO_REUSEPORT", None)
    try:
        if option is None:
            raise OSError(errno.ENOPROTOOPT, "it has no SO_REUSEPORT")
        made.setsockopt(socket.SOL_SOCKET, option, 1)
    except OSError as exc:
        raise InvalidInput(
            f"this kernel cannot share a port between processes: {exc.strerror}",
            field="--processes",
            hint="Use Linux 3.9 or newer, or run single gateways behind a load balancer",
        ) from exc


@dataclass(slots=True)
class Acceptor:
    """Accepts on the public sockets of this process, and on neighbours' as the supervisor asks."""

    doors: Doors
    protocol: Callable[[], asyncio.Protocol]
    stop: asyncio.Event  # drain and end
    leave: asyncio.Event  # a successor takes over: end what runs, refuse nothing
    hear: Callable[[Siblings], None] = lambda _: None  # what the supervisor says of all processes
    _open: dict[int, asyncio.Server] = field(default_factory=dict[int, asyncio.Server])

    async def take(self, place: int) -> None:
        """Accept on a public socket; it stays open when we stop."""
        if place not in self._open:
            loop, copy = asyncio.get_running_loop(), self.doors.public[place].dup()
            self._open[place] = await loop.create_server(self.protocol, sock=copy, backlog=BACKLOG)

    async def _take_over(self, place: int) -> None:
        """Take a neighbour's socket if descriptors allow; else its clients wait for itself."""
        try:
            await self.take(place)
        except OSError as exc:
            log.error("a neighbour's socket cannot be taken", extra={"reason": exc.strerror or str(exc)})

    def drop(self, place: int) -> None:
        """Accept there no more. Who waits there is accepted by another process."""
        if (server := self._open.pop(place, None)) is not None:
            server.close()

    def drop_all(self) -> None:
        """Accept nothing more."""
        for place in tuple(self._open):
            self.drop(place)

    def hold_no_more(self) -> None:
        """Have a public socket end with the last process that accepts there.

        One that is held by who does not accept keeps clients waiting that nobody answers.
        """
        for one in self.doors.public:
            one.close()

    async def follow(self) -> None:
        """Do what the supervisor says until it is gone; then drain."""
        line = self.doors.line
        if line is None:
            return
        reader, writer = await asyncio.open_connection(sock=line)
        beating = asyncio.create_task(_beat(writer))
        try:
            writer.write(b"listens\n")
            while words := (await reader.readline()).split():
                match words:
                    case [b"take", place]:
                        await self._take_over(int(place))
                    case [b"drop", place]:
                        self.drop(int(place))
                    case [b"leave"]:
                        self.leave.set()
                    case [b"siblings", *numbers]:
                        if (said := Siblings.of(numbers)) is not None:
                            self.hear(said)
                    case _:
                        log.error("the supervisor said something unknown")
            if not self.leave.is_set():
                log.error("the supervisor is gone")
                self.stop.set()
        finally:
            beating.cancel()
            writer.write(b"ends\n")  # it may take longer than a hang now
            writer.close()


async def _beat(writer: asyncio.StreamWriter) -> None:
    """Tell the supervisor that this event loop turns, for as long as it does."""
    while True:
        await asyncio.sleep(BEAT_EVERY_S)
        writer.write(b"beats\n")
