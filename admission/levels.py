"""The levels of tenants' rate buckets on disk, so that a restart hands out no burst anew.

Owns `levels.json` of the state folder: tokens left in each bucket that is not full, and when they were
read. Written every second that something changed, and at the end. A killed gateway forgets at most what was
spent in its last second. What flowed back meanwhile is counted on the machine's monotonic clock, which goes
on from process to process; only after a reboot by wall time. Prevents: capacity minted by restarting a
gateway, or by a wall clock that jumped while it was away.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from admission.durable import write_whole
from fleet.accounts import Accounts
from fleet.clock import Clock
from fleet.messages import Assignment, Instant

log = logging.getLogger(__name__)

FILE_NAME = "levels.json"
SAVE_EVERY_S = 1.0


class Levels(BaseModel):
    """What the file holds. Tokens may be negative: a tenant in debt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_s: Instant
    tokens: dict[str, int] = Field(max_length=100_000)
    boot: str | None = None  # the machine's life; None: not known
    monotonic_s: float | None = None  # on the clock of that life


def machine_boot() -> str | None:
    """Return the name of the machine's life since it was switched on; None where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


@dataclass(slots=True)
class LevelKeeper:
    """Saves the levels of one gate and restores them once, with the first assignment."""

    folder: Path
    accounts: Accounts
    clock: Clock
    boot: str | None = field(default_factory=machine_boot)
    _is_restored: bool = False
    _saved: Mapping[str, int] | None = None
    _writing: threading.Lock = field(default_factory=threading.Lock)  # the last save may meet a running one

    def restore(self, _assignment: Assignment) -> None:
        """Lower the buckets to what an earlier process left. Call it on every assignment; the first counts.

        A file that cannot be read stands for empty buckets: never for full ones.
        """
        if self._is_restored:
            return
        self._is_restored = True
        try:
            found = Levels.model_validate_json((self.folder / FILE_NAME).read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as exc:
            log.error("bucket levels cannot be read; all start empty", extra={"reason": type(exc).__name__})
            self.accounts.resume(None, 0.0)
            return
        self.accounts.resume(found.tokens, self._elapsed_s(found))

    def _elapsed_s(self, found: Levels) -> float:
        if found.boot is not None and found.boot == self.boot and found.monotonic_s is not None:
            return max(0.0, self.clock.monotonic_s() - found.monotonic_s)
        return max(0.0, self.clock.now().timestamp() - found.at_s)

    async def run(self) -> None:
        """Save what changed, every second, until cancelled."""
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            levels = self.accounts.levels(self.clock.monotonic_s())
            if self._is_restored and levels != self._saved:
                await asyncio.to_thread(self._write, levels, *self._when())

    def save(self) -> None:
        """Save now: the last act of a gateway that stops."""
        if self._is_restored:
            self._write(self.accounts.levels(self.clock.monotonic_s()), *self._when())

    def _when(self) -> tuple[float, float]:
        """Return wall time and the monotonic clock."""
        return self.clock.now().timestamp(), self.clock.monotonic_s()

    def _write(self, levels: Mapping[str, int], at_s: float, monotonic_s: float) -> None:
        made = Levels.model_construct(
            at_s=at_s, tokens=dict(levels), boot=self.boot, monotonic_s=monotonic_s
        )
        content = made.model_dump_json().encode()
        with self._writing:
            try:
                write_whole(self.folder / FILE_NAME, content)
            except OSError as exc:
                log.error("bucket levels cannot be written", extra={"reason": exc.strerror})
                return
            self._saved = levels
