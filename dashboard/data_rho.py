"""What pages read of every rho: the newest verdicts of the fleet, its pools, models and tiers.

Prevents: a page that asks for verdicts in its own way.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from control.queries_fleet import HealthView
from control.queries_rho import verdicts
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps


def _rho(session: Any, _of: Deps, now: datetime) -> list[HealthView]:
    return verdicts(session, now)


QUESTIONS["rho"] = _rho


def every_rho() -> Reading[list[HealthView]]:
    """The newest verdicts of the fleet, pools, models and tiers."""
    return ask("rho")
