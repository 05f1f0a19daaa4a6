"""The reader against its oracle, and against pages made to hurt it."""

from __future__ import annotations

import gzip
import math
import tracemalloc
from pathlib import Path

import pytest
from exposition_oracle import read_sample
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.dialect_names import WANTED_PREFIXES
from fleet.dialects import read_page
from fleet.exposition import Caps, Families, read_families
from fleet.exposition_lines import PREFIX_REWRITES
from fleet.readings import PageState

PAGES = sorted((Path(__file__).parents[2] / "data" / "metrics").glob("*.prom.txt"))
Flat = dict[tuple[str, frozenset[tuple[str, str]]], float]


def flat(families: Families) -> Flat:
    return {
        (name, frozenset(labels.items())): value
        for name, family in families.samples.items()
        for labels, value in family
    }


def by_oracle(text: str, prefixes: tuple[str, ...]) -> Flat:
    """What the rules of `read_families` make of a page, line by line, first of equals."""
    found: Flat = {}
    for line in text.split("\n"):
        if line.startswith("#") or not line.strip(" \t").startswith(prefixes):
            continue
        sample = read_sample(line)
        if sample is None or sample[0].endswith("_created") or not math.isfinite(sample[2]):
            continue
        name, labels, value = sample
        if "le" in labels and not _is_bound(labels["le"]):
            continue
        for written, ours in PREFIX_REWRITES:
            if name.startswith(written):
                name = ours + name.removeprefix(written)
                break
        found.setdefault((name, frozenset(labels.items())), value)
    return found


def _is_bound(text: str) -> bool:
    sample = read_sample(f"x {text}")
    return sample is not None and not math.isnan(sample[2]) and sample[2] != -math.inf


def read(text: str, **caps: int) -> Families:
    return read_families(text.encode(), prefixes=WANTED_PREFIXES, caps=Caps(**caps))


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name.removesuffix(".prom.txt"))
def test_real_pages_read_as_the_oracle_reads_them(path: Path):
    body = path.read_bytes()
    want = by_oracle(body.decode(), WANTED_PREFIXES)
    assert len(want) > 0
    assert flat(read_families(body, prefixes=WANTED_PREFIXES)) == want
    assert flat(read_families(body, prefixes=WANTED_PREFIXES)) == want  # now by the remembered layout


LABEL_VALUES = st.text(st.sampled_from('ab"\\n{}=, #\té☃0'), max_size=8)
VALUES = st.one_of(
    st.floats().map(repr),
    st.sampled_from(
        [
            "1",
            "1.0",
            "1e5",
            "1.7959e+09",
            "+Inf",
            "-Inf",
            "NaN",
            "1e400",
            "1_0",
            "0x10",
            "",
            "--1",
            "٣",
            "1 ",
        ]
    ),
)
NAMES = st.sampled_from(
    ["vllm:a", "vllm_a", "ray_vllm:b_bucket", "vllm:c_created", "vllm:é", "python_x", ""]
)
EXTRAS = st.sampled_from(["", " 1234", " 1234.5", ' # {trace_id="x"} 0.5', " 12 # {} 1 2", " # no", " x"])


def escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@st.composite
def sample_lines(draw: st.DrawFn) -> str:
    names = draw(st.lists(st.sampled_from(["engine", "le", "model_name", "x"]), max_size=4))
    quote = draw(st.sampled_from([escape, escape, escape, str]))
    labels = draw(st.sampled_from([",", ", ", " ,"])).join(
        f'{name}="{quote(draw(LABEL_VALUES if name != "le" else st.sampled_from(["1", "+Inf", "x"])))}"'
        for name in names
    )
    comma = draw(st.sampled_from(["", "", ",", " "]))
    braces = f"{{{labels}{comma}}}" if names or draw(st.booleans()) else ""
    blank = draw(st.sampled_from([" ", " ", " ", "  ", "\t", ""]))
    return f"{draw(NAMES)}{braces}{blank}{draw(VALUES)}{draw(EXTRAS)}".replace("\n", " ")


