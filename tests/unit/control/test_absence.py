"""The control plane is away: gateways go on as if it were there, and its return is gentle.

Virtual time, real parts: gate, the gateways' leases with their file, the controller's lending and pushes.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from admission.quota_lease import QuotaLeases as HeldLeases
from control.assignments import Target, build, encode
from fleet.gate import Dispatch, Evicted, Gate, Lease, NodeState, Queued, Refused, Request, Started
from fleet.messages import NodeTarget
from fleet.outcomes import Outcome
from fleet.quota_leases import HOLD_S, LEASE_S, RENEW_S
from tests.oracles import history as h
from tests.oracles.history import History
from tests.oracles.invariants import i09_fail_static, i24_gentle_recovery, i25_separation
from tests.oracles.push_world import Wires
from tests.quota_fleet import TENANT, PlayedFleet, PlayedGateway, policy_of

STEP_S = 0.25
NODE = NodeTarget(name="n1", pool="main", base_url="http://127.0.0.1:1", models=("m",))
QUOTA = {
    "tokens_per_minute": 30_000,  # 500 tokens/s
    "burst_tokens": 4_000,
    "max_in_flight_tokens": 10_000,
    "max_concurrent_requests": 40,
}
RUNS_S = 2.0


class GatedGateway(PlayedGateway):
    """A gateway with the whole gate and one node, and what it decided."""

    kv_tokens = 6_000

    def _begin(self) -> None:
        self.boots += 1
        self.gate = Gate(random.Random(1), prior_output_tokens=200)
        self.accounts = self.gate.accounts
        boot_id = f"{self.name}-{self.boots}"
        self.leases = HeldLeases(self.name, boot_id, self.folder, self.accounts, self.clock)
        self.running: deque[tuple[float, Lease]] = deque()
        self.decisions: list[tuple[object, ...]] = []
        self.errors = 0

    def push(self, target: Target) -> None:
        super().push(target)
        self.gate.apply(target.assignment, self.clock.monotonic_s())

    def _note(self, request_id: str, what: str) -> None:
        self.decisions.append((round(self.clock.monotonic_s(), 3), request_id, what))

    def _run(self, lease: Lease) -> None:
        self._note(lease.request.request_id, lease.node)
        self.running.append((self.clock.monotonic_s() + RUNS_S, lease))

    def serve(self, asked: list[Request]) -> None:
        """Hear the node, end what is done, take in what comes, start and evict what is due."""
        now_s = self.clock.monotonic_s()
        heard = NodeState(
            name="n1", healthy=True, seen_at_s=now_s, kv_capacity_tokens=self.kv_tokens, kv_used_ratio=0.0
        )
        self.gate.observe([heard], now_s)
        while self.running and self.running[0][0] <= now_s:
            _, lease = self.running.popleft()
            self.gate.release(
                lease, prompt_tokens=100, output_tokens=150, outcome=Outcome.COMPLETED, now_s=now_s
            )
        self._poll(now_s)
        for one in asked:
            match self.gate.offer(one, now_s):
                case Dispatch(lease=lease):
                    self._run(lease)
                case Refused(outcome=outcome):
                    self.errors += 1
                    self._note(one.request_id, outcome.value)
                case Queued():
                    self._note(one.request_id, "waits")
        self._poll(now_s)

    def _poll(self, now_s: float) -> None:
        for event in self.gate.poll(now_s):
            if isinstance(event, Started):
                self._run(event.lease)
            else:
                assert isinstance(event, Evicted)
                self.errors += 1
                self._note(event.ticket.request.request_id, event.outcome.value)


class Day:
    """A fleet under steady traffic, with a controller that may go away."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        folder.mkdir()
        self.fleet = PlayedFleet(folder, names, QUOTA)
        self.fleet.targets = encode(build(policy_of(QUOTA), 1, names, [NODE], [], ()))
        self.generation = 1
        self.repush()
        self.requests = 0

    def repush(self) -> None:
        """Send everybody the same again under a new number, as after a change that was taken back."""
        self.generation += 1
        for name, gateway in self.fleet.gateways.items():
            target = self.fleet.targets[name]
            numbered = target.assignment.model_copy(update={"generation": self.generation})
            gateway.push(replace(target, assignment=numbered))

    def run(self, seconds: float, rates: dict[str, float], *, pushes: bool = False) -> None:
        """Offer requests/s to each gateway for a while, evenly: a demand that moves moves shares."""
        for step in range(round(seconds / STEP_S)):
            for name, rate in rates.items():
                asked: list[Request] = []
                for _ in range(int((step + 1) * STEP_S * rate) - int(step * STEP_S * rate)):
                    self.requests += 1
                    asked.append(Request(f"r{self.requests}", TENANT, None, "m", "chat", 100, 200))
                gateway = self.fleet.gateways[name]
                assert isinstance(gateway, GatedGateway)
                gateway.serve(asked)
            if pushes and step % 20 == 0:
                self.repush()
            self.fleet.step(STEP_S)

    def seen_at(self, name: str, *, is_alone: bool, until: int | None = None) -> h.Served:
        gateway = self.fleet.gateways[name]
        assert isinstance(gateway, GatedGateway)
        decisions = tuple(gateway.decisions[:until])
        return h.Served(name, is_alone, self.requests, gateway.errors, decisions)


