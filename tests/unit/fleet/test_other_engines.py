"""Pages of engines that were not run here, written from their sources: read to the values written in them.

Each number below stands in the page of the same name under tests/data/other_engines.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.dialects import read_page
from fleet.gpu_names import XID_MEANINGS, xid_meaning
from fleet.gpu_readings import of_host
from fleet.iteration_records import GAUGES_ONLY
from fleet.readings import PageReading, PageState
from fleet.windows import window

PAGES = Path(__file__).parents[2] / "data" / "other_engines"
MIB = 1024 * 1024


def page(name: str) -> PageReading:
    return read_page((PAGES / f"{name}.txt").read_bytes(), source=name)


def test_sglang_ranks_with_priorities_are_two_engines_and_no_request_counts_twice():
    reading = page("sglang-0.5")
    assert (reading.dialect, reading.state, reading.dropped) == ("sglang", PageState.OK, ())
    first, second = reading.engines
    # the series with priority="" is the sum of the others; tensor-parallel ranks repeat it
    assert (first.engine, first.running, first.waiting) == ("0", 14, 5)
    assert (second.engine, second.running, second.waiting) == ("1", 9, 0)
    assert (first.kv_used_ratio, second.kv_used_ratio) == (0.62, 0.41)
    assert first.kv_capacity_tokens == 471_258
    assert first.finished == {"finished": 280 + 20, "abort": 7}  # streamed or not are parts
    assert first.prefix_cache_hits == 30_000 + 6_000  # so are the places a prefix was found in
    assert (first.prompt_tokens, first.generation_tokens, first.preemptions) == (120_000, 45_000, 3)
    assert first.histograms["ttft_s"].counts == (40, 100, 80, 60, 20, 0)
    assert first.histograms["queue_wait_s"].sum == 31.0
    assert second.histograms["itl_s"].count == 30_000


def test_tensorrt_llm_by_its_prometheus_page():
    reading = page("tensorrt-llm-1.2")
    assert (reading.dialect, reading.state, reading.dropped) == ("tensorrt_llm", PageState.OK, ())
    (engine,) = reading.engines
    assert (engine.running, engine.waiting, engine.model) == (37, 4, "nemotron-nano-3")
    assert (engine.kv_used_ratio, engine.kv_capacity_tokens) == (0.55, 12_000 * 32)
    assert engine.finished == {"stop": 410, "length": 90, "error": 2}
    assert (engine.prefix_cache_hits, engine.prefix_cache_queries) == (64_000, 260_000)
    assert engine.preemptions is None  # it has no such counter
    assert "itl_s" not in engine.histograms  # its time per output token is a request's mean
    assert engine.histograms["tpot_s"].sum == 8.75


def test_tensorrt_llm_before_its_names_had_a_prefix():
    reading = page("tensorrt-llm-1.0")
    assert (reading.dialect, reading.state) == ("tensorrt_llm", PageState.OK)
    (engine,) = reading.engines
    assert (engine.kv_used_ratio, engine.finished) == (0.08, {"stop": 11})
    assert (engine.running, engine.waiting, engine.generation_tokens) == (None, None, None)
    assert engine.histograms["e2e_s"].count == 11


def test_tensorrt_llms_json_records_are_gauges_of_the_last_iteration():
    def record(iteration: int, active: int, rank: int = 0) -> dict[str, object]:
        cache = {"maxNumBlocks": 1000, "usedNumBlocks": 250, "freeNumBlocks": 750, "tokensPerBlock": 32}
        return {
            "iter": iteration,
            "attentionDpRank": rank,
            "numActiveRequests": active,
            "numQueuedRequests": 2,
            "kvCacheStats": cache,
        }

    body = json.dumps([record(1, 5), record(2, 9)]).encode()
    reading = read_page(body, source="x", content_type="application/json")
    (engine,) = reading.engines
    assert (engine.running, engine.waiting, engine.kv_used_ratio) == (9, 2, 0.25)
    assert (engine.kv_capacity_tokens, engine.finished, engine.generation_tokens) == (32_000, {}, None)
    assert GAUGES_ONLY in engine.flags
    assert "/prometheus/metrics" in reading.hint
    ranks = read_page(json.dumps([record(1, 5), record(1, 6, 1)]).encode(), source="x")
    assert [(e.engine, e.running) for e in ranks.engines] == [("0", 5), ("1", 6)]


@pytest.mark.parametrize(
    "body",
    [
        b'[{"iter": 1}]',
        b"[1, null, []]",
        b'[{"numActiveRequests": -4}]',
        b'[{"numActiveRequests": 1e300, "kvCacheStats": [3]}]',
        b'[{"kvCacheStats": {"maxNumBlocks": 0, "usedNumBlocks": 5}}]',
        b"[[[[",
        b'[{"numActiveRequests": true}]',
        b"[" * 100_000,
    ],
)
def test_records_that_say_nothing_give_nothing(body: bytes):
    reading = read_page(body, source="x", content_type="application/json")
    assert all(e.running is None and e.kv_used_ratio is None for e in reading.engines)


def test_triton_reads_the_ensemble_and_the_backends_gauges():
    reading = page("triton-tensorrt-llm")
    assert (reading.dialect, reading.state, reading.dropped) == ("triton", PageState.OK, ())
    (engine,) = reading.engines
    assert (engine.model, engine.finished) == ("ensemble", {"finished": 590, "error": 3})
    assert (engine.running, engine.waiting) == (31, 6)
    assert (engine.kv_used_ratio, engine.kv_capacity_tokens) == (0.4875, 6_240 * 64)
    assert (engine.generation_tokens, engine.prompt_tokens) == (None, None)
    first = engine.histograms["ttft_s"]  # milliseconds on the page
    assert first.edges == pytest.approx((0.1, 0.5, 2.0, 5.0))
    assert first.sum == pytest.approx(94.4)
    assert [(g.uuid, g.power_w, g.memory_total_bytes) for g in reading.gpus] == [
        ("GPU-0a0", 612.5, 85_520_809_984),
        ("GPU-0a1", 612.5, 85_520_809_984),
    ]
    assert reading.gpus[0].used_ratio == pytest.approx(0.90)  # a ratio here, percent at DCGM


def test_triton_windows_count_requests_that_failed_too():
    body = (PAGES / "triton-tensorrt-llm.txt").read_text()
    later = body.replace(
        'success{model="ensemble",version="1"} 590', 'success{model="ensemble",version="1"} 600'
    )
    (done,) = window(page("triton-tensorrt-llm"), read_page(later.encode(), source="x"), 10.0)
    assert (done.completed, done.errors) == (10, 0)


def test_the_llm_d_simulator_is_vllm_without_engine_labels():
    reading = page("llm-d-inference-sim")
    assert (reading.dialect, reading.state) == ("llm_d_sim", PageState.OK)
    (engine,) = reading.engines
    assert (engine.running, engine.waiting, engine.kv_used_ratio) == (2, 1, 0.3)
    assert sum(engine.finished.values()) == 49
    assert engine.histograms["itl_s"].count == 1_851  # both names are there: the newer, not the sum


def test_a_gpu_exporters_page_gives_gpus_by_uuid_in_our_units():
    reading = page("dcgm-exporter-4")
    assert (reading.dialect, reading.engines) == ("dcgm", ())
    cool, hot = reading.gpus
    assert (cool.uuid, cool.index, cool.host) == ("GPU-1f0", "0", "gpu-17.example.org")
    assert cool.used_ratio == pytest.approx(0.97)
    assert cool.power_w == pytest.approx(612.418)
    assert cool.memory_used_bytes == 74_940 * MIB
    assert cool.memory_total_bytes == (74_940 + 6_020 + 599) * MIB
    assert (cool.xid, hot.xid) == (0, 79)
    assert (hot.temperature_c, hot.tensor_ratio) == (74.0, 0.402)


def series(name: str, value: str, **labels: str) -> str:
    inside = ",".join(f'{k}="{v}"' for k, v in labels.items())
    return f"{name}{{{inside}}} {value}\n"


def test_blank_and_impossible_gpu_values_are_not_said():
    body = "".join(
        [
            series("DCGM_FI_DEV_POWER_USAGE", "9223372036854775794", UUID="GPU-1"),
            series("DCGM_FI_DEV_GPU_UTIL", "140", UUID="GPU-1"),
            series("DCGM_FI_DEV_FB_USED", "-5", UUID="GPU-1"),
            series("DCGM_FI_DEV_GPU_TEMP", "55", UUID="GPU-1"),
            series("DCGM_FI_DEV_XID_ERRORS", "31"),  # without a UUID it is nobody's
        ]
    )
    (gpu,) = read_page(body.encode(), source="x").gpus
    assert (gpu.power_w, gpu.used_ratio, gpu.memory_used_bytes, gpu.xid) == (None, None, None, None)
    assert gpu.temperature_c == 55.0


def test_a_gpu_shared_by_pods_is_one_gpu_and_mig_instances_are_several():
    shared = "".join(
        series("DCGM_FI_DEV_FB_USED", value, UUID="GPU-1", pod=pod)
        for pod, value in (("a", "1000"), ("b", "1000"))
    )
    (gpu,) = read_page(shared.encode(), source="x").gpus
    assert gpu.memory_used_bytes == 1000 * MIB
    mig = "".join(
        series("DCGM_FI_DEV_FB_USED", "500", UUID="GPU-1", GPU_I_PROFILE="2g.20gb", GPU_I_ID=i)
        for i in ("3", "5")
    )
    assert [g.uuid for g in read_page(mig.encode(), source="x").gpus] == ["GPU-1/3", "GPU-1/5"]


def test_gpus_are_joined_by_uuid_or_host():
    body = "".join(
        series("DCGM_FI_DEV_GPU_UTIL", "50", UUID=uuid, hostname=host)
        for uuid, host in (("GPU-1", "gpu-17.example.org"), ("GPU-2", "GPU-18"), ("GPU-3/0", "gpu-18"))
    )
    gpus = read_page(body.encode(), source="x").gpus
    assert [g.uuid for g in of_host(gpus, host="gpu-17")] == ["GPU-1"]
    assert [g.uuid for g in of_host(gpus, host="gpu-18.example.org")] == ["GPU-2", "GPU-3/0"]
    assert of_host(gpus, host="gpu-17.example.com") == ()  # another domain is another machine
    assert [g.uuid for g in of_host(gpus, host="gpu-17", uuids=["GPU-3"])] == ["GPU-3/0"]
    assert of_host(gpus) == gpus


def test_error_codes_are_said_in_words_with_what_to_do():
    assert "bus" in xid_meaning(79)[0]
    assert "catalog" in xid_meaning(12345)[1]
    assert all(what and todo for what, todo in XID_MEANINGS.values())


ROUTER_PAGES = {
    "vLLM router": 'vllm_router_requests_total{route="/v1/chat/completions"} 12\nvllm_router_max_load 4\n',
    "vLLM production stack's router": (
        'vllm:current_qps{server="http://10.0.0.1:8000"} 2.0\nvllm:num_requests_running{server="x"} 3.0\n'
        'vllm:healthy_pods_total{server="x"} 1.0\nvllm:gpu_prefix_cache_hits_total{server="x"} 9.0\n'
    ),
    "SGLang router": 'sgl_router_requests_total{route="/generate"} 12\nsgl_router_active_workers 2\n',
    "SGLang model gateway": "smg_router_requests_total 5\nsmg_worker_pool_size 2\n",
    "LiteLLM proxy": 'litellm_proxy_total_requests_metric_total{route="/chat/completions"} 1.0\n',
    "Envoy": "# TYPE envoy_cluster_upstream_rq counter\nenvoy_cluster_upstream_rq 7\n",
    "nginx exporter": "# HELP nginx_up Status\n# TYPE nginx_up gauge\nnginx_up 1\n",
    "Dynamo frontend": 'dynamo_frontend_requests_total{model="m"} 12\n',
    "Gateway API endpoint picker": 'inference_pool_average_queue_size{name="p"} 0\n',
}


@pytest.mark.parametrize("router", ROUTER_PAGES)
def test_a_routers_page_is_refused_by_name(router: str):
    reading = read_page(ROUTER_PAGES[router].encode(), source="x")
    assert (reading.state, reading.dialect, reading.engines) == (PageState.ROUTER, "router", ())
    assert router in reading.hint
    assert "point at the engine's" in reading.hint


def test_an_engine_behind_a_sidecar_stays_an_engine():
    body = (PAGES / "sglang-0.5.txt").read_text() + "envoy_cluster_upstream_rq 7\nlitellm_x 1\n"
    assert read_page(body.encode(), source="x").state is PageState.OK
