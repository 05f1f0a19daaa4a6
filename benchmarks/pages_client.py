"""A browser's half of Streamlit's conversation: open a page, click, tick, and weigh what comes back.

One websocket a session, binary protobufs, the messages a browser keeps named in each request as a browser
does. Times are seconds of wall-clock, sizes bytes on the wire. Prevents: a benchmark of a function where
the goal is a page, and fifty browsers that measure the machine they run on instead of the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

PATIENCE_S = 120.0
#: A run that ended whole, and a fragment's. The third, "early", is followed by the run that replaces it.
_FINISHED = (
    ForwardMsg.FINISHED_SUCCESSFULLY,
    ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY,
)


_FAILED = ("This page failed", "Nothing can be shown", "has not answered", "not worked out")


@dataclass(slots=True)
class Run:
    """One run of a page or of one of its live parts."""

    wall_s: float
    first_s: float | None = None  # until the first element of it
    sent_bytes: int = 0
    elements: int = 0
    said: list[str] = field(default_factory=list[str])  # errors and warnings on the page
    rows: int = 0  # of all its tables


@dataclass(slots=True)
class Session:
    """One open page."""

    socket: ClientConnection
    page: str
    query: str = ""
    fragments: dict[str, float] = field(default_factory=dict[str, float])  # live parts and their period, s
    _kept: set[str] = field(default_factory=set[str])
    _hash: str = ""

    async def run(self, fragment: str = "") -> Run:
        """Ask for the page (or one live part of it) and wait for all of it. Raises TimeoutError."""
        asked = BackMsg()
        state = asked.rerun_script
        state.query_string, state.page_script_hash = self.query, self._hash
        state.page_name = "" if self._hash else self.page
        state.fragment_id, state.is_auto_rerun = fragment, bool(fragment)
        state.cached_message_hashes.extend(self._kept)
        state.context_info.timezone = "UTC"
        state.context_info.locale = "en-US"
        began_s = time.perf_counter()
        await self.socket.send(asked.SerializeToString())
        run = Run(0.0)
        if not fragment:
            self.fragments.clear()
        async with asyncio.timeout(PATIENCE_S):
            while not self._take(await self.socket.recv(), run, began_s):
                pass
        run.wall_s = time.perf_counter() - began_s
        return run

    def _take(self, raw: str | bytes, run: Run, began_s: float) -> bool:
        """Note one message; return whether it was the last of its run."""
        assert isinstance(raw, bytes)
        message = ForwardMsg.FromString(raw)
        run.sent_bytes += len(raw)
        if message.metadata.cacheable:
            self._kept.add(message.hash)
        match message.WhichOneof("type"):
            case "navigation":
                self._hash = message.navigation.page_script_hash
            case "auto_rerun":
                self.fragments[message.auto_rerun.fragment_id] = message.auto_rerun.interval
            case "delta" if message.delta.HasField("new_element"):
                run.elements += 1
                if run.first_s is None:
                    run.first_s = time.perf_counter() - began_s
                run.said += _complaints(message.delta.new_element)
            case "script_finished":
                return message.script_finished in _FINISHED
            case _:
                pass
        return False


def _complaints(element: Any) -> list[str]:
    """Return what the page says went wrong with itself; what it says of the fleet is its work."""
    kind = element.WhichOneof("type")
    if kind == "exception":
        return [element.exception.message]
    if kind == "alert" and any(words in element.alert.body for words in _FAILED):
        return [element.alert.body]
    return []


@asynccontextmanager
async def opened(port: int, page: str, query: str = "") -> AsyncGenerator[Session]:
    """A session that has asked for nothing yet. `page` is its address without the slash."""
    async with connect(
        f"ws://127.0.0.1:{port}/_stcore/stream",
        subprotocols=[Subprotocol("streamlit")],
        max_size=None,
        compression=None,
        open_timeout=PATIENCE_S,
        ping_interval=None,
    ) as socket:
        yield Session(socket, page, query)


async def ticks(session: Session, period_s: float, seconds: float, offset_s: float) -> list[Run]:
    """Tick every live part of a page each `period_s` for `seconds`, as a browser's timers do."""
    found: list[Run] = []
    loop = asyncio.get_running_loop()
    begun_s = loop.time() + offset_s
    number = 0
    while number * period_s < seconds:
        due_s = begun_s + number * period_s
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        found.extend([await session.run(fragment) for fragment in list(session.fragments)])
        number += 1
    return found