@settings(deadline=None)
@given(st.lists(sample_lines(), max_size=8))
def test_made_lines_read_as_the_oracle_reads_them(lines: list[str]):
    text = "".join(f"{line}\n" for line in lines)
    assert flat(read(text)) == by_oracle(text, WANTED_PREFIXES)


@settings(deadline=None)
@given(st.lists(sample_lines(), min_size=1, max_size=4), st.data())
def test_what_was_read_before_changes_nothing(lines: list[str], data: st.DataObject):
    # Three pages of one length in a row, the later ones with some lines changed, as a scraper sees them.
    for _ in range(3):
        text = "".join(f"{line}\n" for line in ("vllm:first 1", *lines))
        assert flat(read(text)) == by_oracle(text, WANTED_PREFIXES)
        at = data.draw(st.integers(0, len(lines) - 1))
        lines[at] = data.draw(sample_lines())


@settings(deadline=None)
@given(st.lists(st.tuples(LABEL_VALUES, st.floats(allow_nan=False, allow_infinity=False)), max_size=20))
def test_what_is_written_is_read_back(samples: list[tuple[str, float]]):
    want = {(("x", v),): n for v, n in reversed(samples)}
    text = "".join(f'vllm:a{{x="{escape(v)}"}} {n!r}\n' for v, n in samples)
    got = {tuple(labels.items()): value for labels, value in read(text).samples.get("vllm:a", [])}
    assert got == want


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_can_raise_or_poison(body: bytes):
    page = read_page(b'vllm:num_requests_running{engine="0"} ' + body, source="x")
    for engine in page.engines:
        assert engine.running is None or 0 <= engine.running < 2**63


@settings(deadline=None)
@given(st.integers(0, 2000))
def test_a_page_cut_anywhere_tells_no_untruth(back: int):
    # Every value read from a cut page is the value of the whole page: half a number is never a number.
    body = next(p for p in PAGES if "steady-load" in p.name).read_bytes()
    whole = flat(read_families(body, prefixes=WANTED_PREFIXES))
    middle = body.index(b"vllm:generation_tokens_total{") + 200
    got = flat(read_families(body[: middle - back], prefixes=WANTED_PREFIXES))
    assert got.items() <= whole.items()


def test_a_remembered_layout_sees_every_change():
    page = '# TYPE vllm:a gauge\nvllm:a{engine="0"} 1\nvllm:b{engine="0"} 2\npython_x 3\n'
    assert flat(read(page)) == flat(read(page))
    for old, new in (
        ('a{engine="0"}', 'a{engine="1"}'),
        ("vllm:b", "vllm:c"),
        ("python_x 3", "vllm:d 3"),
        ("# TYPE vllm:a gauge", "vllm:e 9"),
        ("} 1", "} NaN"),
        ("} 1", "} 1_0"),
        ("} 1", "} \u0661"),  # an Arabic-Indic 1
        ("} 1", "} 1 1700000000"),
        ("} 2", "} "),
    ):
        read(page)
        changed = page.replace(old, new)
        assert flat(read(changed)) == by_oracle(changed, WANTED_PREFIXES), (old, new)


def test_lines_with_blanks_in_front_are_read_every_time():
    text = "vllm:a 1\n  vllm:b 2\n"
    assert flat(read(text)) == flat(read(text)) == {("vllm:a", frozenset()): 1, ("vllm:b", frozenset()): 2}


