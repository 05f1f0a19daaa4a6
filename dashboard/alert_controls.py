"""What operators do about alerts: acknowledge, silence with an end, change a rule, call a webhook again.

A dialog stands outside the live part, so that a tick does not close it. Prevents: a silence somebody sets
for ever in a hurry, and a click that waits for the next tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any

import streamlit as st

from control.alert_rule_store import RuleView
from control.alert_silences import Silence
from control.queries_alerts import AlertBook, AlertEntry, WebhookView
from control.roles import Permission
from dashboard import access, actions_alerts, components, state, words
from dashboard import viewmodels_alerts as vm
from dashboard.dialogs import dialog
from dashboard.runbooks import runbook
from dashboard.times import Zone
from fleet.alert_rules import Severity
from fleet.errors import FleetError

LENGTHS: dict[str, float] = {"30 min": 1800, "2 h": 7200, "8 h": 28_800, "24 h": 86_400, "7 d": 604_800}
_ASKED = "alert_to_silence"


def group(entries: Sequence[AlertEntry], at: datetime, zone: Zone, how: vm.Watch) -> None:
    """Draw alerts that belong together: few of them one by one, many behind one line with one button."""
    if len(entries) < vm.FOLDED_FROM:
        for entry in entries:
            row(vm.row(entry, at, zone, how))
        return
    may_not = access.current().may_not(Permission.ACKNOWLEDGE_ALERTS)
    free = [entry.id for entry in entries if entry.acknowledged_at is None]
    with st.expander(words.plain(vm.group_text(entries)), key=f"group_{entries[0].id}"):
        if free and st.button(
            f"Acknowledge all {len(free)}",
            key=f"acknowledge_all_{entries[0].id}",
            disabled=may_not is not None,
            help=may_not or "Say that you look after all of them.",
        ):
            _done(partial(actions_alerts.acknowledge_all, free), f"{len(free)} alerts are acknowledged.")
        for entry in entries:
            row(vm.row(entry, at, zone, how))


def row(item: vm.Row, *, is_linked: bool = False) -> None:
    """Draw one alert: what it says, and below it where to look and what can be done."""
    colour, icon = words.LOOKS[item.tone]
    with st.container(border=is_linked, gap="xxsmall"):
        with st.container(horizontal=True, wrap=False, vertical_alignment="top", gap="small"):
            st.badge(item.word, icon=icon, color=colour)  # pyright: ignore[reportArgumentType]
            st.markdown(
                f"**{words.plain(item.title)}**: {words.with_code(item.text)}  \n"
                f":small[{words.plain(item.since)}]",
                width="stretch",
            )
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            _buttons(item)
        if is_linked:
            components.lines(item.lines or ("No further numbers were kept.",))


def _buttons(item: vm.Row) -> None:
    may_not = access.current().may_not(Permission.ACKNOWLEDGE_ALERTS)
    st.page_link(item.page, label=f"Look: {item.link}", query_params=item.query)
    if st.button("Runbook", key=f"runbook_{item.id}", type="tertiary", help="What it means and what to do"):
        st.query_params["runbook"] = item.rule
        st.rerun()
    if item.can_acknowledge and st.button(
        "Acknowledge",
        key=f"acknowledge_{item.id}",
        disabled=may_not is not None,
        help=may_not or "Say that you look after it; everybody sees who does.",
    ):
        _done(partial(actions_alerts.acknowledge, item.id), f"Alert {item.id} is acknowledged.")
    if item.can_silence and st.button(
        "Silence",
        key=f"silence_{item.id}",
        disabled=may_not is not None,
        help=may_not or "Tell nobody about it for a while.",
    ):
        st.session_state[_ASKED] = item.id
        st.rerun()


def _done(change: Any, said: str) -> None:
    try:
        change()
    except FleetError as exc:
        components.failure(exc, title="Nothing was changed")
        return
    state.flash(said)
    st.rerun()


def dialogs(book: AlertBook | None) -> None:
    """Open the dialog that was asked for, once."""
    asked = st.session_state.pop(_ASKED, None)
    entry = next((e for e in book.unresolved if e.id == asked), None) if book is not None else None
    if entry is not None:
        silence_dialog(entry)


@dialog("Silence")
def silence_dialog(entry: AlertEntry) -> None:
    """Show the dialog."""
    silence_body(entry)


def silence_body(entry: AlertEntry) -> None:
    """Ask what to be silent about, for how long and why."""
    choices = vm.silence_choices(entry)
    chosen = st.radio("Tell nobody about", list(choices), key="silence_what")
    length = st.segmented_control("For", list(LENGTHS), default="2 h", required=True, key="silence_length")
    reason = st.text_input("Reason", key="silence_reason", max_chars=500)
    st.caption("Alerts go on to open and show. When it ends, people are told about what is still open.")
    if st.button("Silence", key="silence_confirm", type="primary"):
        _done(
            lambda: actions_alerts.silence(
                choices[chosen], length_s=LENGTHS[length or "2 h"], reason=reason or ""
            ),
            f"Silenced for {length}: {chosen}.",
        )


def silences(held: Sequence[Silence], zone: Zone) -> None:
    """Draw the silences that hold, each with the button that ends it."""
    may_not = access.current().may_not(Permission.ACKNOWLEDGE_ALERTS)
    for silence in held:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown(words.plain(vm.silence_text(silence, zone)), width="stretch")
            if st.button("End", key=f"unsilence_{silence.id}", disabled=may_not is not None, help=may_not):
                _done(partial(actions_alerts.unsilence, silence.id), f"Silence {silence.id} is over.")


def change_rule(views: Sequence[RuleView]) -> None:
    """Draw the form that changes one rule's numbers."""
    may_not = access.current().may_not(Permission.MANAGE_ALERTS)
    by_name = {view.rule.name: view for view in views}
    name = st.selectbox("Rule", list(by_name), key="rule", width=320)
    before = by_name[name]
    with st.form(f"change_{name}", border=False):
        given = _fields(before)
        note = st.text_input("Reason", key=f"rule_note_{name}", max_chars=200)
        is_saved = st.form_submit_button("Change", disabled=may_not is not None, help=may_not)
    if may_not:
        st.caption(words.plain(may_not))
    if is_saved:
        now = asdict(before.rule)
        values = {field: value for field, value in given.items() if value != now[field]}
        _done(lambda: actions_alerts.change_rule(name, values, note=note or ""), f"Rule {name} is changed.")
    if before.changes and st.button("As delivered", key=f"reset_{name}", disabled=may_not is not None):
        _done(lambda: actions_alerts.reset_rule(name), f"Rule {name} is as delivered.")


