"""What a node's page means for admission: sums over engines, unknown stays unknown, buckets not needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from admission.nodes import node_state, poll_interval_s, without_buckets
from fleet.budget import STALE_AFTER_S
from fleet.dialects import read_page
from fleet.readings import EngineReading


def reading(engine: str, **known: float | int | None) -> EngineReading:
    return EngineReading(engine=engine, model="m", **known)  # type: ignore[arg-type]


def test_counts_add_up_and_kv_use_is_weighted_by_size() -> None:
    engines = [
        reading("0", running=2, waiting=1, kv_used_ratio=0.5, kv_capacity_tokens=1_000),
        reading("1", running=3, waiting=0, kv_used_ratio=0.1, kv_capacity_tokens=3_000),
    ]
    state = node_state("n", engines, 5.0)
    assert (state.running, state.waiting, state.kv_capacity_tokens) == (5, 1, 4_000)
    assert state.kv_used_ratio == pytest.approx((0.5 * 1_000 + 0.1 * 3_000) / 4_000)
    assert state.healthy
    assert state.seen_at_s == 5.0


@pytest.mark.parametrize("part", ["running", "waiting", "kv_used_ratio", "kv_capacity_tokens"])
def test_what_one_engine_does_not_say_is_unknown_for_the_node(part: str) -> None:
    known = {"running": 2, "waiting": 1, "kv_used_ratio": 0.5, "kv_capacity_tokens": 1_000}
    state = node_state("n", [reading("0", **known), reading("1", **(known | {part: None}))], 0.0)
    assert getattr(state, part) is None


def test_a_node_without_engines_says_nothing() -> None:
    state = node_state("n", [], 0.0)
    assert (state.running, state.waiting, state.kv_used_ratio) == (None, None, None)


@pytest.mark.parametrize("nodes", [1, 12, 250, 251, 600, 1_000])
def test_polls_of_many_nodes_leave_half_of_the_process_to_requests(nodes: int) -> None:
    interval_s = poll_interval_s(nodes, 0.5)
    assert nodes * 0.001 / interval_s <= 0.5  # a poll takes a millisecond
    assert interval_s >= 0.5
    assert 2 * interval_s + 1.0 <= STALE_AFTER_S  # one poll may be lost, and one take its whole deadline
    assert nodes > 250 or interval_s == 0.5  # what was asked for, as long as that is possible


PAGES = sorted((Path(__file__).parents[2] / "data" / "metrics").glob("*.prom.txt"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_without_buckets_means_the_same_to_admission(path: Path) -> None:
    page = path.read_bytes()
    whole = read_page(page, source="whole")
    short = read_page(without_buckets(page), source="short")
    assert short.state is whole.state
    assert node_state("n", short.engines, 0.0) == node_state("n", whole.engines, 0.0)
    parts = ("generation_tokens", "prompt_tokens", "finished")
    assert [[getattr(engine, part) for part in parts] for engine in short.engines] == [
        [getattr(engine, part) for part in parts] for engine in whole.engines
    ]


def test_there_are_real_pages_to_compare() -> None:
    assert len(PAGES) >= 10
