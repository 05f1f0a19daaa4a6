"""Rounds become disjoint minutes, states and signals: what is counted, what stays unknown."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from control.assess import Assessment, Assessor
from control.capacity_book import CapacityBook
from control.fleet_facts import FleetFacts, Node, Pool
from control.flow_book import FlowBook, FlowRound
from control.gateway_scrape import FlowWindow
from control.rounds import EngineSample, GatewayResult, NodeResult, Round
from control.scrape import Target
from fleet.equilibrium import Balance
from fleet.flow_signals import FlowRule, FlowSignal
from fleet.policy import default_policy, parse
from fleet.readings import EngineWindow, Histogram, Reason
from fleet.saturation import EngineLimits

T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
EDGES = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
NODES = ("a", "b", "c")
GATEWAYS = (Target("g1", "http://g1/metrics"),)


def spread(count: int, seconds: float) -> Histogram:
    """Return `count` observations of `seconds` each."""
    counts = [0] * (len(EDGES) + 1)
    counts[sum(edge < seconds for edge in EDGES)] = count
    return Histogram(EDGES, tuple(counts), count * seconds)


def engine(*, arrivals: int = 40, completed: int = 40, running: int = 16, waiting: int = 0, kv: float = 0.3,
           itl_sum_s: float = 140.0) -> EngineWindow:  # fmt: skip
    """10 s of an engine: 4 req/s of 4 s each, 3.5 s of them decoding (14 places), 0.5 s in prefill (2)."""
    return EngineWindow(
        engine="0", model="m", length_s=10.0, restarted=False, arrivals=arrivals, completed=completed,
        errors=0, aborted=0, prompt_tokens=4_000, prompt_tokens_computed=4_000, generation_tokens=4_000,
        preemptions=0, prefix_cache_hits=0, prefix_cache_queries=0, running=running, waiting=waiting,
        waiting_capacity=None, kv_used_ratio=kv, kv_capacity_tokens=600_000,
        histograms={
            "e2e_s": spread(completed, 4.0), "ttft_s": spread(completed, 0.4),
            "queue_wait_s": spread(completed, 0.0), "prefill_s": spread(completed, 0.5),
            "decode_s": spread(completed, 3.5), "itl_s": Histogram(EDGES, (4_000, *[0] * 8), itl_sum_s),
        },
    )  # fmt: skip


def flow(tier: str = "interactive", tenant: str = "acme", **changes: object) -> FlowWindow:
    given = {
        "offered": 120, "dispatched": 120, "repeated": 0, "outcomes": {"completed": 120},
        "prompt_tokens": 10_000, "output_tokens": 2_000, "queued_requests": 0,
        "histograms": {"queue_wait_s": spread(120, 0.05), "ttft_s": spread(120, 0.4)},
    }  # fmt: skip
    return FlowWindow(tenant, tier, 10.0, **(given | changes))  # type: ignore[arg-type]


class World:
    """A book driven round by round, with the verdicts of the real assessor."""

    def __init__(self, *, gateways: bool = False) -> None:
        nodes = tuple(Node(name, "p", f"http://{name}/metrics", "active", T0) for name in NODES)
        self.facts = FleetFacts(nodes, (Pool("p", EngineLimits(max_num_seqs=64)),), GATEWAYS * gateways)
        self.assessor = Assessor(CapacityBook(np.random.default_rng(1)))
        self.book = FlowBook()
        document = default_policy().as_document()
        document["tenants"] = {
            name: {
                "tier": "interactive", "allowed_tiers": ["interactive"], "tokens_per_minute": 10**6,
                "burst_tokens": 10**6, "max_in_flight_tokens": 10**6, "max_concurrent_requests": 100,
            }
            for name in ("acme", "globex")
        }  # fmt: skip
        self.book.learn(parse(document))
        self.number = 0

    def round(self, windows: dict[str, EngineWindow | None] | None = None, *flows: FlowWindow,
              gateway: GatewayResult | None = None) -> FlowRound:  # fmt: skip
        """Run one round: `windows` by node (None: no answer); nodes not named do 10 s of the usual."""
        self.number += 1
        given = windows or {}
        results = []
        for name in NODES:
            found = given.get(name, engine())
            if found is None:
                results.append(NodeResult(name, "p", None, (), Reason.REFUSED, "refused"))
            else:
                results.append(NodeResult(name, "p", 0.01, (EngineSample("0", found, 10.0),)))
        gateways = (gateway,) if gateway else (GatewayResult("g1", flows),) if flows else ()
        at = T0 + timedelta(seconds=10 * self.number)
        done = Round(at, 10.0, 0.1, 0.0, tuple(results), gateways)
        assessment: Assessment = self.assessor.assess(done, self.facts)
        return self.book.take(done, assessment)

    def run(self, rounds: int, **given: object) -> FlowRound:
        for _ in range(rounds):
            found = self.round(**given)  # type: ignore[arg-type]
        return found


def signal(found: FlowRound, rule: FlowRule, subject: str = "") -> FlowSignal:
    return next(s for s in found.signals if s.rule is rule and s.subject == subject)


def test_minutes_are_disjoint_and_little_holds_in_each_stage():
    world = World()
    closed = [one for _ in range(19) for one in world.round().closed]
    pools = [minute for subject, minute, _ in closed if subject == ("pool", "p")]
    assert [m.ended_at_s for m in pools] == [T0.timestamp() + 60 * n for n in (1, 2, 3)]
    last = pools[-1]
    # 3 nodes x 4 req/s x 60 s; 3 x 16 inside; 12/s of 4 s each: 48
    assert (last.minute.arrivals, last.minute.departures) == (720, 720)
    assert last.minute.mean_in_system == pytest.approx(48)
    stages = {stage.name: stage for stage in last.stages}
    assert stages["decode"].held == pytest.approx(42)  # 3 x 140 s of decoding in 10 s
    assert stages["decode"].explained == pytest.approx(42)  # 12/s x 3.5 s
    assert stages["prefill"].held == pytest.approx(6)
    assert stages["prefill"].residual == pytest.approx(0)
    assert stages["engine_queue"].explained == 0


def test_a_steady_fleet_is_in_equilibrium_and_says_so_only_after_whole_minutes():
    world = World()
    early = world.run(5)
    assert {state.state.balance for state in early.states} == {None}
    assert signal(early, FlowRule.UNSTABLE).value is None
    later = world.run(14)
    assert {state.state.balance for state in later.states} == {Balance.EQUILIBRIUM}
    assert signal(later, FlowRule.UNSTABLE).value == 0.0


def test_places_after_a_restart_are_of_the_time_that_was_measured():
    world = World()
    closed = [one for _ in range(61) for one in world.round().closed]
    world.book = FlowBook()
    world.book.refill([(who, replace(minute, time=None, ttft=None)) for who, minute, _ in closed], 10.0)
    found = world.run(14)
    fleet = next(s for s in found.states if s.subject == ("fleet", ""))
    assert fleet.minutes == 12
    assert fleet.time is not None
    # 3 nodes x 4 req/s: what the minutes before the restart lack is no idle time
    assert fleet.time.count / fleet.length_s == pytest.approx(12)


def test_more_arrivals_than_departures_is_filling():
    world = World()
    world.run(12)
    for number in range(14):  # 50 in, 40 out on each node: z = 180 / sqrt(1620) = 4.5 a minute
        found = world.round({name: engine(arrivals=50, running=16 + 10 * number) for name in NODES})
    fleet = next(s for s in found.states if s.subject == ("fleet", ""))
    flow_signal = next(s for s in fleet.state.signals if s.name == "flow")
    assert flow_signal.is_raised is True
    assert fleet.state.balance in (Balance.FILLING, Balance.UNSTABLE)


def test_a_node_that_does_not_answer_leaves_both_sides_of_the_balance():
    world = World()
    world.run(12)
    found = world.run(14, windows={"b": None})
    pool = next(s for s in found.states if s.subject == ("pool", "p"))
    assert pool.newest is not None
    assert (pool.newest.minute.arrivals, pool.newest.minute.departures) == (480, 480)
    assert pool.state.balance is Balance.EQUILIBRIUM


def test_a_gateway_that_could_not_be_read_leaves_the_tiers_unknown_not_empty():
    world = World(gateways=True)
    for _ in range(13):
        found = world.round(None, flow())
    assert ("tier", "interactive") in [s.subject for s in found.states]
    found = world.round(None, gateway=GatewayResult("g1", None, Reason.TIMEOUT, "late"))
    assert ("tier", "interactive") not in [s.subject for s in found.states]


def test_without_the_gateways_queues_nobody_knows_the_backlog_of_the_fleet():
    world = World(gateways=True)
    for _ in range(13):
        world.round(None, flow(queued_requests=500))
    found = world.round(None, gateway=GatewayResult("g1", None, Reason.TIMEOUT, "late"))
    fleet = next(s for s in found.states if s.subject == ("fleet", ""))
    assert {s.name: s.is_raised for s in fleet.state.signals}["backlog"] is None


def test_those_who_waited_in_vain_explain_their_places():
    world = World(gateways=True)
    # 6/s wait 1.5 s in vain, 12/s wait 0.05 s: 9.6 places in the queue; 48 in the engines
    half = flow(
        offered=180, dispatched=120, queued_requests=9, outcomes={"completed": 120, "evicted_wait": 60},
        histograms={"queue_wait_s": spread(120, 0.05), "ttft_s": spread(120, 0.4)},
    )  # fmt: skip
    for _ in range(19):
        found = world.round(None, half)
    for subject, held in ((("tier", "interactive"), 9.6), (("fleet", ""), 57.6)):
        newest = next(s for s in found.states if s.subject == subject).newest
        assert newest is not None
        m = newest.minute
        assert m.departures is not None
        assert m.time_mean_s is not None
        assert m.departures / m.length_s * m.time_mean_s == pytest.approx(held)


def test_the_objective_counts_what_was_refused_for_capacity_and_not_the_callers_own_limits():
    world = World(gateways=True)
    outcomes = {"completed": 120, "rejected_queue_full": 20, "rejected_quota_rate": 60}
    for _ in range(30):
        found = world.round(None, flow(offered=200, outcomes=outcomes))
    tier = next(s for s in found.states if s.subject == ("tier", "interactive"))
    assert tier.good is not None
    # of 140 asked 120 were within 0.5 s; the tenant's own 60 are not the service's failure
    assert tier.good.share is not None
    assert tier.good.share.low == pytest.approx(120 / 140)
    # (20/140) / 5 % = 2.9 times too fast, in both windows
    assert signal(found, FlowRule.SLO_BURN_FAST, "interactive").value == pytest.approx(20 / 140 / 0.05)


def test_ten_times_the_usual_is_a_burst_and_names_who():
    world = World(gateways=True)
    for _ in range(120):
        world.round(None, flow(offered=10, tenant="globex"))
    for _ in range(9):
        found = world.round(None, flow(offered=90, tenant="acme"), flow(offered=10, tenant="globex"))
    burst = signal(found, FlowRule.BURST)
    assert burst.value == pytest.approx(10)
    assert burst.detail["by"] == "acme/interactive"


def test_a_filling_cache_and_a_hot_node_are_named():
    world = World()
    for number in range(20):
        found = world.round({"b": engine(kv=0.60 + 0.015 * number)})
    kv = signal(found, FlowRule.KV_EXHAUSTION, "b")
    assert kv.value is not None
    # 0.87 at the median of the last three, 0.015 a round: 30 rounds more
    assert kv.value == pytest.approx(0.87 + 0.015 * 30)
    assert signal(found, FlowRule.KV_EXHAUSTION, "a").value == pytest.approx(0.3)


def test_a_crowded_out_tenant_and_a_long_wait_are_signals_of_the_tier():
    world = World(gateways=True)
    big = flow(tenant="acme", queued_requests=5, prompt_tokens=18_000, output_tokens=2_000)
    small = flow(
        tenant="globex", offered=60, dispatched=6, queued_requests=5, prompt_tokens=900, output_tokens=100,
        outcomes={"completed": 6, "evicted_wait": 54}, histograms={"queue_wait_s": spread(6, 1.4)},
    )  # fmt: skip
    for _ in range(12):
        found = world.round(
            None, gateway=GatewayResult("g1", (big, small), oldest_wait_s={"interactive": 1.45})
        )
    unfair = signal(found, FlowRule.UNFAIRNESS, "interactive")
    assert unfair.detail["tenant"] == "globex"
    assert unfair.value is not None
    assert unfair.value > 0.5
    assert signal(found, FlowRule.STARVATION, "interactive").value == pytest.approx(1.45 / 1.5)


def test_a_lowered_timeout_makes_no_starvation_of_waits_that_were_within_the_old_one():
    world = World(gateways=True)
    for _ in range(3):  # 8 s of 30 were waited
        world.round(None, flow(tier="batch", histograms={"queue_wait_s": spread(6, 8.0)}))
    document = default_policy().as_document()
    document["tiers"]["batch"]["queue_timeout_s"] = 5.0
    world.book.learn(parse(document))
    served = flow(tier="batch", histograms={"queue_wait_s": spread(6, 0.05)})
    for _ in range(5):  # until the last of them has left the window
        found = world.round(None, served)
        assert signal(found, FlowRule.STARVATION, "batch").value == pytest.approx(
            5.0 / 30
        )  # edge below 8 s
    for _ in range(5):  # who came under the old timeout has left 30 s later, and the window after 60 s more
        found = world.round(None, served)
    late = flow(tier="batch", histograms={"queue_wait_s": spread(6, 5.5)})
    found = world.round(None, late)
    assert signal(found, FlowRule.STARVATION, "batch").value == pytest.approx(5.0 / 5)


def test_attempts_for_each_request_need_gateways_that_count_them():
    world = World(gateways=True)
    for _ in range(13):
        found = world.round(None, flow(offered=120, repeated=80))
    assert signal(found, FlowRule.RETRY_STORM).value == pytest.approx(3.0)
    old = World(gateways=True)
    for _ in range(13):
        found = old.round(None, flow(repeated=None))
    assert signal(found, FlowRule.RETRY_STORM).value is None
    # only who counts repetitions counts: 120 requests, 60 of them tried again
    mixed = World(gateways=True)
    for _ in range(13):
        found = mixed.round(None, flow(repeated=None, tenant="globex"), flow(offered=120, repeated=60))
    assert signal(found, FlowRule.RETRY_STORM).value == pytest.approx(2.0)


def test_an_idle_fleet_has_no_value_of_anything_but_nothing_bad():
    world = World()
    nothing = engine(arrivals=0, completed=0, running=0, kv=0.0, itl_sum_s=0.0)
    found = world.run(20, windows=dict.fromkeys(NODES, nothing))
    for one in found.signals:
        assert one.value is None or one.value <= 0.5, one


def replayed(world: World, rounds: int, tail_s: list[float], rng: np.random.Generator) -> list[FlowRound]:
    """Run rounds of 120 requests on three nodes, 3 % of them around `tail_s`; no verdicts are needed."""
    edges = tuple(0.1 * 1.3**step for step in range(40))
    states = world.assessor.assess(quiet(world, 0, {}), world.facts).nodes
    found: list[FlowRound] = []
    for number in range(rounds):
        windows = {}
        for name in NODES:
            slow = int(rng.binomial(120, 0.03))
            times = np.concatenate(
                [
                    rng.lognormal(np.log(2.0), 0.4, 120 - slow),
                    rng.lognormal(np.log(tail_s[number]), 0.25, slow),
                ]
            )
            counts = np.bincount(np.searchsorted(edges, times), minlength=len(edges) + 1)
            time = Histogram(edges, tuple(int(n) for n in counts), float(times.sum()))
            window = engine(arrivals=120, completed=120, running=round(float(times.sum()) / 10))
            windows[name] = replace(window, histograms=window.histograms | {"e2e_s": time})
        done = quiet(world, number + 1, windows)
        found.append(world.book.take(done, Assessment(done.at, 10.0, (), states)))
    return found


def quiet(world: World, number: int, windows: dict[str, EngineWindow]) -> Round:
    results = tuple(
        NodeResult(name, "p", 0.01, (EngineSample("0", windows.get(name, engine()), 10.0),))
        for name in NODES
    )
    return Round(T0 + timedelta(seconds=10 * number), 10.0, 0.1, 0.0, results)


def test_a_replay_whose_p99_doubles_every_15_minutes_is_reported_within_half_an_hour():
    world, rng = World(), np.random.default_rng(23)
    flat = 30 * 6
    tail_s = [8.0] * flat + [8.0 * 2 ** (n / 90) for n in range(30 * 6)]  # 90 rounds are 15 minutes
    found = replayed(world, len(tail_s), tail_s, rng)
    told = [
        n
        for n, one in enumerate(found)
        if (s := signal(one, FlowRule.UNSTABLE)).value == 1.0 and "p50 is still" in s.summary
    ]
    assert told, "not reported"
    assert told[0] > flat  # never in the flat half hour before
    last = signal(found[-1], FlowRule.UNSTABLE)
    assert last.value == 1.0
    assert float(str(last.detail["p99_doubling_min"])) == pytest.approx(15, rel=0.25)


def test_a_tenant_that_storms_is_named_until_it_is_calm_and_others_are_not():
    def tenants(found: FlowRound) -> dict[str, float | None]:
        retries = (s for s in found.signals if s.rule is FlowRule.RETRY_STORM and s.scope == "tenant")
        return {s.subject: s.value for s in retries}

    world = World(gateways=True)
    for _ in range(13):
        found = world.round(
            None,
            flow(offered=120, repeated=80, tenant="acme"),
            flow(offered=600, repeated=6, tenant="globex"),
        )
    # 120 with 80 of them repetitions: 3 attempts for each of 40; globex has 1.01
    assert tenants(found) == {"acme": pytest.approx(3.0)}
    fleet = signal(found, FlowRule.RETRY_STORM)
    assert fleet.value == pytest.approx(720 / (720 - 86))  # 1.14: the fleet alone would show nothing
    for _ in range(13):  # it falls silent: known to be no storm, so that an alert of it can end
        found = world.round(None, flow(offered=600, repeated=6, tenant="globex"))
    assert tenants(found) == {"acme": 1.0}
    unheard = world.round(None, gateway=GatewayResult("g1", None, Reason.TIMEOUT, "late"))
    assert tenants(unheard) == {}  # nobody knows what it does now
    for _ in range(349):
        found = world.round(None, flow(offered=600, repeated=6, tenant="globex"))
    assert tenants(found) == {"acme": 1.0}  # the last repetitions were counted an hour less 10 minutes ago
    for _ in range(30):
        found = world.round(None, flow(offered=600, repeated=6, tenant="globex"))
    assert tenants(found) == {}
