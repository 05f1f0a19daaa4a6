"""From a simulated node's pages back to the capacity it was built with: page, reader, window, estimate."""

import numpy as np
import pytest

from fleet.capacity import Method
from fleet.capacity_learner import CapacityLearner
from fleet.dialects import read_page
from fleet.engine import Engine
from fleet.engine_profile import H100_70B_FP8
from fleet.engine_request import EngineRequest
from fleet.saturation import EngineLimits
from fleet.windows import window
from simfleet.page import HttpTally, MetricsPage
from simfleet.scenarios import arrivals, scenario_named

PERIOD_S = 10.0


@pytest.mark.parametrize(
    ("name", "method", "tolerance"),
    [("steady", Method.CURVE, 0.05), ("overload_110", Method.OBSERVED_SATURATION, 0.04)],
)
def test_the_capacity_read_from_pages_is_the_profiles_own(name, method, tolerance):
    # truth: 3.0 requests/s at 500 in + 300 out with all 64 slots taken
    scenario, profile = scenario_named(name), H100_70B_FP8
    engine, page = Engine(profile), MetricsPage(profile, profile.model, 1_800_000_000.0)
    learner = CapacityLearner(EngineLimits(profile.max_num_seqs, profile.max_num_batched_tokens))
    rounds, sent, arrived = 0, 0, 0
    before = read_page(page.render(engine, HttpTally()), source="node")
    for number, arrival in enumerate(arrivals(scenario, profile, seed=2)):
        while (rounds + 1) * PERIOD_S < arrival.at_s:
            rounds += 1
            engine.advance(rounds * PERIOD_S)
            after = read_page(page.render(engine, HttpTally()), source="node")
            (seen,) = window(before, after, PERIOD_S)
            learner.add(rounds * PERIOD_S, seen)
            arrived += seen.arrivals or 0
            before = after
        request = EngineRequest(str(number), arrival.prompt_tokens, arrival.output_tokens)
        engine.submit(request, arrival.at_s)
        sent += 1
    estimate = learner.estimate(rounds * PERIOD_S, np.random.default_rng(1))
    assert estimate.method is method
    assert estimate.binding == "slots"
    assert estimate.requests_per_s == pytest.approx(3.0, rel=tolerance)
    assert (estimate.low_requests_per_s or 0) <= 3.0 * 1.02
    assert (estimate.high_requests_per_s or 0) >= 3.0 * 0.98
    # nothing aborted, so arrivals by the counters are those sent, but for the last period and one step
    assert arrived == pytest.approx(sent, abs=60)
