"""Each scenario shows, on the engine model, the situation it is named after."""

import pytest

from fleet.engine import Engine
from fleet.engine_profile import H100_70B_FP8
from fleet.engine_request import EngineRequest, EventKind
from fleet.errors import NotFound
from simfleet.scenarios import SCENARIOS, arrivals, scenario_named, service_rate


def play(name: str):
    """Run a scenario on one node; return the engine, its queue each 10 s, and TTFTs of short prompts."""
    scenario, engine = scenario_named(name), Engine(H100_70B_FP8)
    waiting: list[int] = []
    sent_at: dict[str, float] = {}
    ttft_s: list[float] = []

    def look(now: float) -> None:
        ttft_s.extend(
            event.at_s - sent_at[event.request_id]
            for event in engine.advance(now)
            if event.kind is EventKind.FIRST_OUTPUT and event.request_id in sent_at
        )

    for number, arrival in enumerate(arrivals(scenario, H100_70B_FP8, seed=1)):
        while len(waiting) * 10 < arrival.at_s:
            look(len(waiting) * 10.0)
            waiting.append(engine.waiting)
        request_id = str(number)
        if not arrival.is_long:
            sent_at[request_id] = arrival.at_s
        engine.submit(EngineRequest(request_id, arrival.prompt_tokens, arrival.output_tokens), arrival.at_s)
    look(scenario.length_s)
    return engine, waiting, sorted(ttft_s)


@pytest.mark.parametrize("name", SCENARIOS)
def test_arrivals_offer_the_load_they_promise(name):
    scenario = scenario_named(name)
    times = [a.at_s for a in arrivals(scenario, H100_70B_FP8, seed=3)]
    mu = service_rate(scenario, H100_70B_FP8)
    expected = sum(phase.length_s * phase.load_ratio for phase in scenario.phases) * mu
    assert times == sorted(times)
    assert len(times) == pytest.approx(expected, abs=4 * expected**0.5)  # Poisson: four deviations


def test_steady_never_queues_for_long_and_idle_never_at_all():
    _, waiting, _ = play("steady")
    assert max(waiting) == 0  # 64 slots hold some 20 requests at 70 %
    _, waiting, _ = play("idle")
    assert max(waiting) == 0


def test_overload_grows_its_queue_by_what_exceeds_the_service_rate():
    # arrivals 3.3/s against 3.0/s: 0.3/s * 1,800 s = 540 waiting at the end, less the 64 in slots
    engine, waiting, _ = play("overload_110")
    assert engine.running == 64
    assert waiting[-1] == pytest.approx(0.3 * 1800 - 64, rel=0.35)
    assert waiting[len(waiting) // 2] < waiting[-1]


def test_a_burst_queues_and_drains():
    _, waiting, _ = play("burst")
    assert max(waiting[:59]) == 0
    assert max(waiting[60:72]) > 20
    assert waiting[-1] == 0


def test_long_prompts_delay_the_first_token_of_short_ones():
    # a 12,000-token prompt fills steps of 8,192 tokens * 22 us = 180 ms that short prompts must share
    _, _, mixed = play("long_context_blocking")
    _, _, plain = play("steady")
    p99 = [values[int(len(values) * 0.99)] for values in (mixed, plain)]
    assert p99[0] > 2 * p99[1]


def test_unknown_scenario_names_the_known_ones():
    with pytest.raises(NotFound) as caught:
        scenario_named("rush")
    assert "overload_110" in caught.value.hint
