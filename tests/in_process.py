"""Closes in-process aiohttp servers without leaving a transport behind.

Owns: the end of servers that tests run inside their own process. Prevents: a connection accepted in the
last turn of a loop, or one whose peer reads no more, that the garbage collector finds during a later
test and blames on it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from aiohttp import web

#: Turns of the loop until an accepted connection is known to its server, and until an aborted one is gone.
_TURNS = 5


async def close(runner: web.AppRunner) -> None:
    """Stop listening, cut every connection, run the application's cleanup."""
    for site in list(runner.sites):
        await site.stop()
    await _turn()
    server = runner.server
    transports = [] if server is None else [handler.transport for handler in server.connections]
    await runner.cleanup()
    for transport in transports:
        if transport is not None:
            transport.abort()
    await _turn()


@contextlib.asynccontextmanager
async def closed(runner: web.AppRunner) -> AsyncGenerator[web.AppRunner]:
    """Set `runner` up; close it deterministically when the block ends."""
    await runner.setup()
    try:
        yield runner
    finally:
        await close(runner)


async def _turn() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
