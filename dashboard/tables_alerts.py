"""How the tables of the alerts page look: labels and widths. Constants only.

Prevents: a column without its unit.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

column = st.column_config

OVER: dict[str, Any] = {
    "what": column.TextColumn("What", width=150),
    "subject": column.TextColumn("Of", width=85),
    "lasted": column.TextColumn("Lasted", width=70, alignment="right"),
    "ended": column.TextColumn("Ended", width=100),
    "why": column.TextColumn("How it ended", width=90),
    "told": column.TextColumn("People", width=65),
    "severity": column.TextColumn("Severity", width=80),
    "by": column.TextColumn("Who had it", width=90),
    "opened": column.TextColumn("Opened", width=110),
    "said": column.TextColumn("Said last", width=230),
}
RULES: dict[str, Any] = {
    "rule": column.LinkColumn("Rule", display_text=r"runbook=(.+)$", help="Opens its runbook", width=110),
    "what": column.TextColumn("What", width=140),
    "state": column.TextColumn("State", width=65),
    "opens": column.TextColumn("Opens", width=140),
    "resolves": column.TextColumn("Resolves", width=120),
    "severity": column.TextColumn("Severity", width=80),
    "about": column.TextColumn("Of", width=110),
    "by": column.TextColumn("Numbers by", width=90),
}
WEBHOOKS: dict[str, Any] = {
    "webhook": column.TextColumn("Webhook", width=90),
    "state": column.TextColumn("State", width=105),
    "taken": column.TextColumn("Last taken", width=100),
    "pending": column.NumberColumn("On the way", width=90),
    "dead": column.NumberColumn("Given up", width=80),
    "url": column.TextColumn("Address", width=150),
    "kind": column.TextColumn("Kind", width=100),
    "failed": column.TextColumn("Last failure", width=260),
}
NOTICES: dict[str, Any] = {
    "at": column.TextColumn("When", width=95),
    "kind": column.TextColumn("Kind", width=75),
    "said": column.TextColumn("Said", width=210),
    "to": column.TextColumn("To", width=170),
    "rule": column.TextColumn("Rule", width=110),
}
