"""Forty minutes of flow in the real tables: p99 doubles every 15 minutes under a still p50."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from control.flow_book import FlowRound, FlowState
from control.flow_slices import Subject
from control.flow_store import write_flow
from fleet.equilibrium import assess_equilibrium
from fleet.flow_minutes import FlowMinute, FlowSlice, StageCount, flow_minute
from fleet.flow_signals import FlowRule, FlowSignal
from fleet.readings import Histogram
from fleet.slo import Objective
from fleet.slo_windows import PAIRS, GoodCount, burn

#: 0.1 s to 3,000 s, each edge 1.2 times the one before.
EDGES = tuple(0.1 * 1.2**step for step in range(57))
MINUTES = 40


def times(count: int, median_s: float, tail_s: float) -> Histogram:
    """Return 97 % of `count` around the median and 3 % at the tail."""
    slow = count * 3 // 100
    counts = [0] * (len(EDGES) + 1)
    counts[sum(edge < median_s for edge in EDGES)] += count - slow
    counts[sum(edge < tail_s for edge in EDGES)] += slow
    return Histogram(EDGES, tuple(counts), (count - slow) * median_s + slow * tail_s)


def minutes(last: datetime, count: int = MINUTES) -> list[FlowMinute]:
    """Return the `count` minutes until `last`: 10 req/s of 2 s each; the slowest 3 % take 8 s, doubling."""
    found: list[FlowMinute] = []
    for number in range(count):
        ended_s = (last - timedelta(minutes=count - 1 - number)).timestamp() // 60 * 60
        time = times(600, 2.0, 8.0 * 2 ** (number / 15))
        assert time.sum is not None
        found.append(
            flow_minute(
                [
                    FlowSlice(
                        ended_s,
                        60.0,
                        arrivals=600,
                        departures=600,
                        inside=time.sum / 60,
                        time=time,
                        ttft=times(600, 0.3, 0.9),
                        stages={"decode": StageCount(time.sum / 60 + 5, 600, time.sum)},
                        good=GoodCount(620, 582, 582),
                    )
                ],
                ended_s,
                60.0,
            )
        )
    return found


def add_flow(session: Session, last: datetime, count: int = MINUTES) -> None:
    """Write the fleet and a tier; the newest state is of `last`."""
    kept = minutes(last, count)
    state = assess_equilibrium([m.minute for m in kept], waiting=3, longest_wait_s=10.0, mu=12.0)
    hour = GoodCount(620 * MINUTES, 582 * MINUTES, 582 * MINUTES)
    burns = {name: burn(Objective(), hour, hour) for name in PAIRS}
    subjects: tuple[Subject, ...] = (("fleet", ""), ("tier", "interactive"))
    states = tuple(
        FlowState(subject, state, len(kept), kept[-1], kept[-1].time, kept[-1].ttft, 60.0, burns, hour)
        for subject in subjects
    )
    shares: list[dict[str, object]] = [
        {"tenant": "acme", "weight_ratio": 0.5, "share": 0.9, "entitled": 0.5, "is_backlogged": True},
        {"tenant": "globex", "weight_ratio": 0.5, "share": 0.1, "entitled": 0.5, "is_backlogged": True},
    ]
    signals = (
        FlowSignal(FlowRule.HOT_NODE, "node", "n2", 2.1, "n2: rho 0.93, the others of main 0.44"),
        FlowSignal(FlowRule.BURST, "fleet", "", None, "the fleet: arrivals have no baseline yet"),
        FlowSignal(
            FlowRule.UNFAIRNESS,
            "tier",
            "interactive",
            0.8,
            "interactive: globex got 10 % of the tokens where 50 % was its due",
            {"shares": shares},
        ),
    )
    closed = tuple((subject, minute, state) for subject in subjects for minute in kept)
    write_flow(session, FlowRound(last, states, closed, signals))
