"""The event simulation against exact queueing formulas, its plain twin, and itself in parts."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from control.rate_profile_files import bundled_profile
from fleet.errors import InvalidInput
from fleet.fluid import BIN_S, DAY_BINS, simulate
from fleet.month_result import NodeClass, as_columns
from fleet.queueing import calculate
from fleet.simulate import EventRun, ServiceModel, run_events
from fleet.strategies import read_strategy

#: Exponential service has squared cv 1; a lognormal one does not have its tail, so draw it ourselves.
NODE = NodeClass(service_rate=3.0)


def exponential_run(
    rate_rps: float, nodes: int, wait_s: float | None, bins: int, seed: int = 3
) -> EventRun:
    """An M/M/c queue with one slot a node."""
    params: dict[str, Any] = {"n": nodes} if wait_s is None else {"n": nodes, "D": wait_s}
    run = EventRun(np.full(bins, rate_rps), read_strategy(params), NODE, ServiceModel(slots=1), seed)
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / rate_rps, int(rate_rps * bins * BIN_S * 1.1))
    arrivals_s = np.cumsum(gaps)
    arrivals_s = arrivals_s[arrivals_s < bins * BIN_S]
    run.advance_with(arrivals_s, rng.exponential(1 / NODE.service_rate, arrivals_s.size), bins)
    return run


@pytest.mark.parametrize("rate_rps", [12.0, 14.25, 15.0, 18.0])
def test_timeouts_are_those_of_a_queue_with_deterministic_patience(rate_rps: float) -> None:
    exact = calculate("mmc_D", {"lam": rate_rps, "mu": 3, "c": 5, "D": 1.5}, "p_timeout").value
    found = exponential_run(rate_rps, 5, 1.5, 60_000).result().refused_share
    # Refusals come in runs, so their standard error is several times the binomial one.
    assert found == pytest.approx(exact, abs=12 * math.sqrt(exact / (rate_rps * 600_000)))


def test_waits_are_those_of_mmc() -> None:
    exact = calculate("mmc", {"lam": 12, "mu": 3, "c": 5}, "Wq").value
    tail = calculate("mmc", {"lam": 12, "mu": 3, "c": 5}, "Wq_p99").value
    run = exponential_run(12.0, 5, None, 60_000)
    waits = np.concatenate(run._waits)
    assert waits.mean() == pytest.approx(exact, rel=0.03)
    assert run.result().wait_p99_s == pytest.approx(tail, rel=0.05)


def test_a_run_in_parts_is_the_run_at_once() -> None:
    rates = np.full(3 * DAY_BINS, 2.9)
    params = {"n": 1, "D": 60, "burst": {"n": 1, "price": 6, "up": 0.1, "down": 0.0, "interrupt_h": 0.7}}
    day_by_day = EventRun(rates, read_strategy(params), seed=5)
    service = ServiceModel(slots=2)
    arrivals_s = np.sort(np.random.default_rng(1).uniform(0, rates.size * BIN_S, 750_000))
    services_s = service.draw(np.random.default_rng(2), arrivals_s.size, NODE)
    results = []
    for edges in ([rates.size], [1, 999, DAY_BINS, DAY_BINS + 1, 20_000, rates.size]):
        run = EventRun(rates, read_strategy(params), NODE, service)
        first_s = 0.0
        for edge in edges:
            part = (arrivals_s >= first_s) & (arrivals_s < edge * BIN_S)
            run.advance_with(arrivals_s[part], services_s[part], edge)
            first_s = edge * BIN_S
        results.append(as_columns(run.result()))
    assert results[0] == results[1]
    assert results[0]["lost_inflight"] > 0
    assert day_by_day.days == 3


def test_every_request_is_served_refused_or_waiting() -> None:
    run = EventRun(bundled_profile("A").month()[:DAY_BINS], read_strategy({"n": 5, "D": 1.5}))
    told: list[tuple[int, int]] = []
    r = run_events(run, lambda done, of: told.append((done, of)) is None)
    assert told == [(1, 1)]
    assert run.is_done
    assert r.offered == r.served + r.refused + run._carried_s.size
    assert r.offered == pytest.approx(12 * 86_400, rel=0.005)
    # What the reference's event simulation found for this traffic, and the fluid method a little below.
    assert r.refused_share == pytest.approx(0.066, abs=0.004)
    assert r.refused_share > simulate(run.rates_rps, run.strategy).refused_share


def test_a_seed_gives_the_same_month_and_another_seed_another() -> None:
    rates = bundled_profile("A").month()[:2_000]
    months = [
        as_columns(run_events(EventRun(rates, read_strategy({"n": 4, "D": 1.5}), seed=seed)))
        for seed in (1, 1, 2)
    ]
    assert months[0] == months[1]
    assert months[0] != months[2]


def test_it_can_be_stopped_after_a_day() -> None:
    run = EventRun(np.full(3 * DAY_BINS, 1.0), read_strategy({"n": 1, "D": 1.5}))
    run_events(run, lambda done, _: done < 2)
    assert (run.days_done, run.is_done) == (2, False)
    assert run.result().node_hours == pytest.approx(48)


@pytest.mark.parametrize(
    ("rates_rps", "params", "slots", "words"),
    [
        ([1.0], {"n": 10_000}, 1_000, "all nodes have 10,000,000 slots"),
        ([1.0, 3e6], {"n": 1}, 36, "day 1 has 30,000,010 requests"),
    ],
)
def test_what_fits_into_no_memory_is_refused_before_it_begins(
    rates_rps: list[float], params: dict[str, Any], slots: int, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        EventRun(np.array(rates_rps), read_strategy(params), service=ServiceModel(slots))


def test_a_queue_without_end_ends_the_run_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.simulate.MAX_QUEUED", 1_000)
    run = EventRun(np.full(200, 12.0), read_strategy({"n": 1}))  # 12 come, 3 are served: 18,000 wait
    with pytest.raises(InvalidInput, match=r"1[78],\d{3} requests wait at the end of day 1"):
        run.advance()


def test_nothing_simulated_has_no_result() -> None:
    with pytest.raises(InvalidInput, match="nothing is simulated"):
        EventRun(np.ones(10), read_strategy({"n": 1})).result()


TWIN = """
import json, sys
import numpy as np
from fleet.month_result import as_columns
from fleet.simulate import EventRun, ServiceModel, run_events
from fleet.strategies import read_strategy
found = []
for params, rates in json.load(sys.stdin):
    run = EventRun(np.array(rates), read_strategy(params), service=ServiceModel(slots=3), seed=9)
    found.append(as_columns(run_events(run)))
print(json.dumps(found))
"""


def test_compiled_and_plain_python_agree() -> None:
    auto = {"mode": "predictive", "rho": 0.85, "min": 1, "max": 6, "stab_s": 60, "cold_s": 40}
    burst = {
        "n": 2,
        "price": 6,
        "warm_s": 30,
        "up": 0.9,
        "down": 0.75,
        "cooldown_s": 60,
        "interrupt_h": 0.1,
    }
    rates = (3 + 2.8 * np.sin(np.arange(400) / 20)).tolist()
    cases = [({"n": 1, "D": 1.5, "auto": auto, "burst": burst}, rates), ({"n": 2}, rates)]
    answers = [
        subprocess.run(
            [sys.executable, "-c", TWIN],
            input=json.dumps(cases),
            env=os.environ | {"NUMBA_DISABLE_JIT": disabled},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for disabled in ("1", "0")
    ]
    assert json.loads(answers[0]) == json.loads(answers[1])
    assert json.loads(answers[0])[0]["rejected"] > 0
