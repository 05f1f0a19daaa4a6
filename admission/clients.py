"""The listening side of one process: its client connections, what they share, and their end.

Times are seconds on the loop's clock, kept by one sweep for all connections. Connections are bounded in
number, all together and of one address. Prevents: a timer set and taken back for every request, and an exit
that cuts answers which were nearly done.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import cast

from admission.http_server import Connection
from admission.inbound import Inbound
from admission.outbox import Outbox
from admission.settings import Settings
from fleet.clock import Clock

Handler = Callable[[Inbound], Awaitable[None]]

SWEEP_S = 0.1
#: Refused connections that are told why, at once: each stays until its client has read it, 2 s at most.
MOST_TOLD = 256


class Limits:
    """What one connection may take, read once: a model of pydantic is slow to ask."""

    __slots__ = (
        "body_deadline_s", "body_idle_s", "header_bytes", "header_count", "header_deadline_s",
        "keep_alive_s", "write_deadline_s",
    )  # fmt: skip

    def __init__(self, settings: Settings) -> None:
        self.header_bytes, self.header_count = settings.header_bytes, settings.header_count
        self.header_deadline_s = settings.header_deadline_s
        self.body_idle_s, self.body_deadline_s = settings.body_idle_s, settings.body_deadline_s
        self.write_deadline_s = settings.write_deadline_s
        self.keep_alive_s = settings.keep_alive_s


class Listener:
    """The client connections of one gateway process. `connection` makes one for a server's socket."""

    def __init__(
        self, settings: Settings, clock: Clock, handler: Handler, outbox: Outbox | None = None
    ) -> None:
        """`outbox`: what the process sends by; None: one of its own."""
        self.limits = Limits(settings)
        self._most, self._most_of_one = settings.connections, settings.connections_per_address
        self.outbox = outbox or Outbox(asyncio.get_running_loop())
        self.handler = handler
        self.connections = set[Connection]()
        self.by_address = Counter[str]()  # without those that were refused
        self._refused = set[Connection]()  # of the connections: they take no place
        self.is_leaving = False  # each answer is the last one of its connection
        self.date = b""  # a header line
        self._clock = clock
        self._sweeper: asyncio.TimerHandle | None = None

    def connection(self) -> asyncio.Protocol:
        """Return what handles one new connection."""
        made = Connection(self, asyncio.get_running_loop())
        return cast("asyncio.Protocol", made)  # it has the methods; a base costs time

    def took(self, connection: Connection, address: str) -> bool:
        """Count a connection; False: there are too many, it must go."""
        taken = len(self.connections) - len(self._refused)
        is_taken = self.by_address[address] < self._most_of_one and taken < self._most
        self.connections.add(connection)
        if is_taken:
            self.by_address[address] += 1
        else:
            self._refused.add(connection)
        if self._sweeper is None:
            self._sweep()
        return is_taken

    def may_say_why(self) -> bool:
        """Say whether a connection that was refused is told so: not where a crowd comes."""
        return len(self._refused) <= MOST_TOLD

    def lost(self, connection: Connection, address: str) -> None:
        """Forget a connection."""
        self.connections.discard(connection)
        if connection in self._refused:
            self._refused.discard(connection)
            return
        self.by_address[address] -= 1
        if self.by_address[address] <= 0:
            del self.by_address[address]

    def _sweep(self) -> None:
        """Look at the clock, and for connections whose time is up; as long as there are connections."""
        loop = asyncio.get_running_loop()
        self.date = b"date: %s\r\n" % formatdate(self._clock.now().timestamp(), usegmt=True).encode()
        now_s = loop.time()
        try:
            for connection in [one for one in self.connections if one.due_s <= now_s]:
                connection.time_is_up(now_s)
        finally:  # a fault of one leaves the others watched
            self._sweeper = loop.call_later(SWEEP_S, self._sweep) if self.connections else None

    # -- the end ------------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Close idle connections; the others close after their answer."""
        self.is_leaving = True
        for connection in tuple(self.connections):
            connection.let_go()

    async def close(self, within_s: float) -> None:
        """End: wait `within_s` for running requests, cancel them, give them as long to say so, then cut."""
        self.let_go()
        await self._wait_for_connections(within_s)
        for connection in tuple(self.connections):
            connection.cancel()
        await self._wait_for_connections(within_s)
        for connection in tuple(self.connections):
            connection.cut()
        await self._wait_for_connections(within_s)
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    async def _wait_for_connections(self, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        while self.connections and loop.time() < until_s:
            await asyncio.sleep(0.01)
