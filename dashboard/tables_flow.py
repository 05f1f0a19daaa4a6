"""How the flow page's tables look: labels, units. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config


def _figure(label: str, help_: str | None = None, *, width: int = 85) -> Any:
    """Return a column of formatted numbers: text, set right so that digits stand under digits."""
    return column.TextColumn(label, help=help_, alignment="right", width=width)


SIGNALS: dict[str, Any] = {
    "signal": column.TextColumn("Signal", width=85),
    "state": column.TextColumn("State", width=110),
    "evidence": column.TextColumn("Evidence", width=385),
}
STAGES: dict[str, Any] = {
    "stage": column.TextColumn("Stage", width=110),
    "held": _figure("In the stage, L", "Requests in the stage, on average over the minute", width=105),
    "rate": _figure("Left, X", "Requests a second that left it", width=80),
    "time": _figure("Mean time, W", "Of those that left", width=95),
    "explained": _figure("X W", "Places that those who left account for", width=60),
    "residual": _figure("L - X W", "Above 0: requests grow old inside. Below 0: old ones leave", width=70),
    "share": _figure("of L", "The residual as part of L", width=60),
}
TAILS: dict[str, Any] = {
    "of": column.TextColumn("Time", width=88),
    "quantile": column.TextColumn("Quantile", width=70),
    "time": _figure("W at it", "The bucket it lies in is the honest interval", width=100),
    "budget": _figure(
        "Places", "lambda W: needed if every request took this long. No percentile of L", width=112
    ),
    "held": _figure("Slowest hold", "Places held on average by the requests slower than this", width=118),
    "share": _figure("of all places", "What part of the places those slowest requests hold", width=94),
}
SUBJECTS: dict[str, Any] = {
    "subject": column.LinkColumn("Queue", display_text=r"#(.+)$", width=140),
    "state": column.TextColumn("Balance", width=115),
    "doubling": _figure("p99 doubles in", width=102),
    "minutes": column.NumberColumn("Minutes", width=68, help="Whole minutes it is judged from"),
    "as of": column.TextColumn("As of", width=150),
}
OTHERS: dict[str, Any] = {
    "state": column.TextColumn("State", width=80),
    "rule": column.TextColumn("What", width=125),
    "subject": column.TextColumn("Of", width=125),
    "value": column.TextColumn("Value", alignment="right", width=60),
    "limit": column.TextColumn("Bad above", alignment="right", width=85),
    "words": column.TextColumn("In words", width=595),
}
SHARES: dict[str, Any] = {
    "tier": column.TextColumn("Tier", width=110),
    "tenant": column.TextColumn("Tenant", width=130),
    "share": _figure("Got", "Of the tier's tokens, last five minutes"),
    "weight": _figure("Weight", "Its weight among the tenants that were there"),
    "due": _figure("Due", "Weighted max-min over what each asked for"),
    "state": column.TextColumn("Backlogged", width=95),
}
