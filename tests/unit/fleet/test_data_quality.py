"""Findings from real and made-up pages: each kind is found where it is, and nothing where all is well."""

from __future__ import annotations

from pathlib import Path

import pytest

from control.page_book import PageBook
from fleet.data_quality import FINDINGS_MAX, bounded, page_findings
from fleet.dialects import read_page
from fleet.quality_kinds import MEANINGS, Finding, Kind, Severity
from fleet.readings import PageReading, PageState

PAGES = Path(__file__).parents[2] / "data" / "metrics"
L = 'engine="0",model_name="m"'
T0 = 1_790_000_000.0


def read(text: str, content_type: str | None = "text/plain") -> PageReading:
    return read_page(text.encode(), source="made", content_type=content_type)


def histogram(name: str, *counts: int, total: float = 1.0) -> str:
    edges = ("0.1", "1.0", "+Inf")
    lines = [f'{name}_bucket{{{L},le="{e}"}} {c}' for e, c in zip(edges, counts, strict=True)]
    return "\n".join([*lines, f"{name}_sum{{{L}}} {total}", f"{name}_count{{{L}}} {counts[-1]}"]) + "\n"


def whole(
    *,
    running: float = 1,
    waiting: int = 0,
    kv: float = 0.25,
    done: int = 10,
    tokens: int = 1_000,
    e2e: int | None = None,
    itl_s: float = 1.0,
    start_s: float = T0 - 5_000,
    extra: str = "",
) -> str:
    """A page with everything verdicts are made of."""
    seen = done if e2e is None else e2e
    return (
        f"process_start_time_seconds {start_s}\n"
        f"vllm:num_requests_running{{{L}}} {running}\n"
        f"vllm:num_requests_waiting{{{L}}} {waiting}\n"
        f"vllm:kv_cache_usage_perc{{{L}}} {kv}\n"
        f'vllm:request_success_total{{{L},finished_reason="stop"}} {done}\n'
        f"vllm:prompt_tokens_total{{{L}}} {tokens}\n"
        f"vllm:generation_tokens_total{{{L}}} {tokens}\n"
        + histogram("vllm:e2e_request_latency_seconds", 0, seen, seen)
        + histogram("vllm:time_to_first_token_seconds", 0, done, done)
        + histogram("vllm:inter_token_latency_seconds", tokens, tokens, tokens, total=itl_s)
        + histogram("vllm:request_queue_time_seconds", done, done, done)
        + extra
    )


def kinds(findings: list[Finding]) -> set[tuple[Kind, str]]:
    return {(f.kind, f.metric) for f in findings}


def found_in(*texts: str, period_s: float = 10.0) -> list[Finding]:
    """What is found in the last of successive pages."""
    book, taken = PageBook(period_s=period_s), None
    for index, text in enumerate(texts):
        page = read(text)
        assert page.state is PageState.OK, page.hint
        taken = book.take("n", "http://n", page, index * period_s, unix_s=T0 + index * period_s)
    assert taken is not None
    return list(taken.findings)


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.prom.txt")), ids=lambda path: path.name)
def test_no_page_of_a_real_engine_lacks_what_it_should_have(path: Path):
    page = read_page(path.read_bytes(), source=path.name)
    if page.state is not PageState.OK:
        return
    wrong = [f for f in page_findings(page, "text/plain") if f.severity is not Severity.NOTE]
    # vLLM 0.11 with hidden names shows both KV gauges, which is what that kind is for
    assert {f.kind for f in wrong} <= {Kind.SEVERAL_KV_GAUGES}
    assert bool(wrong) == ("v1-show-hidden-0.10" in path.name)


def test_the_first_vllm_engine_is_read_under_old_names():
    page = read_page((PAGES / "vllm-0.9.0.1-cpu-v0-saturated-waiting.prom.txt").read_bytes(), source="v0")
    renamed = {f.metric: f.detail for f in page_findings(page, "text/plain") if f.kind is Kind.RENAMED}
    assert renamed == {
        "kv_used_ratio": "read as vllm:gpu_cache_usage_perc",
        "itl_s": "read as vllm:time_per_output_token_seconds",
    }


