"""What the policy page reads of limits in shadow: what each would have refused in the last hour.

Prevents: a page that shows none where nobody counted.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from control.queries_gateway_traffic import shadow_refusals
from control.status_report import SHADOW_WINDOW
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps


def _shadow_refusals(session: Any, _of: Deps, now: datetime) -> dict[str, int] | None:
    return shadow_refusals(session, now - SHADOW_WINDOW, now)


QUESTIONS["shadow_refusals"] = _shadow_refusals


def would_refuse() -> Reading[dict[str, int] | None]:
    """Requests by limit in shadow; None where no gateway says."""
    return ask("shadow_refusals")
