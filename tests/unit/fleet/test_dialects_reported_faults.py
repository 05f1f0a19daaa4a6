"""Faults other people's consumers of these pages were reported with, each fed to ours.

The number and name of each test follow one list of public reports; the threads stand in the docstrings.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web

from control.fetch import FetchFailed, fetch_page, open_session
from control.metrics_text import prefix_hits
from fleet.clock import SystemClock
from fleet.dialects import read_page
from fleet.histograms import describe, mean, quantile
from fleet.lifesigns import Life, Pulses, life, two_writers, xid_events
from fleet.page_totals import node_window, total
from fleet.readings import EngineReading, EngineWindow, PageReading, PageState, Reason
from fleet.windows import window
from tests import in_process

PAGES = Path(__file__).parents[2] / "data" / "metrics"


def captured(name: str) -> PageReading:
    return read_page((PAGES / f"vllm-{name}.prom.txt").read_bytes(), source=name)


def lines(*samples: str) -> PageReading:
    return read_page("".join(f"{sample}\n" for sample in samples).encode(), source="made")


def only(engines: tuple[EngineReading, ...]) -> EngineReading:
    (engine,) = engines
    return engine


def one_window(before: PageReading, after: PageReading) -> EngineWindow:
    (got,) = window(before, after, 10.0)
    return got


L = 'engine="0",model_name="m"'


def test_01_client_aborts_are_estimated_where_the_engine_counts_none():
    """vLLM issue 31503: http 333, success 311, abort counter 0."""
    after = captured("0.32.0-cpu-after-client-aborts")
    assert only(after.engines).finished["abort"] == 0
    got = one_window(captured("0.32.0-cpu-idle-fresh"), after)
    assert (got.aborted, got.completed) == (22, 311)


def test_02_more_first_tokens_than_completions_is_no_error():
    """vLLM issue 8115: 8,060 first tokens, 3,918 completions."""
    page = lines(
        f'vllm:time_to_first_token_seconds_bucket{{{L},le="1"}} 8000',
        f'vllm:time_to_first_token_seconds_bucket{{{L},le="+Inf"}} 8060',
        f"vllm:time_to_first_token_seconds_count{{{L}}} 8060",
        f'vllm:request_success_total{{{L},finished_reason="stop"}} 3918',
    )
    engine = only(page.engines)
    assert (page.state, page.dropped) == (PageState.OK, ())
    assert (engine.histograms["ttft_s"].count, engine.finished) == (8060, {"stop": 3918})


def test_03_openmetrics_of_the_rust_front_end_reads_like_text():
    """gpustack issues 6215, 6207: the same numbers whatever the syntax."""
    rust = (PAGES / "vllm-0.32.0-rustfrontend-saturated-waiting.prom.txt").read_bytes()
    as_text = b"".join(
        line.replace(b'{model_name="tiny",engine="0"', b'{engine="0",model_name="tiny"') + b"\n"
        for line in rust.splitlines()
        if not line.startswith(b"#")
    )
    a, b = read_page(rust, source="a"), read_page(as_text, source="a")
    assert (a.shape, b.shape) == ("openmetrics", "prometheus_text_multiprocess")
    assert a.engines == b.engines
    assert only(a.engines).running == 3


def test_04_the_renamed_kv_gauge_gives_one_curve_and_the_new_name_wins():
    """vLLM PR 27133, gateway-api-inference-extension issue 1905."""
    old = lines(f"vllm:gpu_cache_usage_perc{{{L}}} 0.5", f"vllm:prompt_tokens_total{{{L}}} 1")
    both = lines(f"vllm:gpu_cache_usage_perc{{{L}}} 0.5", f"vllm:kv_cache_usage_perc{{{L}}} 0.6")
    swapped = lines(f"vllm:kv_cache_usage_perc{{{L}}} 0.6", f"vllm:gpu_cache_usage_perc{{{L}}} 0.5")
    assert [only(p.engines).kv_used_ratio for p in (old, both, swapped)] == [0.5, 0.6, 0.6]
    real = captured("0.11.0-cpu-v1-show-hidden-0.10-saturated-waiting")
    assert only(real.engines).kv_used_ratio == pytest.approx(0.0006103888)


@pytest.mark.parametrize(
    ("names", "itl", "tpot"),
    [
        (("inter_token_latency_seconds",), 1, None),
        (("time_per_output_token_seconds",), 1, None),
        (("inter_token_latency_seconds", "time_per_output_token_seconds"), 1, None),
        (("request_time_per_output_token_seconds",), None, 1),
    ],
)
def test_05_two_names_of_one_latency_and_one_of_another(
    names: tuple[str, ...], itl: int | None, tpot: int | None
):
    """vLLM PR 23919: old name = inter-token latency; the per-request one is another quantity."""
    page = lines(*(f'vllm:{n}_bucket{{{L},le="{le}"}} 1' for n in names for le in ("0.1", "+Inf")))
    got = only(page.engines).histograms
    assert {k: h.count for k, h in got.items()} == {
        k: v for k, v in (("itl_s", itl), ("tpot_s", tpot)) if v is not None
    }


def test_05b_speculation_makes_it_a_latency_of_steps():
    """vLLM PR 55283: several tokens a step, so ITL is not time per token."""
    spec = captured("0.32.0-cpu-extras-mfu-kvresidency-spec-custombuckets")
    assert "itl_per_step" in only(spec.engines).flags
    plain = captured("0.32.0-rustfrontend-saturated-waiting")  # shows the counters, all 0
    assert "itl_per_step" not in only(plain.engines).flags


def test_06_recomputed_requests_inflate_old_hit_rates_and_old_units_never_add():
    """vLLM issue 25780 (to 0.11); PR 18003 (0.8 counts blocks)."""
    page = lines(
        f"vllm:prefix_cache_queries_total{{{L}}} 1000",
        f"vllm:prefix_cache_hits_total{{{L}}} 320",
        f"vllm:num_preemptions_total{{{L}}} 50",
    )
    assert "prefix_hits_include_preempted" in only(page.engines).flags
    new = only(captured("0.32.0-cpu-after-preemptions").engines)
    assert (new.preemptions, "prefix_hits_include_preempted" in new.flags) == (27, False)
    mixed = lines(
        'vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 10',
        'vllm:generation_tokens_total{engine="0",model_name="m"} 1',
    )
    assert only(mixed.engines).flags == ("prefix_cache_unit_unknown",)


def test_07_a_negative_kv_use_is_clamped_and_flagged():
    """vllm-ascend issue 10048."""
    engine = only(lines('vllm:kv_cache_usage_perc{engine="3",model_name="m"} -0.3875395987328405').engines)
    assert (engine.engine, engine.kv_used_ratio, engine.flags) == ("3", 0.0, ("kv_used_ratio_clamped",))


def test_08_a_sum_that_falls_is_no_restart():
    """vLLM PR 56238: queue time of -48 s."""

    def page(total: float, count: int) -> PageReading:
        return lines(
            f'vllm:request_queue_time_seconds_bucket{{{L},le="0.3"}} {count}',
            f'vllm:request_queue_time_seconds_bucket{{{L},le="+Inf"}} {count}',
            f"vllm:request_queue_time_seconds_sum{{{L}}} {total}",
            f"vllm:generation_tokens_total{{{L}}} {count}",
        )

    got = one_window(page(10, 5), page(-38, 6))
    assert (got.restarted, got.histograms["queue_wait_s"].count) == (False, 1)
    assert mean(got.histograms["queue_wait_s"]) == -48.0


def test_09_gauges_at_zero_are_no_verdict():
    """vLLM issue 49538: 0, 0, then 18 running, while the HTTP counter stays 0."""

    def page(running: int) -> EngineReading:
        return only(
            lines(
                f"vllm:num_requests_running{{{L}}} {running}",
                f"vllm:num_requests_waiting{{{L}}} 0",
                f"vllm:generation_tokens_total{{{L}}} 0",
                'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 0',
            ).engines
        )

    pages = [page(0), page(0), page(18)]
    assert life(pages[:2]) is Life.UNKNOWN
    assert life(pages) is not Life.QUIET
    pulses = Pulses()
    for at_s, engine in zip((0.0, 10.0, 18.0), pages, strict=True):
        pulses.add(engine, at_s)
    assert pulses.unchanged_s == 18.0  # the age to show


def test_10_a_page_that_fails_is_not_a_node_that_is_down():
    """vLLM issue 49983: /metrics answers 500, /v1 works."""

    async def broken(_: web.Request) -> web.Response:
        return web.Response(status=500, text="Internal Server Error")

    async def scrape() -> Reason:
        app = web.Application()
        app.router.add_get("/metrics", broken)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            async with open_session() as session:
                await fetch_page(session, f"http://127.0.0.1:{port}/metrics", clock=SystemClock())
        except FetchFailed as failure:
            return failure.reason
        finally:
            await in_process.close(runner)
        raise AssertionError("a page with status 500 was taken")

    assert asyncio.run(scrape()) is Reason.HTTP_ERROR
    assert read_page(b"Internal Server Error", source="x").state is PageState.NOT_METRICS


def test_11_a_giant_label_costs_its_series_and_not_the_page():
    """vLLM issue 44691: a configuration dump as a label value."""
    page = lines(
        'vllm:cache_config_info{engine="0",x="' + "a" * 8_000_000 + '"} 1',
        f"vllm:num_requests_running{{{L}}} 3",
    )
    assert only(page.engines).running == 3
    assert only(page.engines).cache_config is None
    assert len(page.dropped) == 1
    assert "cap" in page.dropped[0]


def test_12_absent_is_not_zero():
    """vLLM issues 17406, 16348, 40605, 8612: statistics off, or an engine that has not worked yet."""
    off, fresh = captured("0.32.0-cpu-disable-log-stats"), captured("0.9.0.1-cpu-v0-idle-fresh")
    assert [p.state for p in (off, fresh)] == [PageState.NO_ENGINE_SERIES] * 2
    assert (off.engines, fresh.engines) == ((), ())
    assert "log-stats" in off.hint
    bare = only(lines(f"vllm:num_requests_running{{{L}}} 1").engines)
    assert (bare.waiting, bare.generation_tokens, bare.finished, bare.histograms) == (None, None, {}, {})
    assert describe(None) == "n/a"


def test_13_all_ranks_make_the_node():
    """gateway-api-inference-extension issue 2950."""
    got = total(captured("0.32.0-cpu-dp2-load"))
    assert (got.running.total, got.waiting.total, got.engines) == (4, 29, 2)
    assert got.finished["length"] == 40
    assert got.histograms["e2e_s"].count == 40


def test_14_two_writers_are_not_endless_restarts():
    """vLLM PR 18053: success 10, 4, 11, 5 in turn on one target."""

    def page(success: int) -> PageReading:
        return lines(
            f'vllm:request_success_total{{{L},finished_reason="stop"}} {success}',
            f"vllm:num_requests_running{{{L}}} 1",
        )

    assert two_writers([page(n) for n in (10, 4, 11, 5)])
    assert not two_writers([page(n) for n in (10, 12, 3, 5)])  # one restart
    assert not two_writers([page(n) for n in (10, 4, 11, 12)])  # one restart, then busy
    assert not two_writers([page(n) for n in (10, 4, 2, 1)])  # a crash loop
    assert not two_writers([page(n) for n in (10, 11, 12, 13)])


def test_15_the_newest_lora_series_is_the_state():
    """vLLM PR 13303: the value is a time and stale series stay."""
    # newest of the ten by value: running "adapter-c,adapter-a"
    assert captured("0.32.0-cpu-lora-load").lora_adapters == ("adapter-a", "adapter-c")
    assert captured("0.32.0-cpu-saturated-waiting").lora_adapters is None
    idle = lines(
        f"vllm:generation_tokens_total{{{L}}} 1",
        'vllm:lora_requests_info{max_lora="2",running_lora_adapters="a",waiting_lora_adapters="a"} 5',
        'vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""} 6',
    )
    assert idle.lora_adapters == ()


def test_16_quantiles_at_the_ends_are_said_as_limits():
    """vLLM issue 15167: p99 stuck at 60 s, or at 0.297 s."""

    def e2e(*cumulative: int) -> str:
        buckets = zip(("0.3", "60", "+Inf"), cumulative, strict=True)
        page = lines(
            *(f'vllm:e2e_request_latency_seconds_bucket{{{L},le="{le}"}} {n}' for le, n in buckets)
        )
        return describe(quantile(only(page.engines).histograms["e2e_s"], 0.99))

    assert e2e(2000, 2000, 2000) == "<= 0.3 s"
    assert e2e(0, 1900, 2000) == "> 60 s"


@pytest.mark.parametrize("prefix", ["ray_vllm_", "ray_vllm:", "kserve_vllm:", "vllm_", "vllm:"])
def test_17_prefixes_of_ray_and_kserve(prefix: str):
    """vLLM issue 25212, ray issue 52719."""
    engine = only(
        lines(f'{prefix}num_requests_running{{model_name="m",engine="0",ReplicaId="r"}} 3').engines
    )
    assert (engine.engine, engine.model, engine.running) == ("0", "m", 3)


def test_18_a_new_life_counts_up_from_zero():
    """NeMo-RL review 4052: deltas of -800 tokens."""
    with tarfile.open(PAGES / "series" / "scrapes.tar.xz") as archive:
        names = sorted(m.name for m in archive.getmembers())
        bodies = [io.BytesIO(archive.extractfile(n).read()).getvalue() for n in names]  # type: ignore[union-attr]
    pages = [read_page(body, source=name) for name, body in zip(names, bodies, strict=True)]
    windows = [one_window(a, b) for a, b in pairwise(pages)]
    (restart,) = [i for i, w in enumerate(windows) if w.restarted]
    first = only(pages[restart + 1].engines)
    assert windows[restart].generation_tokens == first.generation_tokens
    assert all((w.generation_tokens or 0) >= 0 for w in windows)


def test_19_no_hits_because_no_prefix_fills_a_block():
    """vLLM issue 54607: a hybrid model's block has 784 tokens."""
    page = lines(
        f"vllm:prefix_cache_queries_total{{{L}}} 5000",
        f"vllm:prefix_cache_hits_total{{{L}}} 0",
        'vllm:cache_config_info{engine="0",block_size="16",effective_attention_block_size="784"} 1',
    )
    engine = only(page.engines)
    assert engine.prefix_cache_hits == 0
    assert prefix_hits(engine) == "0.0 % of full blocks (block 784 tokens)"


