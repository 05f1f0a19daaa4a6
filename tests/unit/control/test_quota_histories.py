"""Parts of a quota through changes of leader, judged by I18; and a leader that does not learn first.

Virtual time, real parts (`tests.quota_fleet`): the gateways' leases, the controller's lending.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from control.quota_leases import QuotaLeases
from control.reconcile_store import Place
from fleet.quota_shares import FIELDS
from tests.oracles import history as h
from tests.oracles.history import History
from tests.oracles.invariants import i18_quota_conservation
from tests.quota_fleet import TENANT, PlayedFleet, arrivals

QUOTA = {
    "tokens_per_minute": 60_000,
    "burst_tokens": 2_000,
    "max_in_flight_tokens": 100_000,
    "max_concurrent_requests": 400,
}
STEP_S = 0.5
REQUEST_TOKENS = 50


class Rash(QuotaLeases):
    """A leader that grants from its first pass, without waiting for what the one before had granted."""

    async def _pass(self, places: Sequence[Place]) -> str:
        self._learns_until_s = 0.0
        return await super()._pass(places)


def run(fleet: PlayedFleet, seen: History, rng: random.Random, hot: str, seconds: float) -> None:
    """Offer 1.5 times the quota, most of it at one gateway; note who holds what after each step."""
    for _ in range(round(seconds / STEP_S)):
        for name, gateway in fleet.gateways.items():
            per_s = QUOTA["tokens_per_minute"] / 60 * (1.3 if name == hot else 0.1)
            for _ in range(arrivals(rng, per_s / REQUEST_TOKENS, STEP_S)):
                gateway.ask(REQUEST_TOKENS)
        fleet.step(STEP_S)
        for part in FIELDS:
            held = tuple(gateway.share(part) for gateway in fleet.gateways.values())
            seen.add(h.Shared(f"{TENANT}.{part}", QUOTA[part], held))


def a_change_of_leader(folder: Path, seed: int) -> History:
    """A leader lends most of the quota to one gateway, dies, and its successor cannot reach that one."""
    rng = random.Random(seed)
    fleet = PlayedFleet(folder, ["a", "b", "c"], QUOTA)
    seen = History(f"seed {seed}")
    with closing(fleet):
        run(fleet, seen, rng, "a", 40)
        fleet.lead()
        fleet.gateways["a"].hears = False
        run(fleet, seen, rng, "b", 20)
    return seen


@pytest.mark.parametrize("seed", range(3))
def test_a_successor_hands_out_nothing_that_may_still_be_in_use(tmp_path: Path, seed: int) -> None:
    seen = a_change_of_leader(tmp_path, seed)
    assert max(max(fact.parts) for fact in seen.of(h.Shared)) > 0.5 * QUOTA["tokens_per_minute"]
    i18_quota_conservation(seen)


def test_a_successor_that_does_not_learn_first_hands_out_more_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.quota_fleet.QuotaLeases", Rash)
    with pytest.raises(AssertionError, match="tokens_per_minute"):
        i18_quota_conservation(a_change_of_leader(tmp_path, 1))
