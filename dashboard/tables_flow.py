"""How the flow page's tables look: labels, units. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config


def _figure(label: str, help_: str | None = None) -> Any:
    """Return a column of formatted numbers: text, set right so that digits stand under digits."""
    return column.TextColumn(label, help=help_, alignment="right")


SIGNALS: dict[str, Any] = {
    "signal": column.TextColumn("Signal", width=90),
    "state": column.TextColumn("State", width=120),
    "evidence": column.TextColumn("Evidence", width="large"),
}
STAGES: dict[str, Any] = {
    "stage": column.TextColumn("Stage", width=130),
    "held": _figure("In the stage, L", "Requests in the stage, on average over the minute"),
    "rate": _figure("Left, X", "Requests a second that left it"),
    "time": _figure("Mean time, W", "Of those that left"),
    "explained": _figure("X W", "Places that those who left account for"),
    "residual": _figure("L - X W", "Above 0: requests grow old inside. Below 0: old ones leave"),
    "share": _figure("of L", "The residual as part of L"),
}
TAILS: dict[str, Any] = {
    "of": column.TextColumn("Time", width=140),
    "quantile": column.TextColumn("Percentile", width=90),
    "time": _figure("W at it", "The bucket it lies in is the honest interval"),
    "budget": _figure(
        "Concurrency budget", "lambda W: places needed if every request took this long. No percentile of L"
    ),
    "held": _figure("Slowest hold", "Places held on average by the requests slower than this"),
    "share": _figure("of all places", "What part of the places those slowest requests hold"),
}
SUBJECTS: dict[str, Any] = {
    "subject": column.LinkColumn("Queue", display_text=r"subject=(.+)$"),
    "state": column.TextColumn("Balance", width=150),
    "doubling": _figure("p99 doubles in"),
    "minutes": column.NumberColumn("Minutes behind it"),
    "as of": column.TextColumn("As of"),
}
OTHERS: dict[str, Any] = {
    "state": column.TextColumn("State", width=90),
    "rule": column.TextColumn("What", width=125),
    "subject": column.TextColumn("Of", width=140),
    "value": column.TextColumn("Value", alignment="right", width=60),
    "limit": column.TextColumn("Bad above", alignment="right", width=80),
    "words": column.TextColumn("In words", width=580),
}
SHARES: dict[str, Any] = {
    "tier": column.TextColumn("Tier", width=110),
    "tenant": column.TextColumn("Tenant"),
    "share": _figure("Got", "Of the tier's tokens, last five minutes"),
    "weight": _figure("Weight", "Its weight among the tenants that were there"),
    "due": _figure("Due", "Weighted max-min over what each asked for"),
    "state": column.TextColumn("Backlogged"),
}