HOSTILE = {
    "NaN": ('vllm:prompt_tokens_total{engine="0"} NaN', None),
    "infinite": ('vllm:prompt_tokens_total{engine="0"} +Inf', None),
    "overflow": ('vllm:prompt_tokens_total{engine="0"} 1e400', None),
    "past 64 bits": ('vllm:prompt_tokens_total{engine="0"} 1e300', None),
    "negative": ('vllm:prompt_tokens_total{engine="0"} -5', None),
    "underscore": ('vllm:prompt_tokens_total{engine="0"} 1_000', None),
    "other digits": ('vllm:prompt_tokens_total{engine="0"} ٣٤', None),
    "hexadecimal": ('vllm:prompt_tokens_total{engine="0"} 0x10', None),
    "no value": ('vllm:prompt_tokens_total{engine="0"}', None),
    "open labels": ('vllm:prompt_tokens_total{engine="0" 5', None),
    "open quote": ('vllm:prompt_tokens_total{engine="0} 5', None),
    "label twice": ('vllm:prompt_tokens_total{engine="0",engine="1"} 5', None),
    "two values": ('vllm:prompt_tokens_total{engine="0"} 5 6 7', None),
    "escape at the end": ('vllm:prompt_tokens_total{engine="0\\"} 5', None),
    "future time stamp": ('vllm:prompt_tokens_total{engine="0"} 5 99999999999999', 5),
    "exemplar": ('vllm:prompt_tokens_total{engine="0"} 5 # {a="} 7"} 9 1.0', 5),
    "braces in a value": ('vllm:prompt_tokens_total{engine="0",x="} 9 # {"} 5', 5),
    "trailing blanks": ('vllm:prompt_tokens_total{engine="0"} 5  \r', 5),
    "blanks in front": ('  vllm:prompt_tokens_total { engine = "0" , } 5', 5),
    "given twice": (
        'vllm:prompt_tokens_total{engine="0"} 5\nvllm:prompt_tokens_total{engine="0"} 7',
        5,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_bad_line_costs_itself_alone(name: str):
    line, want = HOSTILE[name]
    around = (
        'vllm:num_requests_running{engine="0"} 2',
        line,
        'vllm:num_requests_waiting{engine="0"} 3',
        "",
    )
    page = read_page("\n".join(around).encode(), source="x")
    (engine,) = page.engines
    assert (engine.running, engine.waiting, engine.prompt_tokens) == (2, 3, want)
    assert bool(page.dropped) == (want is None or name == "given twice")


def test_a_histogram_that_cannot_be_trusted_is_left_out_alone():
    def buckets(family: str, *pairs: tuple[str, float]) -> str:
        return "".join(f'vllm:{family}_bucket{{engine="0",le="{le}"}} {n}\n' for le, n in pairs)

    page = read_page(
        (
            buckets("e2e_request_latency_seconds", ("1", 5), ("2", 9))  # no +Inf
            + buckets("time_to_first_token_seconds", ("1", -5), ("+Inf", 9))
            + buckets("inter_token_latency_seconds", ("1", 5), ("2", 3), ("+Inf", 9))  # falls: lifted
            + buckets("request_queue_time_seconds", ("NaN", 5), ("+Inf", 9))
            + buckets("request_decode_time_seconds", ("1", 1), ("1.0", 2), ("+Inf", 3))
        ).encode(),
        source="x",
    )
    (engine,) = page.engines
    assert engine.histograms["itl_s"].counts == (5, 0, 4)
    assert {"e2e_s", "ttft_s", "decode_s"}.isdisjoint(engine.histograms)
    assert len(page.dropped) == 4


def test_caps_on_lines_series_labels_and_remarks():
    long = 'vllm:a{x="' + "y" * 70_000 + '"} 1\n'
    assert read(long + "vllm:b 1\n").series.keys() == {"vllm:b"}
    many = "".join(f'vllm:a{{i="{i}"}} 1\n' for i in range(300)) + "vllm:b 1\n"
    assert len(read(many, series=100).series["vllm:a"]) == 100
    kept = read(many, family_series=50)
    assert (len(kept.series["vllm:a"]), len(kept.series["vllm:b"])) == (50, 1)
    labels = ",".join(f'l{i}="x"' for i in range(20_000))
    assert read(f"vllm:a{{{labels}}} 1\nvllm:b 1\n", line_bytes=10**6).series.keys() == {"vllm:b"}
    value = "v" * 9000
    assert read(f'vllm:a{{x="{value}"}} 1\n').series == {}
    remarks = read("vllm:a x\n" * 500).remarks()
    assert len(remarks) == 51
    assert remarks[-1] == "and 450 more"


def test_a_page_over_the_cap_is_not_read():
    page = read_page(b"vllm:a 1\n" * 2_000_000, source="x")  # 18 MB
    assert page.state is PageState.TOO_LARGE
    assert "18000000 bytes" in page.hint


def test_a_million_series_take_bounded_memory():
    # 15 MB of series nobody asked for: the reader keeps the cap's worth and stops
    body = b"".join(b'vllm:x{i="%d"} 1\n' % i for i in range(750_000))
    assert len(body) < Caps().body_bytes
    tracemalloc.start()
    page = read_page(body, source="x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert any("series cap" in remark for remark in page.dropped)
    assert peak < 64 * 1024 * 1024


def test_a_cut_last_line_is_left_out_where_a_server_wrote_the_page():
    assert read("# TYPE vllm:a counter\nvllm:b 1\nvllm:a 13").series.keys() == {"vllm:b"}
    assert read("vllm:a 13").series.keys() == {"vllm:a"}  # a bare line typed by hand
    assert read("# TYPE vllm:a counter\nvllm:a_total 13\n# EOF").ended


def test_one_line_without_an_end_longer_than_a_chunk():
    body = b"vllm:b 1\n" + b"x" * 700_000
    found = read_families(body, prefixes=WANTED_PREFIXES)
    assert found.series.keys() == {"vllm:b"}
    assert found.remarks() == ("line 2: over the line cap of 65536 bytes",)


def test_chunks_lose_no_line():
    # 600 KB in lines of 21 to 28 bytes: chunk borders fall everywhere
    body = b"".join(b'vllm:x{i="%d"} %d\n' % (i, i % 7) for i in range(30_000))
    found = read_families(body, prefixes=WANTED_PREFIXES, caps=Caps(series=40_000, family_series=40_000))
    assert sum(value for _, value in found.series["vllm:x"]) == sum(i % 7 for i in range(30_000))


def test_a_page_of_nothing_wanted_is_left_after_a_bounded_number_of_lines():
    found = read_families(b"x 1\n" * 1_000_000, prefixes=WANTED_PREFIXES)
    assert found.saw_sample
    assert any("cap of 200000 lines" in remark for remark in found.remarks())
    bad = read_families(b"vllm:a x\n" * 1_000_000, prefixes=WANTED_PREFIXES)
    assert bad.dropped_more < 60_000


@pytest.mark.parametrize(
    "inside", ['x="' + '\\"' * 30_000, '"a"' * 20_000, 'a="b",' * 10_000, "}" * 60_000]
)
def test_long_lines_of_nonsense_cost_themselves(inside: str):
    found = read(f"vllm:a{{{inside}}} 1\nvllm:b 1\n")
    assert found.series.keys() == {"vllm:b"}
    assert len(found.remarks()) == 1


def test_a_known_layout_does_not_lift_the_caps():
    text = "".join(f'vllm:z{{i="{i}"}} 1\n' for i in range(30))
    assert len(read(text).series["vllm:z"]) == 30
    assert len(read(text, series=10).series["vllm:z"]) == 10
    assert len(read(text, family_series=10).series["vllm:z"]) == 10


def test_a_mark_in_front_of_the_page_costs_no_line():
    # a page saved by an editor may begin with U+FEFF; without care the first series is lost unseen
    page = b'vllm:num_requests_running{engine="0",model_name="m"} 3\n'
    marked = read_families(b"\xef\xbb\xbf" + page, prefixes=WANTED_PREFIXES)
    assert flat(marked) == flat(read_families(page, prefixes=WANTED_PREFIXES)) != {}


def test_a_packed_page_says_how_to_unpack_it():
    read = read_page(gzip.compress(PAGES[0].read_bytes()), source="page.gz")
    assert read.state is PageState.NOT_METRICS
    assert "gunzip" in read.hint
