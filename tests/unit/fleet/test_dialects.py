"""Real pages of six vLLM versions, read to values counted by hand in the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.dialects import read_page
from fleet.readings import EngineReading, Histogram, PageReading, PageState

PAGES = Path(__file__).parents[2] / "data" / "metrics"


def page(name: str) -> PageReading:
    return read_page((PAGES / f"vllm-{name}.prom.txt").read_bytes(), source=name)


def only(reading: PageReading) -> EngineReading:
    (engine,) = reading.engines
    return engine


T, MP = "prometheus_text", "prometheus_text_multiprocess"
OM, OMR = "openmetrics", "openmetrics_renamed"

# file: dialect, shape, state, then per engine (running, waiting, finished by length, stop, prompt and
# output tokens, preemptions), each grepped out of the file. None: the file has no such line.
EXPECTED = {
    "0.9.0.1-cpu-v0-idle-fresh": ("vllm_v0", MP, "no_engine_series", []),
    "0.9.0.1-cpu-v0-saturated-waiting": ("vllm_v0", MP, "ok", [(4, 135, 103, None, 12453, 21405, 0)]),
    "0.9.0.1-cpu-v0-show-hidden-0.8-under-load": ("vllm_v0", MP, "ok", [(1, 0, 70, None, 7860, 15797, 0)]),
    "0.11.0-cpu-v1-idle-fresh": ("vllm", T, "ok", [(0, 0, 0, 0, 0, 0, 0)]),
    "0.11.0-cpu-v1-show-hidden-0.10-saturated-waiting": ("vllm", T, "ok", [(4, 63, 9, 0, 1050, 2493, 0)]),
    "0.16.0-cpu-idle-fresh": ("vllm", T, "ok", [(0, 0, 0, 0, 0, 0, 0)]),
    "0.16.0-cpu-after-client-aborts": ("vllm", T, "ok", [(0, 0, 285, 0, 34204, 60045, 0)]),
    "0.32.0-cpu-idle-fresh": ("vllm", T, "ok", [(0, 0, 0, 0, 0, 0, 0)]),
    "0.32.0-cpu-steady-load": ("vllm", T, "ok", [(0, 0, 43, 0, 4075, 11335, 0)]),
    "0.32.0-cpu-saturated-waiting": ("vllm", T, "ok", [(4, 109, 131, 0, 13875, 31782, 0)]),
    "0.32.0-cpu-drained-after-saturation": ("vllm", T, "ok", [(0, 0, 288, 0, 31711, 69712, 0)]),
    "0.32.0-cpu-after-client-aborts": ("vllm", T, "ok", [(0, 0, 311, 0, 37195, 77752, 0)]),
    "0.32.0-cpu-after-errors": ("vllm", T, "ok", [(0, 0, 378, 2, 42904, 96820, 0)]),
    "0.32.0-cpu-after-restart-counter-reset": ("vllm", T, "ok", [(0, 0, 13, 0, 1535, 1083, 0)]),
    "0.32.0-cpu-after-preemptions": ("vllm", T, "ok", [(0, 0, 55, 0, 6216, 17203, 27)]),
    "0.32.0-cpu-admission-limited-after-rejections": ("vllm", T, "ok", [(0, 0, 28, 0, 3355, 7237, 0)]),
    "0.32.0-cpu-lora-load": ("vllm", T, "ok", [(4, 44, 28, 0, 3394, 5765, 0)]),
    "0.32.0-cpu-dp2-load": (
        "vllm",
        MP,
        "ok",
        [(2, 15, 20, 0, 2071, 3918, 0), (2, 14, 20, 0, 2496, 4247, 0)],
    ),
    "0.32.0-cpu-api-server-count2-idle-fresh": ("vllm", MP, "ok", [(None, None, 0, 0, 0, 0, 0)]),
    "0.32.0-cpu-extras-mfu-kvresidency-spec-custombuckets": (
        "vllm",
        T,
        "ok",
        [(4, 13, 29, 0, 3777, 9543, 0)],
    ),
    "0.32.0-cpu-show-hidden-for-0.31": ("vllm", T, "ok", [(0, 0, 6, 0, 618, 400, 0)]),
    "0.32.0-cpu-stalled-worker-1": ("vllm", T, "ok", [(2, 0, 28, 0, 3087, 3181, 0)]),
    "0.32.0-cpu-disable-log-stats": ("vllm", T, "no_engine_series", []),
    "0.32.0-cpu-openmetrics-negotiated-at-slash": ("vllm", OMR, "ok", [(0, 0, 19, 0, 1896, 1823, 0)]),
    "0.32.0-rustfrontend-idle-fresh": ("vllm", OM, "ok", [(0, 0, None, None, None, 0, 0)]),
    "0.32.0-rustfrontend-saturated-waiting": ("vllm", OM, "ok", [(3, 15, 70, None, 8348, 17504, 0)]),
}


def test_every_captured_page_is_expected():
    assert {f"vllm-{name}.prom.txt" for name in EXPECTED} == {p.name for p in PAGES.glob("*.prom.txt")}


@pytest.mark.parametrize("name", EXPECTED)
def test_captured_pages(name: str):
    dialect, shape, state, engines = EXPECTED[name]
    reading = page(name)
    assert (reading.dialect, reading.shape, reading.state.value) == (dialect, shape, state)
    assert reading.dropped == ()
    assert [
        (
            e.running,
            e.waiting,
            e.finished.get("length"),
            e.finished.get("stop"),
            e.prompt_tokens,
            e.generation_tokens,
            e.preemptions,
        )
        for e in reading.engines
    ] == engines
    assert [e.engine for e in reading.engines] == (
        [""] * len(engines) if dialect == "vllm_v0" else [str(i) for i in range(len(engines))]
    )
    assert all(e.model == "tiny" for e in reading.engines)


def test_a_histogram_is_read_bucket_by_bucket():
    # e2e buckets as in the file, cumulative, le 0.3 to 15: 4 12 26 32 43 56 66 88 124 131, then 131
    got = only(page("0.32.0-cpu-saturated-waiting")).histograms["e2e_s"]
    assert got.edges[:11] == (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0)
    assert got.counts[:10] == (4, 8, 14, 6, 11, 13, 10, 22, 36, 7)
    assert len(got.edges) == 21
    assert got.counts[10:] == (0,) * 12
    assert got.count == 131
    assert got.sum == pytest.approx(494.1735074520111)


def test_cache_configuration_gives_the_capacity():
    engine = only(page("0.32.0-cpu-saturated-waiting"))
    assert engine.cache_config is not None
    assert engine.cache_config["num_gpu_blocks"] == "16384"
    assert engine.kv_capacity_tokens == 2_097_152  # its own figure, and 16,384 blocks of 128
    v0 = only(page("0.9.0.1-cpu-v0-saturated-waiting"))
    assert v0.kv_capacity_tokens == 131_072 * 16
    rust = only(page("0.32.0-rustfrontend-saturated-waiting"))
    assert (rust.cache_config, rust.kv_capacity_tokens) == (None, None)


def test_page_level_facts():
    reading = page("0.32.0-cpu-admission-limited-after-rejections")
    assert (reading.http_finished, reading.http_failed, reading.admission_rejections) == (41, 81, 94)
    assert reading.process_start_time_s == pytest.approx(1.79595e9, rel=1e-4)
    assert page("0.9.0.1-cpu-v0-saturated-waiting").http_finished is None


def test_operators_can_set_the_bounds():
    edges = only(page("0.32.0-cpu-extras-mfu-kvresidency-spec-custombuckets")).histograms["e2e_s"].edges
    assert (edges[0], edges[-1]) == (0.05, 16.0)


def test_a_histogram_named_like_a_counter_is_a_histogram():
    got = only(page("0.32.0-cpu-saturated-waiting")).histograms["iteration_tokens"]
    assert isinstance(got, Histogram)
    assert (got.count, got.sum) == (12176, 45657.0)


@pytest.mark.parametrize(
    ("body", "content_type", "state", "words"),
    [
        (b"[]", "application/json", PageState.NOT_METRICS, "/prometheus/metrics"),
        (b'{"detail":"Not Found"}', None, PageState.NOT_METRICS, "JSON"),
        (b"<!doctype html><html></html>", "text/html", PageState.NOT_METRICS, "web page"),
        (b"Internal Server Error", "text/plain", PageState.NOT_METRICS, "No line"),
        (b"", None, PageState.NOT_METRICS, "empty"),
        (b"", "text/plain; version=0.0.4", PageState.NO_ENGINE_SERIES, "empty"),
        (b"node_load1 0.5\n", None, PageState.NO_ENGINE_SERIES, "another exporter"),
        (b"\x00\xff\xfe\x80" * 100, None, PageState.NOT_METRICS, "No line"),
    ],
)
def test_what_is_no_engines_page(body: bytes, content_type: str | None, state: PageState, words: str):
    reading = read_page(body, source="x", content_type=content_type)
    assert reading.state is state
    assert words in reading.hint
    assert reading.engines == ()


def test_replicas_on_one_page_stay_apart():
    body = b"".join(
        b'ray_vllm_num_requests_running{model_name="m",engine="0",ReplicaId="%s"} %d\n' % (r, n)
        for r, n in ((b"a", 3), (b"b", 4))
    )
    reading = read_page(body, source="x")
    assert [(e.engine, e.running) for e in reading.engines] == [("0@a", 3), ("0@b", 4)]