def test_a_whole_page_that_moves_has_no_finding_but_its_approximations():
    pages = [whole(done=10 + 3 * i, tokens=1_000 + 90 * i, kv=0.2 + i / 100) for i in range(8)]
    assert {f.kind for f in found_in(*pages)} <= {Kind.APPROXIMATE}


def test_every_missing_metric_is_named_with_what_suffers():
    text = "\n".join(line for line in whole().splitlines() if "kv_cache" not in line) + "\n"
    (missing,) = [f for f in found_in(text) if f.kind is Kind.METRIC_MISSING]
    assert missing.metric == "kv_used_ratio"
    assert "KV use" in missing.affects()
    assert "KV use" not in Finding(Kind.NO_PAGE, metric="timeout").affects(of_gateway=True)
    assert missing.severity is Severity.FAULT


@pytest.mark.parametrize(
    ("extra", "kind"),
    [
        (f"vllm:num_preemptions_total{{{L}}} NaN\n", Kind.IMPOSSIBLE_VALUE),
        (f"vllm:num_preemptions_total{{{L}}} +Inf\n", Kind.IMPOSSIBLE_VALUE),
        (f"vllm:num_preemptions_total{{{L}}} -3\n", Kind.IMPOSSIBLE_VALUE),
        (f"vllm:num_preemptions_total{{{L}}} 1e400\n", Kind.IMPOSSIBLE_VALUE),
        (f"vllm:num_preemptions_total{{{L}}} many\n", Kind.LINES_DROPPED),
        (f"vllm:num_requests_running{{{L}}} 1\n", Kind.DUPLICATE_SERIES),
        (f'vllm:request_decode_time_seconds_bucket{{{L},le="1.0"}} 3\n', Kind.HISTOGRAM_BROKEN),
        (f'vllm:cache_config_info{{{L},x="{"a" * 70_000}"}} 1\n', Kind.SERIES_DROPPED),
        (
            "".join(f'vllm:lora_requests_info{{engine="0",model_name="{i}"}} 1\n' for i in range(6_000)),
            Kind.SERIES_DROPPED,
        ),
        (f"# TYPE vllm:x gauge\nvllm:num_preemptions_total{{{L}}} 12", Kind.CUT_SHORT),
        (f"vllm:gpu_cache_usage_perc{{{L}}} 0.9\n", Kind.SEVERAL_KV_GAUGES),
    ],
)
def test_what_is_left_out_of_a_page_has_its_kind(extra: str, kind: Kind):
    assert kind in {f.kind for f in found_in(whole(extra=extra))}


def test_a_ratio_outside_its_range_is_clamped_and_says_so():
    assert (Kind.CLAMPED, "kv_used_ratio") in kinds(found_in(whole(kv=-0.39)))
    assert (Kind.CLAMPED, "kv_used_ratio") in kinds(found_in(whole(kv=1.7)))


def test_a_page_served_as_something_else_says_so():
    page = read(whole(), content_type="application/octet-stream")
    assert Kind.CONTENT_TYPE in {f.kind for f in page_findings(page, "application/octet-stream")}
    for usual in ("text/plain; version=0.0.4; charset=utf-8", "application/openmetrics-text", None):
        assert Kind.CONTENT_TYPE not in {f.kind for f in page_findings(page, usual)}


def test_a_histogram_whose_counts_fall_is_repaired_and_says_so():
    crooked = whole(extra=histogram("vllm:request_decode_time_seconds", 5, 3, 7))
    assert (Kind.HISTOGRAM_REPAIRED, "decode_s") in kinds(found_in(crooked))
    straight = whole(extra=histogram("vllm:request_decode_time_seconds", 5, 5, 7))
    assert Kind.HISTOGRAM_REPAIRED not in {f.kind for f in found_in(straight)}


def test_a_restart_is_told_from_a_reset_hidden_by_growth():
    before = whole(done=100, start_s=T0 - 100)
    fell = found_in(before, whole(done=5, start_s=T0 + 5))
    grew = found_in(before, whole(done=150, start_s=T0 + 5))
    assert Kind.RESTART in {f.kind for f in fell}
    assert Kind.RESET_HIDDEN in {f.kind for f in grew}
    assert Kind.RESET_HIDDEN not in {f.kind for f in fell}


