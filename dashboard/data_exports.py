"""What the exports panel reads: destinations, and what became of each file.

Prevents: a page that says a file was dropped because it should have been.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from control.export_destinations import Delivery, deliveries, destinations
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps


@dataclass(frozen=True, slots=True)
class Drops:
    """Names of the destinations in use, and files: pending ones first, then the newest."""

    destinations: tuple[str, ...]
    deliveries: tuple[Delivery, ...]


def _drops(session: Any, _of: Deps, _now: datetime) -> Drops:
    names = tuple(row.name for row in destinations(session))
    return Drops(names, tuple(deliveries(session, limit=20)))


QUESTIONS["export_drops"] = _drops


def drops() -> Reading[Drops]:
    """Where files are dropped by themselves, and how that went."""
    return ask("export_drops", is_brief=True)
