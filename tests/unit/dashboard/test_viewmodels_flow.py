"""The flow page in words: a level queue is only called well where the load fits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from control.flow_store import FlowNow
from dashboard import viewmodels_flow as vm
from dashboard import viewmodels_flow_signals as signals
from dashboard.times import UTC_ZONE

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def state(balance: str | None = "equilibrium", **detail: Any) -> FlowNow:
    return FlowNow("tier", "interactive", NOW, balance, False, None, 12, detail)


def signal(name: str, *, is_raised: bool) -> dict[str, Any]:
    return {"name": name, "is_raised": is_raised, "evidence": "412 wait"}


@pytest.mark.parametrize(
    ("rho", "raised", "value", "tone"),
    [
        (0.6, False, "equilibrium", "good"),
        (0.6, True, "equilibrium", "watch"),  # more wait than can start in time
        (None, False, "equilibrium", "plain"),
        (1.0, False, "overloaded", "act"),  # at 1 a queue never settles: refusals hold it level
        (2.6, True, "overloaded", "act"),
    ],
)
def test_a_level_queue_is_green_only_where_the_load_fits_and_nothing_is_raised(
    rho: float | None, raised: bool, value: str, tone: str
) -> None:
    now = state(rho=rho, signals=[signal("flow", is_raised=False), signal("backlog", is_raised=raised)])
    card = vm.balance_card(now, is_old=False)
    assert (card.value, card.tone) == (value, tone)
    rows = vm.subject_rows([now], NOW, UTC_ZONE, [now])
    assert ("\u2713" in rows["state"][0]) == (tone == "good")
    assert vm.balance_card(now, is_old=True).tone == "unknown"


def test_signals_name_tiers_as_people_do() -> None:
    late = {
        "rule": "starvation", "scope": "tier", "subject": "best_effort", "value": 0.95,
        "summary": "tier best_effort: somebody waits",
    }  # fmt: skip
    rows = signals.other_rows([state(others=[late])], is_above=True)
    assert rows["subject"] == ["tier best-effort"]
    assert rows["words"] == ["tier best-effort: somebody waits"]
    assert "above" in rows["state"][0]  # 0.95 of the longest wait allowed; bad from 0.9


def other(rule: str, value: float | None) -> dict[str, Any]:
    return {"rule": rule, "scope": "fleet", "subject": "", "value": value, "summary": rule}


def test_what_is_above_its_limit_stands_apart_and_the_unknown_is_counted() -> None:
    # bad above 9 (burst), 6 (slow burn), 0.9 (longest wait), 1 (KV): a value at its limit is not above it
    found = [state(others=[other("burst", 3.0), other("slo_burn_slow", 6.0), other("starvation", 0.95)])]
    found.append(state(others=[other("kv_exhaustion", None)]))
    assert signals.other_rows(found, is_above=True)["rule"] == ["longest wait"]
    rest = signals.other_rows(found, is_above=False)
    assert rest["rule"] == ["budget burn, slow", "burst", "KV in 5 minutes"]  # nearest first, unknown last
    assert signals.others_text(found) == "1 of 4 above the limit; 1 not known."
    assert signals.others_text([state(others=[other("burst", 3.0)])]) == "None of 1 above its limit."
    assert signals.others_text([]).startswith("Not known")  # nobody judged: that is not "none"


def test_a_queue_reads_as_people_write_it_and_its_link_finds_it() -> None:
    shown = vm.label("tier", "best_effort")
    assert shown == "tier best-effort"
    assert vm.subject_of(shown) == ("tier", "best_effort")
    assert vm.subject_of(vm.label("tenant", "best_effort")) == (
        "tenant",
        "best_effort",
    )  # a tenant's own name
    tier = FlowNow("tier", "best_effort", NOW, "equilibrium", False, None, 12, {})
    (link,) = vm.subject_rows([tier], NOW, UTC_ZONE, [tier])["subject"]
    assert link == "/flow?subject=tier%20best-effort#tier best-effort"
    odd = FlowNow("pool", "a&b#c", NOW, "equilibrium", False, None, 12, {})
    (link,) = vm.subject_rows([odd], NOW, UTC_ZONE, [])["subject"]
    assert vm.subject_rows([odd], NOW, UTC_ZONE, [])["state"] == ["? not known"]
    assert link.partition("#")[0] == "/flow?subject=pool%20a%26b%23c"


def test_what_the_machine_calls_unstable_stays_so_whatever_rho_says() -> None:
    assert vm.balance_look(state("unstable", rho=0.4))[:2] == ("unstable", "act")