def test_20_the_fullest_rank_decides():
    """vLLM issues 36748, 40279: 117, 108, 0, 0 waiting."""
    got = total(
        lines(
            *(
                f'vllm:num_requests_waiting{{engine="{i}",model_name="m"}} {n}'
                for i, n in enumerate((117, 108, 0, 0))
            )
        )
    )
    assert (got.waiting.total, got.waiting.smallest, got.waiting.largest) == (225, 0, 117)


def test_21_waiting_without_running_is_stuck_not_full():
    """vllm-metal issue 479: waiting 6, running 0, KV 0 %, nothing generated over three pages."""

    def page(tokens: int, running: int = 0) -> EngineReading:
        return only(
            lines(
                f"vllm:num_requests_running{{{L}}} {running}",
                f"vllm:num_requests_waiting{{{L}}} 6",
                f"vllm:kv_cache_usage_perc{{{L}}} 0",
                f"vllm:generation_tokens_total{{{L}}} {tokens}",
            ).engines
        )

    assert life([page(500)] * 3) is Life.STUCK
    assert life([page(500)] * 2) is Life.UNKNOWN
    assert life([page(500), page(500), page(501)]) is Life.WORKING
    assert life([page(500, running=2)] * 3) is Life.FROZEN


def test_22_a_ranks_copy_is_not_another_request():
    """sglang issue 31896: one gauge for each of eight tensor-parallel ranks."""
    page = lines(
        *(f'sglang:num_running_reqs{{model_name="m",tp_rank="{i}"}} 4' for i in range(8)),
        'sglang:generation_tokens_total{model_name="m"} 100',
    )
    assert page.dialect == "sglang"
    assert only(page.engines).running == 4
    ranks = lines(*(f'sglang:num_running_reqs{{dp_rank="{i}",tp_rank="{i}"}} 4' for i in range(2)))
    assert total(ranks).running.total == 8  # data-parallel ranks do add


