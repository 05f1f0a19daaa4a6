"""Windows between real pages, against the truth the client of those engines wrote down."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.dialects import read_page
from fleet.errors import InvalidInput, NotMeasured
from fleet.readings import EngineReading, EngineWindow, Histogram, PageReading, PageState
from fleet.windows import window, with_answers_owed

DATA = Path(__file__).parents[2] / "data" / "metrics"


def page(name: str) -> PageReading:
    return read_page((DATA / f"vllm-{name}.prom.txt").read_bytes(), source=name)


def only(windows: tuple[EngineWindow, ...]) -> EngineWindow:
    (one,) = windows
    return one


def made(restart: int = 0, **facts: object) -> PageReading:
    """A page of one engine of the usual kind, with the facts a test is about."""
    page_facts = {k: facts.pop(k) for k in ("http_finished", "shape", "dropped") if k in facts}
    engine = EngineReading(engine="0", model="m", **facts)  # type: ignore[arg-type]
    reading = PageReading(
        source="made",
        dialect="vllm",
        shape="prometheus_text",
        state=PageState.OK,
        engines=(engine,),
        process_start_time_s=float(restart),
    )
    return replace(reading, **page_facts)


def test_increments_of_one_life():
    # steady -> saturated: length 43 -> 131, output tokens 11,335 -> 31,782, in system 0 -> 113
    got = only(window(page("0.32.0-cpu-steady-load"), page("0.32.0-cpu-saturated-waiting"), 60.0))
    assert (got.completed, got.generation_tokens, got.restarted) == (88, 31_782 - 11_335, False)
    assert got.arrivals == 88 + 4 + 109
    assert got.aborted == 0
    assert (got.running, got.waiting, got.length_s) == (4, 109, 60.0)
    assert got.histograms["e2e_s"].count == 88


def test_aborts_that_the_engine_does_not_count():
    # fresh -> after 24 client disconnects: http 333, success 311; two of the 24 had finished first
    got = only(window(page("0.32.0-cpu-idle-fresh"), page("0.32.0-cpu-after-client-aborts"), 600.0))
    truth = json.loads((DATA / "truth-vllm-0.32.0-cpu-after-client-aborts.json").read_text())
    assert got.aborted == 333 - 311 == truth["outcomes"]["client_abort"] - 2
    assert got.arrivals == 333


def test_refusals_inside_a_stream_are_no_aborts():
    # 94 refusals: 81 with status 503 and 13 inside answers that had begun with 200 (41 = 28 + 13)
    after = page("0.32.0-cpu-admission-limited-after-rejections")
    got = only(window(page("0.32.0-cpu-idle-fresh"), after, 60.0))
    assert got.restarted  # another process: its start time says so
    assert (got.completed, got.aborted, got.arrivals) == (28, 0, 28)


def test_the_rust_front_end_shows_a_series_at_its_first_event():
    # fresh page without request_success: 70 finished since, 18 in the system, 88 requests begun
    got = only(
        window(page("0.32.0-rustfrontend-idle-fresh"), page("0.32.0-rustfrontend-saturated-waiting"), 60.0)
    )
    assert (got.restarted, got.completed, got.arrivals, got.aborted) == (False, 70, 88, 0)
    assert got.prompt_tokens == 8348
    assert got.histograms["e2e_s"].count == 70


def test_without_http_counts_arrivals_are_a_lower_bound():
    got = only(window(page("0.9.0.1-cpu-v0-idle-fresh"), page("0.9.0.1-cpu-v0-saturated-waiting"), 60.0))
    assert (got.completed, got.arrivals, got.aborted) == (103, 103 + 4 + 135, None)
    assert "arrivals_lower_bound" in got.flags


def test_every_rank_has_its_window():
    # The fresh page of two API servers has rank 0 without gauges (nothing ran yet) and no rank 1.
    windows = window(page("0.32.0-cpu-api-server-count2-idle-fresh"), page("0.32.0-cpu-dp2-load"), 30.0)
    assert [(w.engine, w.completed, w.arrivals, w.aborted) for w in windows] == [
        ("0", 20, 20 + 2 + 15, 0),
        ("1", 20, 20 + 2 + 14, 0),
    ]


def test_a_restart_counts_from_zero():
    # saturated life: 31,782 tokens; second life: 1,083
    got = only(
        window(page("0.32.0-cpu-saturated-waiting"), page("0.32.0-cpu-after-restart-counter-reset"), 90.0)
    )
    assert got.restarted
    assert (got.generation_tokens, got.completed, got.arrivals) == (1083, 13, 13)
    assert "restart" in got.flags


def test_a_fall_of_any_counter_is_a_restart_where_no_start_time_is_given():
    # 1000 -> 200 tokens in another life: +200, never -800 (NeMo-RL 4052)
    before = replace(made(generation_tokens=1000, prompt_tokens=10), process_start_time_s=None)
    after = replace(made(generation_tokens=200, prompt_tokens=40), process_start_time_s=None)
    got = only(window(before, after, 10.0))
    assert (got.restarted, got.generation_tokens, got.prompt_tokens) == (True, 200, 40)


def test_a_reason_that_goes_away_is_a_restart():
    # a page that shows a series at its first event forgets it only with its process
    before = replace(made(generation_tokens=10, finished={"stop": 4}), process_start_time_s=None)
    after = replace(made(generation_tokens=30, finished={"length": 1}), process_start_time_s=None)
    assert only(window(before, after, 10.0)).restarted
    damaged = replace(after, dropped=("line 9: not a number",))
    assert not only(window(before, damaged, 10.0)).restarted


def test_a_sum_may_fall_without_a_restart():
    # queue time -48 s: sum 10 -> -38 while count 5 -> 6 (vLLM PR 56238)
    before = made(generation_tokens=5, histograms={"queue_wait_s": Histogram((0.3,), (5, 0), 10.0)})
    after = made(generation_tokens=6, histograms={"queue_wait_s": Histogram((0.3,), (6, 0), -38.0)})
    got = only(window(before, after, 10.0))
    assert not got.restarted
    assert got.histograms["queue_wait_s"] == Histogram((0.3,), (1, 0), -48.0)


def test_changed_bounds_lose_the_family_alone():
    before = made(generation_tokens=5, histograms={"ttft_s": Histogram((0.3,), (5, 0), 1.0)})
    after = made(generation_tokens=6, histograms={"ttft_s": Histogram((0.5,), (6, 0), 1.0)})
    got = only(window(before, after, 10.0))
    assert got.histograms == {}
    assert "histogram_edges_changed:ttft_s" in got.flags
    assert got.generation_tokens == 1


def test_a_series_missing_from_a_damaged_page_does_not_count_from_zero():
    after = made(generation_tokens=9000)
    assert only(window(made(dropped=("line 3: cut",)), after, 10.0)).generation_tokens is None
    assert only(window(made(), after, 10.0)).generation_tokens == 9000


def test_pages_without_an_engine_have_no_window():
    ok = made(generation_tokens=1)
    with pytest.raises(NotMeasured, match="router"):
        window(ok, replace(ok, state=PageState.ROUTER, engines=()), 10.0)
    with pytest.raises(NotMeasured, match="not_metrics"):
        window(replace(ok, state=PageState.NOT_METRICS, engines=()), ok, 10.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-320, float("nan"), float("inf")])
def test_a_window_has_a_length(seconds: float):
    with pytest.raises(InvalidInput):
        window(made(), made(), seconds)


COUNT = st.none() | st.integers(0, 2**62)


@st.composite
def readings(draw: st.DrawFn) -> PageReading:
    histogram = st.tuples(*[st.integers(0, 1000)] * 3).map(
        lambda c: Histogram((1.0, 2.0), c, float(sum(c)))
    )
    facts = {
        name: draw(COUNT)
        for name in ("running", "waiting", "prompt_tokens", "generation_tokens", "preemptions")
    }
    reading = made(
        draw(st.integers(0, 1)),
        finished=draw(
            st.dictionaries(st.sampled_from(["stop", "length", "abort", "error"]), st.integers(0, 9**9))
        ),
        histograms=draw(st.dictionaries(st.sampled_from(["e2e_s", "params_n"]), histogram)),
        http_finished=draw(COUNT),
        shape=draw(st.sampled_from(["prometheus_text", "prometheus_text_multiprocess", "openmetrics"])),
        dropped=draw(st.sampled_from([(), ("line 1: cut",)])),
        **facts,
    )
    return replace(reading, http_failed=draw(COUNT), admission_rejections=draw(COUNT))


@settings(deadline=None)
@given(readings(), readings())
def test_no_two_pages_give_a_negative_count_or_an_error(before: PageReading, after: PageReading):
    (got,) = window(before, after, 10.0)
    counts = [
        getattr(got, name) for name in ("arrivals", "completed", "errors", "aborted", "generation_tokens")
    ]
    assert all(count is None or count >= 0 for count in counts)
    assert all(count >= 0 for histogram in got.histograms.values() for count in histogram.counts)


# -- the series: 157 pages at 1 s over two lives, with every request the client sent -------------------


@cache
def series() -> list[tuple[float, PageReading]]:
    with tarfile.open(DATA / "series" / "scrapes.tar.xz") as archive:
        bodies = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}  # type: ignore[union-attr]
    rows = csv.DictReader(io.StringIO((DATA / "series" / "scrapes.csv").read_text()))
    return [
        (float(row["t_start"]), read_page(bodies[row["file"]], source=row["file"]))
        for row in rows
        if row["file"]
    ]


def steps() -> list[EngineWindow]:
    return [only(window(a[1], b[1], b[0] - a[0])) for a, b in pairwise(series())]


def test_the_series_has_one_restart():
    windows = steps()
    assert len(windows) == 156
    assert sum(w.restarted for w in windows) == 1
    counts = [n for w in windows for n in (w.arrivals, w.completed, w.aborted, w.generation_tokens)]
    assert all(n is not None and n >= 0 for n in counts)


def test_arrivals_of_the_first_life_are_the_requests_sent():
    # From the first page (idle, after 16 warm-up requests) to the last before the restart: all that the
    # client sent in between, save those still in the front end, which are in no series.
    pages, windows = series(), steps()
    last = next(i for i, w in enumerate(windows) if w.restarted)
    (t0, start), (t1, end) = pages[0], pages[last]
    rows = csv.DictReader(io.StringIO((DATA / "series" / "requests.csv").read_text()))
    sent = sum(t0 <= float(row["t_send"]) < t1 for row in rows)
    got = only(window(start, end, t1 - t0))
    assert got.arrivals is not None
    assert sent - 2 <= got.arrivals <= sent
    assert abs(sum(w.arrivals or 0 for w in windows[:last]) - sent) <= 3


def test_a_sum_of_reasons_with_one_unknown_is_unknown():
    before = made(dropped=("line 3: cut",), finished={"stop": 5}, running=0, waiting=0)
    after = made(finished={"stop": 9, "length": 700}, running=0, waiting=0)
    got = only(window(before, after, 10.0))
    assert (got.completed, got.arrivals) == (None, None)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=20))
def test_answers_that_are_counted_late_arrive_once(steps: list[tuple[int, int]]):
    # in each window some finish, and of those some are answered only in the next one; nobody leaves early
    before, finished = made(finished={"stop": 0}, running=0, waiting=0, http_finished=0), 0
    arrived: list[int | None] = []
    for done, late in steps:
        finished += done
        answered = finished - min(late, done)
        page = made(finished={"stop": finished}, running=0, waiting=0, http_finished=answered)
        got = only(window(before, page, 10.0))
        assert got.aborted == 0
        arrived.append(got.arrivals)
        before = with_answers_owed(before, page)
    assert arrived == [done for done, _ in steps]


def test_clients_that_leave_while_answers_are_late_are_counted_in_the_end():
    # 10 finish with 4 answers to come, then 10 more and 3 leave: 10 + 4 + 3 answers are counted
    pages = [
        made(finished={"stop": done}, running=0, waiting=0, http_finished=http)
        for done, http in ((0, 0), (10, 6), (20, 23))
    ]
    first = only(window(pages[0], pages[1], 10.0))
    second = only(window(with_answers_owed(pages[0], pages[1]), pages[2], 10.0))
    assert (first.arrivals, second.arrivals, second.aborted) == (10, 13, 3)


def test_what_does_not_ask_over_http_owes_no_answers_for_long():
    # 100 finish unseen by HTTP, then nothing does: of 5 answers afterwards all are aborts
    quiet = made(finished={"stop": 100}, running=0, waiting=0, http_finished=0)
    owing = with_answers_owed(made(finished={"stop": 0}, running=0, waiting=0, http_finished=0), quiet)
    assert owing.answers_owed == 100
    later = with_answers_owed(owing, quiet)
    assert later.answers_owed == 0
    left = made(finished={"stop": 100}, running=0, waiting=0, http_finished=5)
    assert only(window(later, left, 10.0)).aborted == 5
