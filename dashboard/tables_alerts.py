"""How the tables of the alerts page look: labels and widths. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config

OVER: dict[str, Any] = {
    "severity": column.TextColumn("Severity", width=80),
    "what": column.TextColumn("What"),
    "subject": column.TextColumn("Of"),
    "opened": column.TextColumn("Opened"),
    "lasted": column.TextColumn("Lasted", width=80),
    "ended": column.TextColumn("Ended"),
    "why": column.TextColumn("How it ended"),
    "by": column.TextColumn("Who had it"),
    "told": column.TextColumn("People", width=80),
    "said": column.TextColumn("Said last", width=330),
}
RULES: dict[str, Any] = {
    "rule": column.LinkColumn("Rule", display_text=r"runbook=(.+)$", help="Opens its runbook"),
    "what": column.TextColumn("What"),
    "about": column.TextColumn("Of"),
    "state": column.TextColumn("State", width=70),
    "severity": column.TextColumn("Severity", width=80),
    "opens": column.TextColumn("Opens", width=260),
    "resolves": column.TextColumn("Resolves"),
    "by": column.TextColumn("Numbers by"),
}
WEBHOOKS: dict[str, Any] = {
    "webhook": column.TextColumn("Webhook"),
    "kind": column.TextColumn("Kind", width=100),
    "url": column.TextColumn("Address"),
    "state": column.TextColumn("State"),
    "taken": column.TextColumn("Last taken"),
    "pending": column.NumberColumn("On the way", width=80),
    "dead": column.NumberColumn("Given up", width=80),
    "failed": column.TextColumn("Last failure", width=330),
}
NOTICES: dict[str, Any] = {
    "at": column.TextColumn("When"),
    "kind": column.TextColumn("Kind", width=80),
    "rule": column.TextColumn("Rule"),
    "said": column.TextColumn("Said", width=330),
    "to": column.TextColumn("To", width=260),
}
