"""Rounds over real sockets: increments, reasons, isolation, restarts, frozen engines, gateways."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from admission.metrics import Family, GatewayMetrics
from control.fetch import open_session
from control.own_metrics import ControlMetrics
from control.scrape import NodeResult, Round, Scraper, Target
from fleet.clock import ManualClock
from fleet.outcomes import Outcome
from fleet.readings import Reason
from tests.small_node import DATA, SmallNode, page, small_nodes

PERIOD_S = 10.0
STUCK = {"frozen", "stalled"}


class Rig:
    """A scraper on a clock that moves only between rounds."""

    def __init__(self, scraper: Scraper, clock: ManualClock, metrics: ControlMetrics) -> None:
        self.scraper = scraper
        self.clock = clock
        self.metrics = metrics

    async def round(self, *nodes: SmallNode, gateways: tuple[Target, ...] = ()) -> Round:
        targets = [Target(f"node-{i}", f"{node.url}/metrics") for i, node in enumerate(nodes)]
        done = await self.scraper.run(targets, gateways, self.clock.now())
        self.clock.advance(PERIOD_S)
        return done

    def value(self, name: str, **labels: str) -> float | None:
        registry: CollectorRegistry = self.metrics.registry
        return registry.get_sample_value(name, labels)


@asynccontextmanager
async def rig(clock: ManualClock, *, deadline_s: float = 60.0) -> AsyncGenerator[Rig]:
    metrics = ControlMetrics()
    async with open_session() as http:
        scraper = Scraper(http, clock, metrics, period_s=PERIOD_S, deadline_s=deadline_s)
        yield Rig(scraper, clock, metrics)


def only(result: NodeResult):
    assert result.reason is None, result.detail
    (sample,) = result.samples
    return sample


def test_the_first_sight_knows_gauges_only_and_the_second_knows_increments(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(1) as (node,), rig(clock) as r:
            node.body = page(finished=1_000, running=3, waiting=1, kv=0.25, generated=500)
            first = only((await r.round(node)).nodes[0])
            # 15 finished and 2 more inside: 3 + 1 before, 4 + 2 after, so 15 + 2 arrived
            node.body = page(finished=1_015, running=4, waiting=2, kv=0.5, generated=900, itl=(40, 2.0))
            second = only((await r.round(node)).nodes[0])
        assert first.covered_s is None
        assert (first.window.running, first.window.completed, first.window.arrivals) == (3, None, None)
        assert second.covered_s == pytest.approx(PERIOD_S)
        assert second.window.completed == 15
        assert second.window.arrivals == 17
        assert second.window.generation_tokens == 400
        assert second.window.histograms["itl_s"].count == 40
        assert second.window.kv_used_ratio == 0.5

    asyncio.run(run())


def test_a_restart_counts_from_zero_and_is_flagged(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(1) as (node,), rig(clock) as r:
            node.body = page(finished=900, started_s=1.0)
            await r.round(node)
            node.body = page(finished=950, started_s=2.0)  # grew past the old value, in a new life
            window = only((await r.round(node)).nodes[0]).window
        assert window.restarted
        assert window.completed == 950

    asyncio.run(run())


def test_after_more_than_three_lost_rounds_increments_are_unknown_not_zero(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(1) as (node,), rig(clock) as r:
            node.body = page(finished=10)
            await r.round(node)
            clock.advance(3 * PERIOD_S)
            node.body = page(finished=70)
            sample = only((await r.round(node)).nodes[0])
        assert sample.covered_s is None
        assert sample.window.completed is None
        assert "gap" in sample.window.flags

    asyncio.run(run())


def test_up_to_three_rounds_later_the_increment_covers_the_whole_gap(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(1) as (node,), rig(clock) as r:
            node.body = page(finished=10)
            await r.round(node)
            node.status = 500
            failed = (await r.round(node)).nodes[0]
            node.status, node.body = 200, page(finished=70)
            sample = only((await r.round(node)).nodes[0])
        assert failed.reason is Reason.HTTP_ERROR
        assert not failed.samples
        assert sample.covered_s == pytest.approx(2 * PERIOD_S)
        assert sample.window.completed == 60

    asyncio.run(run())


def test_an_engine_with_work_that_stands_still_is_frozen_at_the_third_page(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(3) as nodes, rig(clock) as r:
            busy, idle, stalled = nodes
            busy.body = page(finished=5, running=2, generated=100)
            idle.body = page(finished=5, generated=100)
            stalled.body = page(finished=5, waiting=6, generated=100)
            flags = []
            for _ in range(3):
                done = await r.round(*nodes)
                flags.append([STUCK & set(only(result).window.flags) for result in done.nodes])
            busy.body = page(finished=5, running=2, generated=101)
            moved = STUCK & set(only((await r.round(*nodes)).nodes[0]).window.flags)
        assert flags[:2] == [[set(), set(), set()]] * 2
        assert flags[2] == [{"frozen"}, set(), {"stalled"}]
        assert moved == set()

    asyncio.run(run())


def test_captured_pages_of_a_stalled_worker_read_as_frozen(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(1) as (node,), rig(clock) as r:
            node.body = (DATA / "vllm-0.32.0-cpu-saturated-waiting.prom.txt").read_bytes()
            rounds = [await r.round(node) for _ in range(3)]
        windows = [only(done.nodes[0]).window for done in rounds]
        assert windows[0].running == 4
        assert windows[0].waiting == 109
        assert "frozen" not in windows[1].flags
        assert "frozen" in windows[2].flags

    asyncio.run(run())


def test_engines_of_one_page_are_apart(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(1) as (node,), rig(clock) as r:
            node.body = (DATA / "vllm-0.32.0-cpu-dp2-load.prom.txt").read_bytes()
            result = (await r.round(node)).nodes[0]
        assert [s.engine for s in result.samples] == ["0", "1"]
        assert sum(s.window.waiting or 0 for s in result.samples) == 15 + 14
        assert sum(s.window.running or 0 for s in result.samples) == 2 + 2

    asyncio.run(run())


def test_two_models_behind_one_engine_label_keep_two_names(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(1) as (node,), rig(clock) as r:
            node.body = page(model="a", running=1) + page(model="b", running=2)
            result = (await r.round(node)).nodes[0]
        assert [s.engine for s in result.samples] == ["0/a", "0/b"]

    asyncio.run(run())


def test_hostile_and_broken_nodes_cost_the_good_ones_nothing(clock: ManualClock):
    good = (DATA / "vllm-0.32.0-cpu-idle-fresh.prom.txt").read_bytes()

    async def run() -> Round:
        async with small_nodes(12) as nodes, rig(clock, deadline_s=20.0) as r:
            for node in nodes:
                node.body = good
            nodes[1].delay_s = 600.0
            nodes[2].body = b"# HELP\n" + b"x" * (17 * 1024 * 1024)
            nodes[3].body, nodes[3].content_type = b"<html>login</html>", "text/html"
            nodes[4].body, nodes[4].content_type = b"[]", "application/json"
            nodes[5].status = 500
            nodes[6].status, nodes[6].headers = 302, {"Location": "http://169.254.169.254/latest/"}
            nodes[7].body = gzip.compress(b"a" * (64 * 1024 * 1024))
            nodes[7].headers = {"Content-Encoding": "gzip"}
            nodes[8].body = (DATA / "vllm-0.32.0-cpu-disable-log-stats.prom.txt").read_bytes()
            nodes[9].body = page(running=1).replace(b'"m"', b'"m\x00' + b"z" * 9_000 + b'"')
            nodes[10].body = b'vllm:num_requests_running{model_name="m",engine="0"} NaN\n' + page(running=1)
            await nodes[11].stop()
            return await r.round(*nodes)

    done = asyncio.run(run())
    reasons = {result.node: result.reason for result in done.nodes}
    assert reasons == {
        "node-0": None,
        "node-1": Reason.TIMEOUT,
        "node-2": Reason.TOO_LARGE,
        "node-3": Reason.NOT_METRICS,
        "node-4": Reason.NOT_METRICS,
        "node-5": Reason.HTTP_ERROR,
        "node-6": Reason.HTTP_ERROR,
        "node-7": Reason.TOO_LARGE,
        "node-8": Reason.NO_ENGINE_SERIES,
        "node-9": reasons["node-9"],  # whatever it is, it is one node's trouble
        "node-10": None,
        "node-11": Reason.REFUSED,
    }
    assert all(result.detail for result in done.nodes if result.reason is not None)
    assert done.nodes[0].samples[0].window.running == 0


def test_addresses_that_must_not_be_asked_are_blocked(clock: ManualClock):
    async def run() -> Round:
        async with rig(clock) as r:
            targets = [
                Target("metadata", "http://169.254.169.254/metrics"),
                Target("file", "file:///etc/passwd"),
                Target("user", "http://a:b@127.0.0.1:1/metrics"),
            ]
            return await r.scraper.run(targets, (), clock.now())

    done = asyncio.run(run())
    assert {result.reason for result in done.nodes} == {Reason.BLOCKED}


def test_a_connection_that_breaks_once_is_tried_once_more(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(2) as (once, always), rig(clock) as r:
            once.body = always.body = page(running=1)
            once.reset_first, always.reset_first = 1, 99
            done = await r.round(once, always)
            assert [result.reason for result in done.nodes] == [None, Reason.UNREACHABLE]
            assert once.asked == 2
            assert always.asked == 2
            assert r.value("rhodeck_control_scrape_retries_total") == 2
            assert r.value("rhodeck_control_scrapes_total", result="unreachable") == 1

    asyncio.run(run())


def test_a_node_that_moved_to_another_address_is_seen_for_the_first_time(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(2) as (old, new), rig(clock) as r:
            old.body = page(finished=100)
            await r.round(old)
            new.body = page(finished=40_000)
            sample = only((await r.round(new)).nodes[0])
        assert sample.covered_s is None
        assert sample.window.completed is None

    asyncio.run(run())


def test_forty_five_nodes_start_in_three_groups_within_half_a_period(clock: ManualClock):
    async def run() -> list[float]:
        async with rig(clock, deadline_s=5.0) as r:
            return r.scraper._delays(45)

    delays = asyncio.run(run())
    # 10 s period, 5 s deadline: 0.95 x 10 - 5 = 4.5 s to spread over, in three groups
    assert sorted(set(delays)) == pytest.approx([0.0, 1.5, 3.0])
    assert [delays.count(d) for d in sorted(set(delays))] == [20, 20, 5]
    assert max(delays) + 5.0 < PERIOD_S


def gateway_page(metrics: GatewayMetrics, queued: int) -> bytes:
    flow = ("tenant", "tier")
    return metrics.page(
        [Family("rhodeck_gateway_queued_requests", "", flow, {("acme", "interactive"): queued})]
    )


def test_a_gateways_own_page_gives_increments_per_tenant_and_tier(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(1) as (gateway,), rig(clock) as r:
            targets = (Target("gw-1", f"{gateway.url}/metrics"),)
            counted = GatewayMetrics(process_start_time_s=5.0)
            flow = ("acme", "interactive")
            counts = counted.of(flow)
            counts.offered = 100
            gateway.body = gateway_page(counted, 0)
            (first,) = (await r.round(gateways=targets)).gateways
            counts.offered += 8
            counts.dispatched += 5
            counts.ended(Outcome.COMPLETED)
            counts.ended(Outcome.REJECTED_QUOTA_RATE)
            counts.used(70, 30)
            counts.ttft.observe(0.2)
            counted.of(("globex", "batch")).offered = 4  # a flow that was not there before counts from 0
            gateway.body = gateway_page(counted, 3)
            (second,) = (await r.round(gateways=targets)).gateways
        assert first.flows is not None
        assert second.flows is not None
        assert [(f.tenant, f.covered_s, f.offered) for f in first.flows] == [("acme", None, None)]
        acme, globex = second.flows
        assert (acme.offered, acme.dispatched, acme.queued_requests) == (8, 5, 3)
        assert acme.outcomes == {"completed": 1, "rejected_quota_rate": 1}
        assert (acme.prompt_tokens, acme.output_tokens) == (70, 30)
        assert acme.histograms["ttft_s"].count == 1
        assert acme.histograms["ttft_s"].sum == pytest.approx(0.2)
        assert (globex.tenant, globex.offered, globex.dispatched) == ("globex", 4, 0)
        assert acme.covered_s == pytest.approx(PERIOD_S)

    asyncio.run(run())


def test_a_restarted_gateway_counts_from_zero(clock: ManualClock):
    async def run() -> None:
        async with small_nodes(1) as (gateway,), rig(clock) as r:
            targets = (Target("gw-1", f"{gateway.url}/metrics"),)
            before, after = GatewayMetrics(5.0), GatewayMetrics(6.0)
            before.of(("acme", "batch")).offered = 100
            after.of(("acme", "batch")).offered = 130
            gateway.body = gateway_page(before, 0)
            await r.round(gateways=targets)
            gateway.body = gateway_page(after, 0)
            (done,) = (await r.round(gateways=targets)).gateways
        assert done.flows is not None
        assert {f.offered for f in done.flows if f.tier == "batch"} == {130}

    asyncio.run(run())
