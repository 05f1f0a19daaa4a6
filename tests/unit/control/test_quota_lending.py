"""A quota over several gateways, lent to where it is needed: usable, and never more than it is.

Virtual time, real parts (`tests.quota_fleet`). The sum of what the gates admit by is looked at after
every step: it is the truth that no message, loss or restart may push over the quota.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import pytest

from admission.durable import write_whole
from fleet.messages import QuotaLease, QuotaReport, QuotaShare
from fleet.quota_leases import HOLD_S, LEASE_S
from fleet.quota_shares import FIELDS
from tests.quota_fleet import TENANT, PlayedFleet, arrivals

STEP_S = 0.2
REQUEST_TOKENS = 50
QUOTA = {
    "tokens_per_minute": 60_000,
    "burst_tokens": 2_000,
    "max_in_flight_tokens": 100_000,
    "max_concurrent_requests": 400,
}

Make = Callable[..., PlayedFleet]


@pytest.fixture
def make(tmp_path: Path) -> Generator[Make]:
    made: list[PlayedFleet] = []

    def begin(count: int, **more: float) -> PlayedFleet:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(PlayedFleet(folder, [f"gw-{number}" for number in range(count)], QUOTA, **more))
        return made[-1]

    yield begin
    for fleet in made:
        fleet.close()


class Traffic:
    """Poisson streams at the gateways, and what they got: by second, for sliding minutes."""

    def __init__(self, fleet: PlayedFleet, seed: int) -> None:
        self.fleet = fleet
        self.rng = random.Random(seed)
        self.used = 0
        self.worst_minute = 0
        self._recent: deque[tuple[float, int]] = deque()
        self._in_minute = 0

    def run(self, seconds: float, offered: dict[str, float]) -> None:
        """Offer tokens per second to each gateway for a while."""
        for _ in range(round(seconds / STEP_S)):
            got = 0
            for name, rate in offered.items():
                for _ in range(arrivals(self.rng, rate / REQUEST_TOKENS, STEP_S)):
                    got += self.fleet.gateways[name].ask(REQUEST_TOKENS)
            self._note(got)
            self.fleet.step(STEP_S)
            assert self.fleet.over() == {}

    def _note(self, got: int) -> None:
        self.used += got
        self._recent.append((self.fleet.now_s, got))
        self._in_minute += got
        while self._recent[0][0] <= self.fleet.now_s - 60.0:
            self._in_minute -= self._recent.popleft()[1]
        self.worst_minute = max(self.worst_minute, self._in_minute)


def skewed(fleet: PlayedFleet, hot: int, offered: float) -> dict[str, float]:
    """Return tokens/s by gateway: `offered` times the quota, 85 % of it at one."""
    names = list(fleet.gateways)
    per_s = offered * QUOTA["tokens_per_minute"] / 60
    cold = 0.15 * per_s / (len(names) - 1)
    return {name: 0.85 * per_s if place == hot else cold for place, name in enumerate(names)}


@pytest.mark.parametrize("offered", [1.5, 10.0])
@pytest.mark.parametrize("count", [3, 4])
def test_at_85_percent_skew_most_of_the_quota_is_usable_and_never_more(
    make: Make, count: int, offered: float
) -> None:
    fleet = make(count)
    traffic = Traffic(fleet, seed=count)
    traffic.run(LEASE_S + 10, skewed(fleet, 0, offered))  # a fresh leader learns first
    traffic.used, minutes = 0, 5
    for minute in range(minutes):  # the hot gateway changes each minute
        traffic.run(60, skewed(fleet, (minute + 1) % count, offered))
    assert traffic.used >= 0.88 * minutes * QUOTA["tokens_per_minute"]
    assert traffic.worst_minute <= 1.01 * QUOTA["tokens_per_minute"] + QUOTA["burst_tokens"]


def test_without_a_controller_shares_stay_and_then_return_to_the_even_split(make: Make) -> None:
    fleet = make(4)
    traffic = Traffic(fleet, seed=1)
    traffic.run(60, skewed(fleet, 0, 1.5))
    hot = fleet.gateways["gw-0"]
    lent = hot.share("tokens_per_minute")
    assert lent > 40_000
    fleet.controllers = []
    lost_s = fleet.now_s
    while fleet.now_s - lost_s < HOLD_S + 10:
        traffic.run(STEP_S, skewed(fleet, 0, 1.5))
        passed_s = fleet.now_s - lost_s
        if passed_s < LEASE_S - 5 - STEP_S:  # the last renewal was at most one period ago
            assert hot.share("tokens_per_minute") == lent
        if passed_s > LEASE_S + STEP_S:
            assert hot.share("tokens_per_minute") == 15_000
    assert [gateway.share("tokens_per_minute") for gateway in fleet.gateways.values()] == [15_000] * 4


@pytest.mark.parametrize("deaf", ["hot", "cold"])
def test_a_gateway_out_of_reach_is_counted_until_its_lease_has_run_out(make: Make, deaf: str) -> None:
    fleet = make(3)
    traffic = Traffic(fleet, seed=2)
    traffic.run(60, skewed(fleet, 0, 1.5))
    lost = fleet.gateways["gw-0" if deaf == "hot" else "gw-1"]
    lost.hears = False
    traffic.run(90, skewed(fleet, 2, 1.5))  # the others' needs move; Traffic looks at the sum all the time
    assert lost.share("tokens_per_minute") == 20_000
    # What is left of the quota is still lent: the hot one of the two in reach has more than its even part.
    assert fleet.gateways["gw-2"].share("tokens_per_minute") > 25_000
    lost.hears = True
    traffic.run(30, skewed(fleet, 0, 1.5))
    assert fleet.gateways["gw-0"].share("tokens_per_minute") > 35_000


def test_a_fresh_leader_hands_out_nothing_before_the_old_ones_leases_ran_out(make: Make) -> None:
    fleet = make(3)
    traffic = Traffic(fleet, seed=3)
    traffic.run(60, skewed(fleet, 0, 1.5))
    fleet.lead(old_goes_on=True)  # the old one still believes that it leads
    traffic.run(6, skewed(fleet, 0, 1.5))  # from its first pass on gateways heed the new one only
    before = {name: gateway.share("tokens_per_minute") for name, gateway in fleet.gateways.items()}
    began_s = fleet.due_s - 5
    while fleet.now_s - began_s < LEASE_S:
        traffic.run(STEP_S, skewed(fleet, 2, 1.5))
        assert all(
            gateway.share("tokens_per_minute") <= max(before[name], 20_000)
            for name, gateway in fleet.gateways.items()
        )
    traffic.run(30, skewed(fleet, 2, 1.5))
    assert fleet.gateways["gw-2"].share("tokens_per_minute") > 35_000


def test_a_restarted_gateway_does_not_take_back_what_it_lent(make: Make) -> None:
    fleet = make(3)
    traffic = Traffic(fleet, seed=4)
    traffic.run(60, skewed(fleet, 0, 1.5))
    lent = fleet.gateways["gw-1"].share("tokens_per_minute")
    assert lent < 10_000
    fleet.gateways["gw-1"].restart()
    assert fleet.gateways["gw-1"].share("tokens_per_minute") == lent
    assert fleet.over() == {}
    traffic.run(60, skewed(fleet, 0, 1.5))
    fleet.gateways["gw-0"].restart()  # who borrowed comes back with its own part only
    assert fleet.gateways["gw-0"].share("tokens_per_minute") <= 20_000
    traffic.run(30, skewed(fleet, 0, 1.5))


def test_a_new_split_voids_what_was_lent_before_anybody_gains_by_it(make: Make) -> None:
    fleet = make(3)
    traffic = Traffic(fleet, seed=5)
    traffic.run(60, skewed(fleet, 0, 1.5))
    fleet.set_quota(QUOTA | {"tokens_per_minute": 30_000})
    for gateway in fleet.gateways.values():
        gateway.push(fleet.targets[gateway.name])
        assert gateway.share("tokens_per_minute") <= 10_000
    traffic.run(30, skewed(fleet, 0, 1.5))
    assert fleet.gateways["gw-0"].share("tokens_per_minute") > 12_000


def test_what_runs_above_a_share_that_was_cut_is_lent_to_nobody_until_it_ends(tmp_path: Path) -> None:
    """Tokens in flight cannot be taken back: a share follows only as they end, and the sum holds."""
    plenty = dict.fromkeys(FIELDS, 10**6)
    quota = plenty | {"tokens_per_minute": 10**9, "burst_tokens": 10**9, "max_in_flight_tokens": 100_000}
    fleet = PlayedFleet(tmp_path, ["a", "b"], quota)
    first, second = fleet.gateways.values()
    ends: deque[tuple[float, int]] = deque()  # when, at which gateway; each request runs for 40 s

    def run(seconds: float, *busy: int) -> None:
        for _ in range(round(seconds / STEP_S)):
            while ends and ends[0][0] <= fleet.now_s:
                (first, second)[ends.popleft()[1]].end(500)
            for place in busy:
                while (first, second)[place].hold(500):
                    ends.append((fleet.now_s + 40, place))
            fleet.step(STEP_S)
            assert first.held_tokens() + second.held_tokens() <= 100_000
            assert fleet.over() == {}

    with closing(fleet):
        run(60, 0)
        assert first.held_tokens() > 85_000  # all but what the other keeps
        run(20, 0, 1)
        assert first.share("max_in_flight_tokens") < first.held_tokens()  # cut, and nothing was stopped
        run(120, 0, 1)
        assert min(first.held_tokens(), second.held_tokens()) > 40_000


@pytest.mark.parametrize("seed", range(12))
def test_losses_restarts_and_changes_of_leader_never_hand_out_more(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    fleet = PlayedFleet(tmp_path, ["a", "b", "c", "d"], QUOTA, drift=0.01)
    with closing(fleet):
        fleet.lose = lambda: rng.random() < 0.15
        traffic = Traffic(fleet, seed)
        for _ in range(12):
            event = rng.choice(["deaf", "mute", "restart", "leader", "two leaders", "all back", "quiet"])
            gateway = fleet.gateways[rng.choice(sorted(fleet.gateways))]
            if event == "deaf":
                gateway.hears = False
            elif event == "mute":
                gateway.is_heard = False
            elif event == "restart":
                gateway.restart()
            elif event in ("leader", "two leaders"):
                fleet.lead(old_goes_on=event == "two leaders")
            elif event == "all back":
                for one in fleet.gateways.values():
                    one.hears = one.is_heard = True
            traffic.run(rng.uniform(2, 25), skewed(fleet, rng.randrange(4), 1.2))
        for one in fleet.gateways.values():  # and then it is usable again
            one.hears = one.is_heard = True
        fleet.lose = lambda: False
        fleet.controllers = fleet.controllers[-1:]
        traffic.run(60, skewed(fleet, 0, 1.5))
        assert fleet.gateways["a"].share("tokens_per_minute") > 35_000
        assert all(fleet.total(field) == QUOTA[field] for field in FIELDS)


@pytest.mark.parametrize("is_written_before", [True, False], ids=["while it is written", "before it comes"])
def test_a_share_of_the_split_before_is_void_whenever_it_arrives(
    make: Make, monkeypatch: pytest.MonkeyPatch, is_written_before: bool
) -> None:
    fleet = make(2)
    gateway = fleet.gateways["gw-0"]

    def take(number: int, **parts: object) -> QuotaReport:
        lease = QuotaLease(gateway="gw-0", epoch=1, number=number, **parts)  # type: ignore[arg-type]
        return fleet.runner.run(gateway.leases.take(lease))

    def cut() -> None:  # each has a quarter of the old quota now
        fleet.set_quota({part: count // 2 for part, count in QUOTA.items()})
        gateway.push(fleet.targets["gw-0"])

    def write(path: Path, content: bytes) -> None:
        write_whole(path, content)
        cut()

    said = take(1)
    terms = {"boot_id": said.boot_id, "digest": said.digest, "asked_at_s": said.at_s}
    terms |= {"lease_s": LEASE_S, "hold_s": HOLD_S, "shares": {TENANT: QuotaShare(**QUOTA)}}
    if is_written_before:
        monkeypatch.setattr("admission.quota_lease.write_whole", write)
    else:
        cut()
    said = take(2, **terms)
    assert {part: gateway.share(part) for part in FIELDS} == {part: QUOTA[part] // 4 for part in FIELDS}
    assert said.digest == fleet.targets["gw-0"].digest
    monkeypatch.undo()
    half = QuotaShare(**{part: QUOTA[part] // 2 for part in FIELDS})
    take(3, **(terms | {"digest": said.digest, "shares": {TENANT: half}}))  # one for this split is taken
    assert {part: gateway.share(part) for part in FIELDS} == {part: QUOTA[part] // 2 for part in FIELDS}
