"""The flow page in words: a level queue is only called well where the load fits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from control.flow_store import FlowNow
from dashboard import viewmodels_flow as vm
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
    rows = vm.subject_rows([now], NOW, UTC_ZONE, 30.0)
    assert ("\u2713" in rows["state"][0]) == (tone == "good")
    assert vm.balance_card(now, is_old=True).tone == "unknown"


def test_signals_name_tiers_as_people_do() -> None:
    late = {
        "rule": "starvation", "scope": "tier", "subject": "best_effort", "value": 0.95,
        "summary": "tier best_effort: somebody waits",
    }  # fmt: skip
    rows = vm.other_rows([state(others=[late])])
    assert rows["subject"] == ["tier best-effort"]
    assert rows["words"] == ["tier best-effort: somebody waits"]
    assert "above" in rows["state"][0]  # 0.95 of the longest wait allowed; bad from 0.9


def test_what_the_machine_calls_unstable_stays_so_whatever_rho_says() -> None:
    assert vm.balance_look(state("unstable", rho=0.4))[:2] == ("unstable", "act")