def test_23_an_idle_engine_generates_nothing_whatever_its_gauge_says():
    """sglang issue 4244: gen_throughput keeps 512.3 for ever."""
    page = lines(
        "sglang:gen_throughput 512.3",
        "sglang:generation_tokens_total 9000",
        "sglang:num_running_reqs 0",
        "sglang:num_queue_reqs 0",
    )
    assert one_window(page, page).generation_tokens == 0


def test_24_json_is_no_metrics_page_and_says_where_to_look():
    """TensorRT-LLM issue 4926, aibrix issue 2004."""
    page = read_page(b"[]", source="x", content_type="application/json")
    assert page.state is PageState.NOT_METRICS
    assert "/prometheus/metrics" in page.hint


def test_25_one_model_of_an_ensemble_is_the_request():
    """tensorrtllm_backend issue 49: 0, 59, 59, 59 for one model's steps."""
    page = lines(
        'nv_inference_request_success{model="tensorrt_llm",version="1"} 0',
        *(
            f'nv_inference_request_success{{model="{m}",version="1"}} 59'
            for m in ("preprocessing", "postprocessing", "ensemble")
        ),
    )
    engine = only(page.engines)
    assert (page.dialect, engine.model, engine.finished) == ("triton", "ensemble", {"finished": 59})


