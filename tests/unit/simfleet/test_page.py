"""The simulated page against a page vLLM 0.32.0 served, and against the engine behind it."""

import dataclasses
import re
from pathlib import Path

import pytest

from fleet.dialects import read_page
from fleet.engine import Engine
from fleet.engine_profile import profile_named
from fleet.engine_request import EngineRequest, FinishReason
from fleet.readings import PageState
from simfleet.page import HttpTally, MetricsPage

REAL = Path(__file__).parents[2] / "data" / "metrics"
TINY = profile_named("tiny")
BOOT_S = 1_795_952_077.5


def structure(page: str) -> list[str]:
    """Every line without its value; the cache configuration by label names only."""
    lines: list[str] = []
    for line in page.splitlines():
        bare = line if line.startswith("#") else line.rsplit(" ", 1)[0]
        if bare.startswith(("vllm:cache_config_info{", "python_info{")):
            bare = ",".join(re.findall(r"(\w+)=", bare))
        lines.append(bare)
    return lines


def busy_node(seconds: float) -> tuple[Engine, HttpTally]:
    engine, http = Engine(TINY), HttpTally()
    for n in range(60):
        reason = FinishReason.STOP if n % 3 else FinishReason.LENGTH
        request = EngineRequest(str(n), 50 + n, 100 + n, max_tokens=300, reason=reason)
        engine.submit(request, n * 0.2)
    engine.advance(seconds)
    return engine, http


def test_an_idle_page_has_the_structure_of_a_real_one():
    page = MetricsPage(TINY, "tiny", BOOT_S).render(Engine(TINY), HttpTally()).decode()
    assert structure(page) == structure((REAL / "vllm-0.32.0-cpu-idle-fresh.prom.txt").read_text())


def test_a_loaded_page_has_the_structure_of_a_real_one():
    engine, http = busy_node(seconds=1000)
    # the calls behind the captured page, in their order
    http.book("/v1/models", "GET", 200, 0.001, 0, 448)
    http.book("none", "GET", 404, 0.001, 0, 22)
    http.book("/kv_event_sources", "GET", 200, 0.001, 0, 2)
    http.book("/v1/completions", "POST", 200, 1.2, 558, 0)
    page = MetricsPage(TINY, "tiny", BOOT_S).render(engine, http).decode()
    assert structure(page) == structure((REAL / "vllm-0.32.0-cpu-steady-load.prom.txt").read_text())


@pytest.mark.parametrize("seconds", [0.5, 8.0, 1000.0])
def test_the_reader_gets_back_exactly_what_the_engine_counted(seconds):
    engine, http = busy_node(seconds)
    http.book("/v1/completions", "POST", 200, 1.2, 558, 0)
    http.book("/v1/completions", "POST", 404, 1.2, 558, 0)
    page = read_page(MetricsPage(TINY, "tiny", BOOT_S).render(engine, http), source="simulated")
    assert (page.state, page.dialect, page.dropped) == (PageState.OK, "vllm", ())
    assert page.process_start_time_s == BOOT_S
    assert page.http_finished == 1
    (reading,) = page.engines
    expected = engine.reading()
    for item in dataclasses.fields(expected):
        if item.name not in ("cache_config", "flags", "kv_used_ratio"):
            assert getattr(reading, item.name) == getattr(expected, item.name), item.name
    assert reading.kv_used_ratio == pytest.approx(engine.kv_used_ratio)
    assert reading.flags == ()


def test_the_reader_finds_in_a_simulated_page_whatever_it_finds_in_a_real_one():
    real = read_page((REAL / "vllm-0.32.0-cpu-idle-fresh.prom.txt").read_bytes(), source="real")
    page = MetricsPage(TINY, "tiny", BOOT_S).render(Engine(TINY), HttpTally())
    ours = read_page(page, source="simulated")
    assert (ours.dialect, ours.shape, ours.state) == (real.dialect, real.shape, real.state)
    (theirs,), (simulated,) = real.engines, ours.engines
    for item in dataclasses.fields(theirs):
        known = getattr(theirs, item.name) is not None
        assert (getattr(simulated, item.name) is not None) == known, item.name
    assert {name: h.edges for name, h in simulated.histograms.items()} == {
        name: h.edges for name, h in theirs.histograms.items()
    }
    assert set(simulated.cache_config or {}) == set(theirs.cache_config or {})


def test_a_hostile_model_name_is_escaped():
    name = 'a"b\\c\nd'
    page = MetricsPage(TINY, name, BOOT_S).render(Engine(TINY), HttpTally())
    assert [engine.model for engine in read_page(page, source="x").engines] == [name]
