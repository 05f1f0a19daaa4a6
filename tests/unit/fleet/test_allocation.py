"""Every rule of allocation adds up to the cent at every level; what it does with the unused part."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import combinations
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.allocation import Basis, Rule, Share, allocate
from fleet.commitments import Commitment, settle
from fleet.months import month_of
from fleet.spend import Charge, NodeTime, Use, subtotals, whole_cents

NOVEMBER = month_of("2026-11", ZoneInfo("UTC"))
LEVELS = ("tenant", "tier", "model", "pool", "kind")
POOLS, TENANTS = ("a", "b", "c"), ("acme", "beta", "gamma")


def use(tenant: str, engine_s: str, *, pool: str = "a", tokens: int = 10) -> Use:
    return Use(tenant, "batch", "m", pool, 1, tokens, tokens, Decimal(engine_s), Decimal(engine_s) * tokens)


money = st.decimals(0, 500, places=6)
seconds = st.decimals(0, 3_000_000, places=6)
node_times = st.builds(
    NodeTime,
    st.sampled_from(POOLS),
    st.sampled_from(("on_demand", "reserved", "spot")),
    seconds,
    st.one_of(money, st.none()),
)
uses = st.builds(
    Use,
    st.sampled_from(TENANTS),
    st.sampled_from(("interactive", "batch")),
    st.sampled_from(("m", "n")),
    st.sampled_from(POOLS),
    st.integers(0, 10**6),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    seconds,
    seconds,
)
charges = st.one_of(
    st.builds(Charge, st.just("commitment"), st.sampled_from(POOLS), money),
    st.builds(Charge, st.just("overhead"), st.just(""), money),
)
rules = st.builds(
    Rule,
    st.sampled_from(("engine_seconds", "tokens", "kv_token_seconds")),
    st.sampled_from(("apart", "proportional", "even")),
    st.decimals("0.5", 50, places=2),
)
lists: Any = st.lists


@settings(max_examples=150)
@given(
    lists(node_times, max_size=8),
    lists(uses, max_size=12),
    lists(charges, max_size=4),
    st.dictionaries(st.sampled_from(POOLS), st.one_of(st.none(), st.integers(1, 256))),
    rules,
    st.randoms(use_true_random=False),
)
def test_parts_equal_the_whole_at_every_level(
    node_time: list[NodeTime],
    used: list[Use],
    charged: list[Charge],
    slots: dict[str, int | None],
    rule: Rule,
    random: Any,
) -> None:
    month = allocate(NOVEMBER, node_time, used, slots, is_estimated=False, charges=charged, rule=rule)
    priced = [t for t in node_time if t.usd_per_node_hour is not None]
    cost = sum(
        (t.up_s / 3600 * (t.usd_per_node_hour or 0) for t in priced),
        sum((c.usd for c in charged), Decimal(0)),
    )
    assert abs(month.total_usd - whole_cents(cost)) <= Decimal("0.01")  # the order of sums may tip a half
    for size in range(len(LEVELS) + 1):
        for by in combinations(LEVELS, size):
            assert sum(subtotals(month.lines, *by).values(), Decimal(0)) == month.total_usd  # type: ignore[arg-type]
    assert all(line.amount_usd >= 0 for line in month.lines)
    assert all(line.amount_usd == round(line.amount_usd, 2) for line in month.lines)
    hours = sum((line.node_hours for line in month.lines), Decimal(0))
    assert abs(hours - month.node_hours) < Decimal("1e-12")
    placed = sum((line.engine_s for line in month.lines), Decimal(0))
    assert placed + month.unplaced_engine_s == sum((u.engine_s for u in used), Decimal(0))
    for items in (node_time, used, charged):
        random.shuffle(items)
    again = allocate(NOVEMBER, node_time, used, slots, is_estimated=False, charges=charged, rule=rule)
    assert [line.amount_usd for line in again.lines] == [line.amount_usd for line in month.lines]


@pytest.mark.parametrize(
    ("share", "acme", "beta", "nobody"),
    [
        # 10 h at 28 = 280 USD, 4 places: 144,000 s. acme held a quarter (70), beta a twelfth (23.33);
        # 186.67 USD are idle.
        ("apart", "70.00", "23.33", "186.67"),
        ("proportional", "210.00", "70.00", None),  # 3 : 1 of all of it
        ("even", "163.34", "116.66", None),  # half of the idle each: 93.34 and 93.33
    ],
)
def test_the_unused_part_stays_apart_or_is_shared_by_rule(
    share: Share, acme: str, beta: str, nobody: str | None
) -> None:
    node_time = [NodeTime("a", "on_demand", Decimal(36_000), Decimal(28))]
    month = allocate(
        NOVEMBER,
        node_time,
        [use("acme", "36000"), use("beta", "12000")],
        {"a": 4},
        is_estimated=False,
        rule=Rule(share=share),
    )
    by_tenant = subtotals(month.lines, "tenant")
    assert by_tenant.get(("",)) == (None if nobody is None else Decimal(nobody))
    assert by_tenant["acme",] == pytest.approx(Decimal(acme), abs=Decimal("0.01"))
    assert by_tenant["beta",] == pytest.approx(Decimal(beta), abs=Decimal("0.01"))
    assert subtotals(month.lines, "kind")["idle",] == Decimal("186.67")  # a line of its own all the same


def test_spot_nodes_beside_others_are_the_burst_line_and_alone_they_are_not() -> None:
    own, burst = (
        NodeTime("a", price_class, Decimal(3_600), Decimal(usd))
        for price_class, usd in (("on_demand", 28), ("spot", 16))
    )
    both = allocate(NOVEMBER, [own, burst], [use("acme", "3600")], {"a": 1}, is_estimated=False)
    # One of two node-hours was held: half of what the pool's own node cost.
    assert subtotals(both.lines, "kind") == {
        ("usage",): Decimal("14.00"),
        ("idle",): Decimal("14.00"),
        ("burst",): Decimal("16.00"),
    }
    alone = allocate(NOVEMBER, [burst], [use("acme", "3600")], {"a": 1}, is_estimated=False)
    assert subtotals(alone.lines, "kind")["usage",] == Decimal("16.00")


@pytest.mark.parametrize(
    ("basis", "acme"),
    # 60 USD used by two: 1 h each of engine time; acme 100 + 100 tokens, beta 300 + 300.
    [("engine_seconds", "30.00"), ("tokens", "15.00"), ("kv_token_seconds", "15.00")],
)
def test_the_basis_divides_what_was_used(basis: Basis, acme: str) -> None:
    month = allocate(
        NOVEMBER,
        [NodeTime("a", "on_demand", Decimal(7_200), Decimal(30))],
        [use("acme", "3600", tokens=100), use("beta", "3600", tokens=300)],
        {"a": None},
        is_estimated=False,
        rule=Rule(basis),
    )
    assert subtotals(month.lines, "tenant")["acme",] == Decimal(acme)


def test_the_first_commitment_covers_first_and_the_rest_is_priced() -> None:
    start = datetime(2026, 11, 1, tzinfo=UTC)
    early, late = (
        Commitment(number, "nodes", "a", 1, Decimal(usd), Decimal(0), start, start + timedelta(hours=hours))
        for number, usd, hours in ((1, 10, 1), (2, 20, 2))
    )
    # Three reserved nodes in the first quarter-hour, none afterwards: 900 s each.
    settled = settle([late, early], {("a", start): Decimal(2_700)}, NOVEMBER, NOVEMBER.end)
    assert [(t.up_s, t.usd_per_node_hour) for t in settled.used] == [(900, 10), (900, 20)]
    assert settled.left == {("a", start): Decimal(900)}
    # Unused: 0.75 h at 10 and 1.75 h at 20.
    (unused,) = settled.charges
    assert unused.usd == Decimal("42.5")
    # Half-way through the first hour only half of it is due: 0.25 h at 10 and at 20.
    running = settle([early, late], {("a", start): Decimal(2_700)}, NOVEMBER, start + timedelta(minutes=30))
    assert running.charges[0].usd == Decimal("7.5")


def test_an_upfront_payment_is_spread_over_its_term() -> None:
    start = datetime(2026, 11, 30, 12, tzinfo=UTC)
    platform = Commitment(
        1, "platform", None, 1, Decimal(2), Decimal(240), start, start + timedelta(hours=24)
    )
    # 240 USD over 24 h is 10 an hour, with 2 it is 12; half of the term lies in November.
    settled = settle([platform], {}, NOVEMBER, NOVEMBER.end)
    assert [(c.kind, c.usd) for c in settled.charges] == [("overhead", Decimal(144))]
