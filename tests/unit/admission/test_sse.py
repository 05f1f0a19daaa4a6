"""Streams are passed on byte for byte, whatever the reads look like, and only our own chunk is missing."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.sse import StreamReader, Usage, usage_in

USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 3},
}


def event(document: object, end: str = "\n\n") -> bytes:
    return f"data: {json.dumps(document)}{end}".encode()


def delta(text: str, end: str = "\n\n") -> bytes:
    return event({"choices": [{"delta": {"content": text}}]}, end)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=30))
def test_hidden_usage_is_the_only_thing_missing_however_reads_fall(end: str, cuts: list[int]) -> None:
    # A text that holds the words we look for must pass: inside JSON its quotes are escaped.
    before = delta('say "usage" and [DONE] {"usage": 1}', end) + delta("two", end)
    usage = event({"choices": [], "usage": USAGE}, end)
    done = f"data: [DONE]{end}".encode()
    reader = StreamReader(hides_usage=True)
    parts = pieces(before + usage + done, cuts)
    seen = b"".join(reader.feed(part) for part in parts) + reader.rest()
    assert seen == before + done
    assert reader.usage == Usage(7, 2, 3)
    assert reader.is_done
    assert reader.events == 2


@given(cuts=st.lists(st.integers(0, 10_000), max_size=30), data=st.binary(max_size=400))
def test_any_bytes_pass_unchanged_when_nothing_is_hidden(cuts: list[int], data: bytes) -> None:
    reader = StreamReader(hides_usage=False)
    seen = b"".join(reader.feed(part) for part in pieces(data, cuts)) + reader.rest()
    assert seen == data


@given(cuts=st.lists(st.integers(0, 10_000), max_size=30), data=st.binary(max_size=400))
def test_any_bytes_without_a_usage_chunk_pass_even_when_it_would_be_hidden(
    cuts: list[int], data: bytes
) -> None:
    reader = StreamReader(hides_usage=True)
    seen = b"".join(reader.feed(part) for part in pieces(data, cuts)) + reader.rest()
    assert seen == data


PARTED = ["\n\n", "\r\n\r\n", "\n\r\n", "\r\n\n"]  # each a line's end and an empty line


@given(
    cuts=st.lists(st.integers(0, 10_000), max_size=30),
    ends=st.lists(st.sampled_from(PARTED), min_size=5, max_size=5),
)
def test_what_relays_a_stream_may_part_its_events_in_another_way(cuts: list[int], ends: list[str]) -> None:
    before = f": a sign of life{ends[0]}".encode() + delta("one", ends[1]) + delta("two", ends[2])
    done = f"data: [DONE]{ends[4]}".encode()
    reader = StreamReader(hides_usage=True)
    parts = pieces(before + event({"choices": [], "usage": USAGE}, ends[3]) + done, cuts)
    passed = [reader.feed(part) for part in parts]
    assert b"".join(passed) == before + done  # nothing waits for the end
    assert (reader.usage, reader.is_done) == (Usage(7, 2, 3), True)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("lines", [["event: message", "id: 3"], [": still here"], ["retry: 10"]])
def test_other_fields_and_comments_before_the_data_hide_nothing(lines: list[str], end: str) -> None:
    before = "".join(line + end for line in lines).encode()
    reader = StreamReader(hides_usage=True)
    seen = reader.feed(
        before + delta("a", end * 2) + before + event({"choices": [], "usage": USAGE}, end * 2)
    )
    assert seen == before + delta("a", end * 2)
    assert reader.usage == Usage(7, 2, 3)
    seen = reader.feed(before + event({"error": {"message": "overloaded"}}, end * 2))
    seen += reader.feed(before + f"data: [DONE]{end * 2}".encode())
    assert reader.has_error
    assert reader.is_done


def test_an_error_inside_the_stream_is_seen() -> None:
    reader = StreamReader(hides_usage=True)
    reader.feed(delta("a") + event({"error": {"message": "overloaded"}}) + b"data: [DONE]\n\n")
    assert reader.has_error
    assert reader.is_done


def test_a_stream_without_its_end_mark_is_not_done() -> None:
    reader = StreamReader(hides_usage=True)
    reader.feed(delta("a") + delta("b"))
    assert not reader.is_done
    assert reader.usage is None
    assert reader.events == 2


def test_an_endless_event_passes_instead_of_filling_memory() -> None:
    reader = StreamReader(hides_usage=True)
    chunk = b"x" * 100_000
    passed = sum(len(reader.feed(chunk)) for _ in range(30))
    assert passed + len(reader.rest()) == 3_000_000
    assert passed > 1_000_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"usage":null}',
        b'{"usage":{}}',
        b'{"usage":{"prompt_tokens":-1}}',
        b'{"usage":{"prompt_tokens":true}}',
        b'{"usage":{"prompt_tokens":"7"}}',
        b'{"usage":{"prompt_tokens":9223372036854775807}}',  # would put its tenant in debt for ages
    ],
)
def test_usage_that_cannot_be_read_is_absent_not_zero(body: bytes) -> None:
    assert usage_in(body) is None


def test_usage_of_an_embedding_has_no_output() -> None:
    assert usage_in(b'{"usage":{"prompt_tokens":9,"total_tokens":9}}') == Usage(9, 0, None)
