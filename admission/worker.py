"""The task that handles the requests of one client connection, one after another.

It waits between two of them: to make a task for each, and to let it go, costs several times what waking one
costs. Prevents: a handler's end without an answer that nobody notices, and a task that outlives its
connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from admission import request_lines

if TYPE_CHECKING:
    from collections import deque

    from admission.clients import Listener
    from admission.http_server import Connection
    from admission.inbound import Inbound


class Worker:
    """Runs the listener's handler for one connection."""

    __slots__ = ("_connection", "_listener", "_loop", "_task", "_turn")

    def __init__(self, connection: Connection, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self._connection, self._listener, self._loop = connection, listener, loop
        self._turn: asyncio.Future[Inbound | None] | None = None  # of the next request; None: there is none
        self._task: asyncio.Task[None] | None = None  # which waits for that

    def begin(self, request: Inbound) -> None:
        """Have a request handled, in the next turn of the loop. Its `task` is what to cancel."""
        turn, self._turn = self._turn, None
        task, self._task = self._task, None
        if turn is None or turn.done():  # the first, or the one before is not quite done
            task = self._loop.create_task(self._serve(request), name="request")
        else:
            turn.set_result(request)
        request.task = task

    def end(self) -> None:
        """Wait for no more requests."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    async def _serve(self, request: Inbound | None) -> None:
        """Handle it, and what follows. While it waits it holds no request."""
        while request is not None:
            told = request_lines.FAULT
            try:
                await self._listener.handler(request)
            except asyncio.CancelledError:
                told = request_lines.LEAVING  # the process ends and does not wait for the rest of its body
                raise
            finally:
                if not request.has_ended and not request.has_left:
                    self._connection.unanswered(request, told)
            if self._turn is not None or not self._connection.is_between:
                return  # another task took over, or there is nothing to wait for
            turn = self._turn = self._loop.create_future()
            self._task, request = request.task, None
            request = await turn


def leave(current: Inbound | None, waiting: deque[Inbound]) -> None:
    """Tell the requests of a connection, the one at work and those behind it, that their client left."""
    left = [*waiting] if current is None else [current, *waiting]
    waiting.clear()
    for request in left:
        request.left()