def _fields(view: RuleView) -> dict[str, Any]:
    """Draw a rule's fields and return what they hold."""
    rule, places = view.rule, components.places(3, min_px=180)
    labels = {
        "open_at": f"Opens at ({rule.unit})",
        "resolve_at": f"Resolves at ({rule.unit})",
        "open_after_s": "Opens after, s",
        "resolve_after_s": "Resolves after, s",
    }
    given: dict[str, Any] = {}
    for i, (field, label) in enumerate(labels.items()):
        with places[i % 3]:
            key = f"{field}_{rule.name}"
            given[field] = st.number_input(label, value=float(getattr(rule, field)), format="%g", key=key)
    with places[1]:
        options = [severity.value for severity in Severity]
        index = options.index(rule.severity.value)
        given["severity"] = st.selectbox("Severity", options, index=index, key=f"severity_{rule.name}")
    with places[2]:
        given["is_enabled"] = st.toggle("On", value=rule.is_enabled, key=f"enabled_{rule.name}")
    return given


def webhook_buttons(views: Sequence[WebhookView]) -> None:
    """Draw a test and, where notices were given up, another try for each webhook."""
    may_not = access.current().may_not(Permission.MANAGE_ALERTS)
    with st.container(horizontal=True):
        for view in views:
            name = view.name
            if st.button(f"Test {name}", key=f"test_{name}", disabled=may_not is not None, help=may_not):
                _done(partial(actions_alerts.test_webhook, name), f"A test for {name} is on its way.")
            if view.dead and st.button(
                f"Try {name} again", key=f"retry_{name}", disabled=may_not is not None, help=may_not
            ):
                _done(partial(actions_alerts.retry_webhook, name), f"{name} is tried again.")


def asked_runbook() -> None:
    """Draw the runbook the address names, if any."""
    rule = str(st.query_params.get("runbook", ""))
    if not rule:
        return
    text = runbook(rule)
    with st.container(border=True):
        if text is None:
            st.markdown("There is no such runbook here. See `docs/runbooks` of this release.")
        else:
            st.markdown(text)
        if st.button("Close", key="runbook_close", icon=":material/close:"):
            del st.query_params["runbook"]
            st.rerun()
