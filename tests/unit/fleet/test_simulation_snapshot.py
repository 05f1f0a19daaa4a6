"""A simulation that is stopped goes on exactly where it was; waits are counted within their bound."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import InvalidInput
from fleet.month_result import NodeClass, as_dict
from fleet.replications import spread
from fleet.simulate import EventRun, ServiceModel
from fleet.simulation_snapshot import resume, snapshot
from fleet.strategies import Autoscaler, BurstPool, Mode, Strategy
from fleet.wait_tally import ERROR_RATIO, WaitTally, restored

#: Three days with a burst each noon: at most 3 requests/s, a node serves 0.3.
HOURS = np.arange(3 * 8_640) / 360 % 24
RATES = np.where((HOURS > 11.5) & (HOURS < 12.5), 3.0, 1.0)
NODE = NodeClass(service_rate=0.3, usd_per_hour=Decimal(28))
EVERYTHING = Strategy(
    4,
    1.5,
    Autoscaler(Mode.REACTIVE, 0.85, 2, 9, 300.0, 240.0),
    BurstPool(2, Decimal(16), 180.0, 0.9, 0.75, 300.0, interrupted_after_h=0.3),
)


def a_run(strategy: Strategy = EVERYTHING, *, seed: int = 7, keeps: bool = False) -> EventRun:
    return EventRun(RATES, strategy, NODE, ServiceModel(slots=4), seed, keeps_waits=keeps)


def test_a_stopped_simulation_goes_on_as_if_it_had_not_been() -> None:
    straight = a_run()
    while not straight.is_done:
        straight.advance()
    first = a_run()
    first.advance()
    second = a_run()
    resume(second, snapshot(first))
    assert second.days_done == 1
    second.advance()
    third = a_run()
    resume(third, snapshot(second))
    third.advance()
    assert as_dict(third.result()) == as_dict(straight.result())
    assert np.array_equal(third.result().nodes_by_bin, straight.result().nodes_by_bin)
    assert straight.result().refused > 0
    assert straight.result().lost_in_flight > 0  # the case has everything that can be forgotten


def test_counted_waits_say_what_kept_ones_say() -> None:
    counted, kept = a_run(), a_run(keeps=True)
    for run in (counted, kept):
        while not run.is_done:
            run.advance()
    a, b = as_dict(counted.result()), as_dict(kept.result())
    for name in [name for name in a if name.startswith("wait_p")]:
        assert b[name] * (1 - ERROR_RATIO) <= a.pop(name) <= b.pop(name)
    assert a == b  # everything else is exact


@given(st.lists(st.floats(0, 1e5, width=32), min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_a_quantile_is_at_most_its_bound_below_the_true_one(waits: list[float], share: float) -> None:
    values = np.array(waits, dtype=np.float32)
    tally = WaitTally()
    tally.add(values[:100])
    tally.add(values[100:])
    again = restored(*tally.sparse(), tally.longest_s)
    true = float(np.sort(values)[max(1, int(np.ceil(share * values.size))) - 1])
    (found,) = again.quantiles((share,))
    if true > 1e-30:
        assert true * (1 - ERROR_RATIO) <= found <= true
    else:
        assert 0 <= found <= true
    assert again.total == values.size
    assert again.longest_s == float(values.max())


@pytest.mark.parametrize("body", [b"", b"PK\x03\x04 nothing", b"\x93NUMPY"])
def test_what_is_no_snapshot_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="does not fit"):
        resume(a_run(), body)


def test_a_snapshot_of_other_inputs_is_refused_and_changes_nothing() -> None:
    other = a_run(Strategy(4, 1.5, Autoscaler(Mode.REACTIVE, 0.85, 2, 9, 300.0, 600.0)))
    other.advance()
    run = a_run()
    with pytest.raises(InvalidInput, match="does not fit"):
        resume(run, snapshot(other))
    assert run.days_done == 0


def test_an_interval_is_student_s_and_needs_two_months() -> None:
    # mean 2, s 1, n 3: t(0.975, 2) = 4.302653, half width 4.302653 / sqrt(3) = 2.484138
    found = spread([1.0, 2.0, 3.0])
    assert found is not None
    assert found.low == pytest.approx(2 - 2.484138, abs=1e-5)
    assert found.high == pytest.approx(2 + 2.484138, abs=1e-5)
    single = spread([2.0])
    assert single is not None
    assert (single.mean, single.low, single.high) == (2.0, None, None)
    assert spread([1.0, None]) is None
