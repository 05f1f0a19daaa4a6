"""What the node page reads of latency over time, from rounds or from what was rolled up of them.

Prevents: a table over a day that hides the hour in which it went wrong.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from control.queries_history import LatencyPoint, latency_timeline
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps


def _first_tokens(session: Any, _of: Deps, now: datetime, node: str, span_s: int) -> list[LatencyPoint]:
    since = now - timedelta(seconds=span_s)
    return latency_timeline(session, "ttft_s", "node", node, since, now)


QUESTIONS["first_tokens"] = _first_tokens


def first_tokens(node: str, span_s: int) -> Reading[list[LatencyPoint]]:
    """Time to first token at a node's engines in equal buckets of the last `span_s` seconds."""
    return ask("first_tokens", node, span_s)