def test_26_an_error_code_is_news_once():
    """dcgm-exporter issues 500, 190: the gauge never clears."""
    assert xid_events([0, 31, 31, 31]) == [(1, 31)]
    assert xid_events([31, 31]) == []  # it may be days old
    assert xid_events([0, None, 31, 43, 0, 43]) == [(2, 31), (3, 43), (5, 43)]
    assert xid_events([0, 9223372036854775794.0, 0]) == []


def test_27_a_routers_page_is_no_node():
    """production-stack issue 318: gauges without engine, no histograms."""
    page = lines(
        'vllm:num_requests_running{model_name="m"} 3', 'vllm:num_requests_waiting{model_name="m"} 0'
    )
    assert (page.state, page.engines) == (PageState.ROUTER, ())


def test_aborts_of_several_ranks_belong_to_the_node():
    # two ranks, 10 completions each, 25 answers: 5 aborts that no rank counts
    def page(finished: int, answers: int) -> PageReading:
        ranks = (
            f'vllm:request_success_total{{engine="{i}",model_name="m",finished_reason="stop"}} {finished}'
            for i in (0, 1)
        )
        gauges = (
            f'vllm:num_requests_{kind}{{engine="{i}",model_name="m"}} 0'
            for i in (0, 1)
            for kind in ("running", "waiting")
        )
        post = 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"}'
        return lines(*ranks, *gauges, f"{post} {answers}")

    before, after = page(0, 0), page(10, 25)
    ranks = window(before, after, 10.0)
    assert [(w.aborted, w.arrivals) for w in ranks] == [(None, 10), (None, 10)]
    assert all("aborts_not_attributed" in w.flags and "arrivals_lower_bound" in w.flags for w in ranks)
    node = node_window(before, after, 10.0)
    assert (node.completed, node.aborted, node.arrivals, node.flags) == (20, 5, 25, ())
