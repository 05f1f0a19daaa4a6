"""The four views of the alerts page: what is open now, what is over, the rules, and what people were told.

Prevents: an empty table where a sentence belongs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import streamlit as st

from control.queries_alerts import AlertBook, AlertEntry
from dashboard import alert_controls, components
from dashboard import tables_alerts as tables
from dashboard import viewmodels_alerts as vm
from dashboard.times import Zone


def now(book: AlertBook, entry: AlertEntry | None, at: datetime, zone: Zone) -> None:
    """Draw what is unresolved, under who looks after it; `entry` stands above already."""
    for heading, entries in vm.by_state(book).items():
        others = [e for e in entries if e is not entry]
        if others or heading == "Open":
            st.subheader(heading)
        if heading == "Open" and not entries:
            st.markdown("Nothing is open.")
        for together in vm.grouped(others):
            alert_controls.group(together, at, zone, vm.watch(book))


def over(book: AlertBook, _entry: AlertEntry | None, at: datetime, zone: Zone) -> None:
    """Draw what was resolved lately."""
    if book.resolved:
        components.table(vm.over_rows(book.resolved, at, zone), tables.OVER, key="over", is_wrapped=True)
    st.caption(vm.over_text(book.resolved))


def rules(book: AlertBook, _entry: AlertEntry | None, _at: datetime, _zone: Zone) -> None:
    """Draw the rules in force."""
    components.table(vm.rule_rows(book.rules), tables.RULES, key="rules", is_wrapped=True)


def notices(book: AlertBook, _entry: AlertEntry | None, at: datetime, zone: Zone) -> None:
    """Draw where notices go, and which went."""
    if book.webhooks:
        components.table(
            vm.webhook_rows(book.webhooks, at, zone), tables.WEBHOOKS, key="webhooks", is_wrapped=True
        )
    if book.notices:
        components.table(
            vm.notice_rows(book.notices, at, zone), tables.NOTICES, key="notices", is_wrapped=True
        )
    st.caption(vm.notices_text(book))


VIEWS: dict[str, Callable[[AlertBook, AlertEntry | None, datetime, Zone], None]] = {
    "Now": now,
    "Over": over,
    "Rules": rules,
    "Notices": notices,
}