def test_two_processes_behind_one_address_give_no_increments_and_no_restarts():
    a, b = T0 - 90_000, T0 - 80_000
    book, flags = PageBook(period_s=10.0), []
    for index in range(6):
        text = whole(done=1_000_000 + index if index % 2 else 500 + index, start_s=b if index % 2 else a)
        taken = book.take("n", "u", read(text), 10.0 * index, unix_s=T0 + 10.0 * index)
        flags.append(taken.samples[0].window)
    # a million requests of the other process's life are never this one's ten seconds
    assert [w.completed for w in flags] == [None] * 6
    assert all("two_writers" in w.flags for w in flags[1:])
    assert Kind.TWO_WRITERS in {f.kind for f in taken.findings}
    assert not {Kind.RESTART, Kind.RESET_HIDDEN} & {f.kind for f in taken.findings}


def test_bounds_that_change_and_buckets_that_fall_are_named_by_family():
    other = whole(done=20).replace('le="1.0"', 'le="2.0"')
    changed = {f.metric for f in found_in(whole(), other) if f.kind is Kind.EDGES_CHANGED}
    assert {"e2e_s", "ttft_s", "itl_s", "queue_wait_s"} == changed


def test_standing_still_with_work_is_a_fault_with_its_length():
    (frozen,) = [f for f in found_in(*[whole()] * 4) if f.kind is Kind.FROZEN_COUNTERS]
    assert "30 s" in frozen.detail
    assert Kind.STALLED in {f.kind for f in found_in(*[whole(running=0, waiting=4)] * 4)}


def test_gauges_that_stand_still_while_requests_finish_are_a_warning():
    pages = [whole(running=6, kv=0.4, done=10 + 5 * i, tokens=1_000 + 200 * i) for i in range(8)]
    assert Kind.FROZEN_GAUGES in {f.kind for f in found_in(*pages)}


def test_a_batch_by_the_counters_that_is_far_from_the_gauge_is_inconsistent():
    # 100 s of inter-token time in each 10 s: 10 sequences decode
    def pages(gauge: int) -> list[str]:
        return [
            whole(
                running=gauge, kv=0.2 + i / 100, done=10 + 3 * i, tokens=1_000 + 90 * i, itl_s=1 + 100.0 * i
            )
            for i in range(8)
        ]

    for gauge, expected in ((10, False), (12, False), (13, False), (14, True), (40, True)):
        # |10 - 13| / 13 = 0.23 is within a quarter, |10 - 14| / 14 = 0.29 is not
        found = kinds(found_in(*pages(gauge)))
        assert ((Kind.INCONSISTENT_GAUGES, "running") in found) is expected, gauge


def test_kv_in_use_without_a_request_and_none_in_use_with_some_are_inconsistent():
    idle = [whole(running=0, kv=0.4, done=10 + i) for i in range(8)]
    unwired = [whole(running=4, kv=0.0, done=10 + i) for i in range(8)]
    for pages in (idle, unwired):
        assert (Kind.INCONSISTENT_GAUGES, "kv_used_ratio") in kinds(found_in(*pages))
    assert (Kind.INCONSISTENT_GAUGES, "kv_used_ratio") not in kinds(found_in(*idle[:3]))


def test_finished_requests_and_latencies_that_differ_are_named():
    pages = [whole(done=10 + 20 * i, e2e=10 + 10 * i, kv=0.2 + i / 100) for i in range(4)]
    (finding,) = [f for f in found_in(*pages) if f.kind is Kind.COUNTERS_DISAGREE]
    assert finding.detail.startswith("60 requests finished and 30 latencies")


def test_findings_of_one_page_are_bounded_and_the_worst_are_kept():
    many = [Finding(Kind.RESTART, str(i)) for i in range(500)] + [Finding(Kind.FROZEN_COUNTERS, "0")]
    kept = bounded(many)
    assert len(kept) == FINDINGS_MAX + 1
    assert kept[0].kind is Kind.FROZEN_COUNTERS
    assert kept[-1] == Finding(Kind.TOO_MANY, detail=f"{501 - FINDINGS_MAX} more in one round")


def test_every_kind_says_what_it_means_and_what_to_do():
    assert set(MEANINGS) == set(Kind)
    for kind, meaning in MEANINGS.items():
        assert meaning.title, kind
        assert len(meaning.do) > 20, kind
        if meaning.severity is Severity.FAULT:
            assert meaning.affects, kind
