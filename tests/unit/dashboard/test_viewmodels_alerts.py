"""Alerts in words: who has what, where the cause shows, what can be silenced, what the frame says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from control.alert_silences import Silence
from control.queries_alerts import AlertBook, AlertCount, AlertEntry, WebhookView
from dashboard import viewmodels_alerts as vm
from dashboard.runbooks import runbook
from dashboard.state import RANGES
from dashboard.times import UTC_ZONE
from fleet.alert_rules import RULES

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def entry(number: int = 1, **changes: Any) -> AlertEntry:
    made = AlertEntry(
        id=number, rule="node_silent", scope="node", subject=f"n{number}", pool="h100", state="open",
        severity="warning", opened_at=NOW - timedelta(minutes=5), updated_at=NOW, age_s=300.0,
        acknowledged_at=None, acknowledged_by=None, resolved_at=None, notified_at=NOW, value=1.0,
        threshold=0.5, summary="n1 gives no metrics: refused",
    )  # fmt: skip
    return replace(made, **changes)


def silence(**changes: Any) -> Silence:
    made = Silence(
        1,
        "node_silent",
        None,
        None,
        "h100",
        "moving racks",
        NOW,
        "ada",
        NOW + timedelta(hours=2),
        None,
        None,
    )
    return replace(made, **changes)


def book(*entries: AlertEntry, webhooks: tuple[WebhookView, ...] = ()) -> AlertBook:
    return AlertBook(entries, (), (), (), webhooks, ())


def hook(**changes: Any) -> WebhookView:
    made = WebhookView("pager", "generic", "https://p/", "p", NOW, "ada", NOW, None, None, 0, 0)
    return replace(made, **changes)


def test_each_alert_stands_under_one_heading() -> None:
    has = entry(2, acknowledged_at=NOW, acknowledged_by="bo", state="acknowledged")
    hidden = entry(3, silence=silence())
    both = entry(4, acknowledged_at=NOW, acknowledged_by="bo", silence=silence())
    found = vm.by_state(book(entry(1), has, hidden, both))
    assert {name: [e.id for e in entries] for name, entries in found.items()} == {
        "Open": [1],
        "Acknowledged": [2, 4],
        "Silenced": [3],
    }


@pytest.mark.parametrize(
    ("webhooks", "word"),
    [
        ((), "nobody is told"),
        ((hook(),), "delivered"),
        ((hook(pending=2),), "2 on the way"),
        ((hook(pending=2, dead=1),), "1 given up"),
    ],
)
def test_the_card_says_whether_people_hear(webhooks: tuple[WebhookView, ...], word: str) -> None:
    assert vm.cards(book(webhooks=webhooks))[-1].word == word


def test_a_stale_alert_says_that_nobody_knows() -> None:
    said = vm.row(entry(state="stale"), NOW, UTC_ZONE)
    assert said.word == "stale"
    assert "nobody knows whether it is over" in said.since


def test_while_nobody_judges_an_open_alert_is_unknown_since_the_last_round() -> None:
    last = NOW - timedelta(minutes=12)
    stopped = replace(book(entry(severity="critical")), unknown_since=last)
    said = vm.row(stopped.unresolved[0], NOW, UTC_ZONE, vm.watch(stopped))
    assert (said.tone, said.word) == ("unknown", "critical, unknown now")
    assert "unknown since 12 min ago" in said.since
    card = vm.cards(stopped)[0]
    assert (card.tone, card.word) == ("unknown", "as of the last round")
    assert "12 min ago" in vm.stopped_text(last, NOW, UTC_ZONE)
    badge = AlertCount(1, 1, last)
    assert vm.badge(badge) == "1 alert, stale"
    assert vm.badge_icon(badge) == vm.badge_icon(None)
    assert "11:48 UTC" in vm.badge_help(badge)
    over = entry(state="resolved", resolved_at=NOW)
    assert "unknown" not in vm.row(over, NOW, UTC_ZONE, vm.watch(stopped)).since


def test_who_will_be_told_is_only_promised_where_there_is_somebody_to_tell() -> None:
    fresh = entry(notified_at=None)
    assert "not told yet" in vm.row(fresh, NOW, UTC_ZONE, vm.watch(book(fresh, webhooks=(hook(),)))).since
    alone = vm.row(fresh, NOW, UTC_ZONE, vm.watch(book(fresh))).since
    assert "not told yet" not in alone
    assert "no webhook is registered" in alone


@pytest.mark.parametrize(
    ("age_s", "name"), [(0, "15m"), (750, "15m"), (751, "1h"), (20_000, "24h"), (1e9, "30d")]
)
def test_the_way_to_the_cause_opens_a_range_that_holds_the_beginning(age_s: float, name: str) -> None:
    # 15 min hold what is up to 750 s old with a fifth of it as room before
    assert vm.range_holding(age_s) == name
    assert name in RANGES


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_leads_to_a_page_and_to_its_runbook(rule: str) -> None:
    scope = RULES[rule].scopes[0]
    page, link, query = vm.cause(entry(rule=rule, scope=scope), NOW)
    assert page.startswith("app_pages/")
    assert link
    assert query["mark"] == "1"
    text = runbook(rule)
    assert text is not None
    assert "What to turn" in text


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "README", "no_such_rule"])
def test_only_runbooks_of_rules_are_read(name: str) -> None:
    assert runbook(name) is None


def test_links_between_runbooks_stay_on_the_page() -> None:
    text = runbook("saturation")
    assert text is not None
    assert "](/alerts?runbook=rho_high)" in text
    assert ".md)" not in text


def test_alerts_told_together_are_shown_together() -> None:
    other = entry(9, pool="a100")
    groups = vm.grouped([entry(1), other, entry(2), entry(3), entry(4)])
    assert [[e.id for e in group] for group in groups] == [[1, 2, 3, 4], [9]]
    assert vm.group_text(groups[0]) == "4 x Node gives no metrics of pool h100: n1, n2, n3 and 1 more"


def test_the_narrowest_silence_is_offered_first_and_all_match_the_alert() -> None:
    offered = vm.silence_choices(entry(1))
    assert next(iter(offered)) == "node_silent of n1"
    seen = {"rule": "node_silent", "scope": "node", "subject": "n1", "pool": "h100"}
    for matchers in offered.values():
        assert matchers.items() <= seen.items()
    fleet = vm.silence_choices(entry(rule="rho_high", scope="fleet", subject="", pool=None))
    assert list(fleet) == ["rho_high of the fleet", "rho_high everywhere"]


def test_the_frame_never_says_none_for_unknown() -> None:
    assert vm.badge(None) == "alerts: unknown"
    assert vm.badge(AlertCount(0, 0)) == "no alerts"
    assert vm.badge(AlertCount(1, 0)) == "1 alert"
    icons = {vm.badge_icon(None), vm.badge_icon(AlertCount(0, 0)), vm.badge_icon(AlertCount(2, 0))}
    assert len(icons | {vm.badge_icon(AlertCount(2, 1))}) == 4  # told apart without colour
    assert vm.badge_help(AlertCount(3, 1)).startswith("1 critical alert ")


def test_a_webhook_that_failed_last_is_failing_until_it_takes_again() -> None:
    earlier = NOW - timedelta(minutes=1)
    rows = vm.webhook_rows(
        [
            hook(last_error="status 500", last_error_at=NOW, last_ok_at=earlier),
            hook(last_error="status 500", last_error_at=earlier, last_ok_at=NOW),
            hook(last_ok_at=None),
            hook(dead=3),
        ],
        NOW,
        UTC_ZONE,
    )
    assert [state.split(" ", 1)[1] for state in rows["state"]] == [
        "failing",
        "taking",
        "not used yet",
        "given up 3",
    ]
