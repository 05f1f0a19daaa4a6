"""What the Sizing page reads of the fleet: what the nodes of each pool run.

Prevents: a page that asks for launches in its own way.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from control.queries_pools import pool_table
from control.queries_sizing import launches
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps
from fleet.sizing_flags import Launch


def _launches(session: Any, _of: Deps, now: datetime) -> dict[str, dict[str, Launch]]:
    return {pool.name: launches(session, pool.name, now=now) for pool in pool_table(session)}


QUESTIONS["launches"] = _launches


def every_launch() -> Reading[dict[str, dict[str, Launch]]]:
    """What each node runs, by pool and name."""
    return ask("launches")
