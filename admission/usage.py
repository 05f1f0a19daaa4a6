"""Brings usage records to the disk in batches, away from the event loop.

Times are seconds. A record is flushed within `FLUSH_EVERY_S`, and always before it is served. Prevents:
a disk flush standing in the path of every request.
"""

from __future__ import annotations

import asyncio
import logging

from admission.usage_spool import UsageSpool
from fleet.errors import Unavailable

log = logging.getLogger(__name__)

FLUSH_EVERY_S = 0.1


class UsageFlusher:
    """Flushes one spool; `run` until cancelled."""

    def __init__(self, spool: UsageSpool) -> None:
        self._spool = spool
        self._flushing = asyncio.Lock()
        self.failures = 0

    async def run(self) -> None:
        """Flush what is new, again and again."""
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            if self._spool.needs_flush:
                try:
                    await self.flush()
                except Unavailable as exc:
                    log.error("usage spool cannot be flushed", extra={"reason": exc.message})

    async def flush(self) -> None:
        """Return once all records written so far are on disk. Raises Unavailable when the disk refuses."""
        async with self._flushing:
            self._spool.write_held()
            if not self._spool.needs_flush:
                return
            try:
                await asyncio.to_thread(self._spool.flush)
            except OSError as exc:
                self.failures += 1
                raise Unavailable(
                    f"usage records cannot be flushed: {exc.strerror}", hint="Free space in --state-dir"
                ) from exc
