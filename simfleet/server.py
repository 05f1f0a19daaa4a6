"""A fleet of simulated nodes in one process: one listening port each, one driver for all engines.

Ports are kept for a node's whole existence: while it is killed its port is bound but does not listen, so
connections are refused and nobody else can take it. Prevents: twelve timers where one does, and a demo
whose restarted node comes back somewhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any

import uvicorn

from fleet.clock import Clock
from fleet.engine_profile import EngineProfile
from fleet.errors import InvalidInput, NotFound, Unavailable
from simfleet.app import NodeApp
from simfleet.faults import Fault, FaultKind
from simfleet.node import SimNode

#: Longest time between two looks at the engines while any is busy, wall seconds.
TICK_S = 0.05
MAX_NODES = 256


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process owns signals, not each of its nodes."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class NodeServer:
    """The socket of one node: listening, or bound and refusing while the node is dead."""

    def __init__(self, node: SimNode, app: NodeApp, host: str, port: int) -> None:
        self.node = node
        self._app = app
        self._host = host
        self._held: socket.socket | None = _bind(host, port)
        self.port: int = self._held.getsockname()[1]
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.lifecycle = asyncio.Lock()  # one kill or restart at a time, in the order they were given

    @property
    def base_url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    def release_port(self) -> None:
        """Give up a port that is held but not listening."""
        if self._held is not None:
            self._held.close()
            self._held = None

    async def listen(self) -> None:
        """Start answering on the port held."""
        if self._server is not None or self._held is None:
            return
        config = uvicorn.Config(
            self._app,
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            timeout_keep_alive=5,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._held]))
        self._held = None
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.001)

    async def close(self, *, keep_port: bool) -> None:
        """End the node's life and cut its connections; with `keep_port`, go on owning the port."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = self._server.force_exit = True
            for listener in self._server.servers:
                listener.close()
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            await asyncio.sleep(0)  # connections learn of their end before those who wait for tokens do
            self.node.kill()
            await self._task
            self._server = self._task = None
        if keep_port and self._held is None:
            self._held = await _bind_again(self._host, self.port)
        elif not keep_port:
            self.release_port()


class SimFleet:
    """Nodes, their sockets and the task that drives their engines.

    Raises InvalidInput for a count out of range, Unavailable for a port that is taken.
    """

    def __init__(
        self,
        profile: EngineProfile,
        clock: Clock,
        *,
        nodes: int,
        seed: int = 1,
        speed: float = 1.0,
        host: str = "127.0.0.1",
        base_port: int = 0,
    ) -> None:
        if not 1 <= nodes <= MAX_NODES:
            raise InvalidInput(f"{nodes} nodes", field="--nodes", hint=f"Give 1 to {MAX_NODES}")
        if not 0.01 <= speed <= 1000:
            raise InvalidInput(f"speed {speed}", field="--speed", hint="Give 0.01 to 1000")
        if base_port and not 1 <= base_port <= 65_536 - nodes:
            raise InvalidInput(f"base port {base_port}", field="--base-port", hint="Give 0 or a free range")
        self._busy = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        self._later: set[asyncio.Task[None]] = set()
        self.servers: dict[str, NodeServer] = {}
        width = max(2, len(str(nodes)))
        for number in range(1, nodes + 1):
            name = f"node-{number:0{width}d}"
            node = SimNode(name, profile, clock, seed=seed, speed=speed, wake=self._busy.set)
            app = NodeApp(node, self._orders_from(name))
            try:
                server = NodeServer(node, app, host, base_port + number - 1 if base_port else 0)
            except OSError as exc:
                for bound in self.servers.values():
                    bound.release_port()
                raise Unavailable(
                    f"port {base_port + number - 1} on {host} cannot be used: {exc.strerror}",
                    hint="Choose another --base-port, or 0 for free ports",
                    field="--base-port",
                ) from exc
            self.servers[name] = server

    def _orders_from(self, own_name: str) -> Callable[[str | None, Fault], Awaitable[None]]:
        async def order(name: str | None, fault: Fault) -> None:
            await self.apply(name or own_name, fault)

        return order

    @property
    def nodes(self) -> Sequence[SimNode]:
        return [server.node for server in self.servers.values()]

    async def start(self) -> None:
        """Listen on every port and start the engines' driver."""
        await asyncio.gather(*(server.listen() for server in self.servers.values()))
        self._driver = asyncio.create_task(self._drive())

    async def stop(self) -> None:
        """Cut connections, close ports, end tasks."""
        for task in (*self._later, *([self._driver] if self._driver else [])):
            task.cancel()
        await asyncio.gather(*(server.close(keep_port=False) for server in self.servers.values()))

    async def _drive(self) -> None:
        while True:
            await self._busy.wait()
            self._busy.clear()
            while True:
                busy = [node for node in self.nodes if node.is_busy]
                if not busy:
                    break
                for node in busy:
                    node.tick()
                await asyncio.sleep(TICK_S)

    # -- faults -------------------------------------------------------------------------------------

    async def apply(self, name: str, fault: Fault) -> None:
        """Give a node a fault. Raises NotFound for an unknown name. A kill takes effect a moment later."""
        server = self.servers.get(name)
        if server is None:
            raise NotFound(f"there is no node {name!r}", hint=f"Names are {', '.join(self.servers)}")
        node = server.node
        match fault.kind:
            case FaultKind.FREEZE:
                node.freeze()
            case FaultKind.UNFREEZE:
                node.unfreeze()
            case FaultKind.SLOW_METRICS:
                node.metrics_delay_s = fault.delay_s
            case FaultKind.KV_SHORTAGE:
                node.take_kv_blocks(fault.ratio)
            case FaultKind.KILL:
                self._run_later(self._kill(server))
            case FaultKind.RESTART:
                self._run_later(self._restart(server, fault.delay_s))
            case FaultKind.CLEAR:
                node.unfreeze()
                node.metrics_delay_s = 0.0
                node.take_kv_blocks(0.0)
                if not node.is_alive:
                    self._run_later(self._restart(server, 0.0))
        if fault.for_s is not None:
            self._run_later(self._clear_after(name, fault.for_s))

    def _run_later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _clear_after(self, name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.apply(name, Fault(FaultKind.CLEAR))

    async def _kill(self, server: NodeServer) -> None:
        await asyncio.sleep(TICK_S)  # let the answer to the order out, should it come over this very port
        async with server.lifecycle:
            await server.close(keep_port=True)

    async def _restart(self, server: NodeServer, closed_s: float) -> None:
        await asyncio.sleep(TICK_S)
        async with server.lifecycle:
            await server.close(keep_port=True)
            await asyncio.sleep(closed_s)
            server.node.restart()
            await server.listen()


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to the port, not listening. Raises OSError when it is taken."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


async def _bind_again(host: str, port: int) -> socket.socket:
    """Bind a port whose listener was closed a moment ago. Raises OSError if it stays taken for a second."""
    for _ in range(100):
        try:
            return _bind(host, port)
        except OSError:
            await asyncio.sleep(0.01)
    return _bind(host, port)