@pytest.fixture(autouse=True)
def _gated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.quota_fleet.PlayedGateway", GatedGateway)


def test_until_its_lease_ends_a_gateway_alone_decides_as_its_twin(tmp_path: Path) -> None:
    seen = History("a lease long")
    for is_alone in (False, True):
        day = Day(tmp_path / str(is_alone), ["gw-1", "gw-2"])
        rates = {"gw-1": 1.5, "gw-2": 1.2}  # 300 tokens a request: 450 of 250 tokens/s, so the quota bites
        with closing(day.fleet):
            day.run(60, rates)
            if is_alone:
                day.fleet.controllers = []
            day.run(LEASE_S - RENEW_S - 1.0, rates, pushes=not is_alone)
            for name in rates:
                seen.add(day.seen_at(name, is_alone=is_alone))
    whats = {what for fact in seen.of(h.Served) for _, _, what in fact.decisions}
    assert {"n1", "rejected_quota_rate"} <= whats
    i09_fail_static(seen)
    i25_separation(seen)


def test_ten_minutes_without_a_control_plane_change_no_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GatedGateway, "kv_tokens", 1_500)  # four requests at once: some wait, some too long
    seen = History("ten minutes")
    for is_alone in (False, True):
        day = Day(tmp_path / f"one {is_alone}", ["gw-1"])
        with closing(day.fleet):
            if is_alone:
                day.fleet.controllers = []
            day.run(600, {"gw-1": 2.5}, pushes=not is_alone)
            seen.add(day.seen_at("gw-1", is_alone=is_alone))
    decisions = [fact.decisions for fact in seen.of(h.Served)]
    assert len({what for _, _, what in decisions[0]}) >= 4  # started, waited, refused for time and for rate
    i09_fail_static(seen)
    i25_separation(seen)


def test_a_decision_that_differs_is_noticed() -> None:
    seen = History("mutant")
    seen.add(h.Served("gw", is_alone=False, requests=2, errors=0, decisions=(1, 2)))
    seen.add(h.Served("gw", is_alone=True, requests=2, errors=1, decisions=(1, 3)))
    for oracle in (i09_fail_static, i25_separation):
        with pytest.raises(AssertionError):
            oracle(seen)


def test_after_the_lease_a_gateway_alone_admits_its_safe_share_no_more_and_no_less(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", ["gw-1", "gw-2"])
    hot = day.fleet.gateways["gw-1"]
    with closing(day.fleet):
        rates = {"gw-1": 3.0, "gw-2": 0.0}
        day.run(90, rates)
        assert hot.share("tokens_per_minute") > 20_000  # lent by the idle one
        day.fleet.controllers = []
        day.run(HOLD_S + RENEW_S, rates)
        assert [one.share("tokens_per_minute") for one in day.fleet.gateways.values()] == [15_000, 15_000]
        assert isinstance(hot, GatedGateway)
        hot.decisions.clear()
        day.run(240, rates)
        started = sum(what == "n1" for _, _, what in hot.decisions)
        # settled at 250 tokens a request, 15,000 a minute are 60: 240 in four minutes, and at most a burst
        assert 0.9 * 240 <= started <= 240 + 2_000 / 250 + 1


def test_a_controller_that_returns_asks_at_most_twice_as_much_as_on_any_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def absence() -> History:
        wires = Wires(monkeypatch, tmp_path)
        seen = await wires.play(4, events=0, loses=False)
        world = wires.world
        assert world is not None
        steady = len(world.gateways)
        for away_s in (20.0, 300.0, 3_600.0):
            for gateway in world.gateways.values():
                gateway.boot(has_disk=False)  # the worst return: nobody holds anything
            world.store.publish(is_staged=False)
            world.clock.elapsed_s += away_s
            seen.add(h.Returned(world.clock.monotonic_s(), steady_calls_per_s=steady))
            for _ in range(5):
                await world.passes(world.controllers[0])
                world.clock.elapsed_s += 1.0
            world.note_pass()
        return seen

    seen = asyncio.run(absence())
    i24_gentle_recovery(seen)
    last = list(seen.of(h.Passed))[-1]
    assert last.running == last.desired
    crowd = History("a crowd")  # and the oracle can fail: everybody asks three times at once
    crowd.add(h.Returned(10.0, steady_calls_per_s=2))
    for _ in range(6):
        crowd.add(h.Called(10.2, "gw"))
    with pytest.raises(AssertionError):
        i24_gentle_recovery(crowd)
