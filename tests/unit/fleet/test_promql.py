"""Questions nobody's text can break out of, and pages cut from answers at the right time."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.dialects import read_page
from fleet.errors import InvalidInput
from fleet.promql import (
    Answer,
    BadAnswer,
    PageParts,
    Pulse,
    QueryRefused,
    Series,
    best,
    matcher,
    one_of,
    parsed_matchers,
    pulses,
    quoted,
    read_answer,
    selector,
)

TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=40)


def unquoted(text: str) -> str:
    """Read a PromQL string as Go does, for the escapes we write."""
    assert text[0] == text[-1] == '"'
    inner = text[1:-1]
    assert not re.search(r'(?<!\\)(?:\\\\)*"', inner)  # no quote that ends it early
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], inner)


@given(TEXT)
def test_a_quoted_text_is_one_string_and_reads_back(text: str):
    assert unquoted(quoted(text)) == text
    assert "\n" not in quoted(text)


@given(st.lists(TEXT, min_size=1, max_size=5), TEXT)
def test_one_of_matches_its_values_and_nothing_else(values: list[str], other: str):
    pattern = re.compile(unquoted(one_of(values)), re.DOTALL)  # RE2 is anchored at both ends in PromQL
    assert all(pattern.fullmatch(value) for value in values)
    assert bool(pattern.fullmatch(other)) == (other in values)


@given(TEXT)
def test_matchers_are_written_anew_or_refused(text: str):
    try:
        found = parsed_matchers(text)
    except InvalidInput:
        return
    assert parsed_matchers(",".join(found)) == found
    assert all(re.fullmatch(r'\w+(=|!=|=~|!~)"(?:[^"\\\n]|\\.)*"', one) for one in found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ('job="vllm"', ['job="vllm"']),
        ('{job="vllm", cluster=~"eu-.*",}', ['job="vllm"', 'cluster=~"eu-.*"']),
        ('a!="b\\"c"', ['a!="b\\"c"']),
    ],
)
def test_matchers_as_operators_write_them(text: str, found: list[str]):
    assert parsed_matchers(text) == found


def test_a_selector_has_whole_milliseconds():
    assert selector([matcher("job", ["a"])], seconds=12.3456) == '{job="a"}[12346ms]'
    assert selector([matcher("job", ["a", "b"])]) == '{job=~"a|b"}'
    with pytest.raises(InvalidInput):
        matcher('job="a"} or up{x', ["y"])


def series(name: str, samples: list[tuple[int, float]], **labels: str) -> Series:
    return Series({"__name__": name, "instance": "n:1", "job": "v", **labels}, tuple(samples))


def test_a_page_has_what_had_a_sample_then():
    parts = PageParts()
    target = {"instance": "n:1", "job": "v"}
    running, waiting = "vllm:num_requests_running", "vllm:num_requests_waiting"
    parts.add(series(running, [(1_000, 2.0), (2_000, 3.0)], engine="0"), target)
    parts.add(series(waiting, [(1_000, 7.0)], engine="0"), target)  # gone in the second scrape
    assert parts.page(1_000).decode().splitlines() == [
        f'{running}{{engine="0"}} 2.0',
        f'{waiting}{{engine="0"}} 7.0',
    ]
    assert parts.page(2_000).decode().splitlines() == [f'{running}{{engine="0"}} 3.0']
    assert parts.page(3_000) == b""


def test_a_label_that_met_a_targets_label_is_the_engines_own_again():
    parts = PageParts()
    target = {"instance": "n:1", "job": "v", "engine": "rack-7"}
    parts.add(series("vllm:num_requests_running", [(1, 2.0)], engine="rack-7", exported_engine="0"), target)
    parts.add(series("vllm:num_requests_running", [(1, 5.0)], engine="rack-8", exported_engine="0"), target)
    assert parts.page(1) == b'vllm:num_requests_running{engine="0"} 2.0\n'  # rack-8 is somebody else


@given(TEXT)
def test_any_label_value_survives_the_page(value: str):
    parts = PageParts()
    parts.add(series("vllm:num_requests_running", [(1, 2.0)], engine="0", model_name=value), {})
    page = read_page(parts.page(1) + b"vllm:generation_tokens_total 1\n", source="s")
    assert value in {engine.model for engine in page.engines} or not value


def up(samples: list[tuple[int, float]], **labels: str) -> Series:
    return series("up", samples, **labels)


def test_pulses_tell_scrapes_from_failures_and_how_often():
    found = pulses(Answer((up([(0, 1.0), (15_000, 1.0), (30_000, 0.0)]),)), "instance")
    (pulse,) = found["n:1"]
    assert pulse.scrapes_ms == (0, 15_000)
    assert pulse.failed_ms == (30_000,)
    assert pulse.is_down
    assert pulse.interval_s == 15.0
    assert pulse.labels == {"instance": "n:1", "job": "v"}


def test_the_replica_with_the_newest_page_is_read():
    found = pulses(
        Answer(
            (up([(0, 1.0), (10_000, 1.0)], replica="a"), up([(4_000, 1.0), (14_000, 1.0)], replica="b"))
        ),
        "instance",
    )
    assert best(found["n:1"]).labels["replica"] == "b"
    level = [Pulse({"replica": r}, (1_000,)) for r in "ba"]
    assert best(level).labels == {"replica": "a"}  # always the same of two equal ones


def test_samples_that_are_no_numbers_are_left_out_and_ordered():
    body = {
        "resultType": "matrix",
        "result": [{"metric": {"a": "b"}, "values": [[2, "NaN"], [3.5, "1"], [1, "+Inf"], [0.25, "4"]]}],
    }
    (one,) = read_answer(json.dumps({"status": "success", "data": body}).encode()).series
    assert one.samples == ((250, 4.0), (3_500, 1.0))


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.floats() | TEXT,
        lambda x: (
            st.lists(x, max_size=3)
            | st.dictionaries(
                st.sampled_from(["status", "data", "result", "resultType", "metric", "values"]),
                x,
                max_size=4,
            )
        ),
    ).map(lambda x: json.dumps(x).encode())
)
def test_no_answer_does_more_than_be_refused(body: bytes):
    with contextlib.suppress(BadAnswer, QueryRefused):
        read_answer(body)
