"""Questions to Prometheus-compatible servers, and metrics pages put together again from their answers.

Pure. Asks for raw samples (range selectors), never for `rate()`, so that our own arithmetic applies to
what was scraped. All samples of one scrape carry its time, so a page of that time is the page the server
saw. Times are Unix seconds, whole milliseconds on the wire. Prevents: a rate stretched to the ends of a
range, an operator's label that ends a selector and begins another, two replicas added up as one node,
and a series that vanished living on in the next page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import cast

import orjson

from fleet.dialect_names import WANTED_PREFIXES
from fleet.errors import FleetError, InvalidInput

#: Bounds on one answer: what a chunk of nodes can honestly have, with room.
SERIES_MAX = 200_000
SAMPLES_MAX = 5_000_000
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: RE2's special characters; anything else stands for itself.
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")
#: A scraped label that met a target label of the same name (`honor_labels: false`).
_EXPORTED = "exported_"
#: Series that tell when a target was scraped. `up` also carries exactly the target's own labels.
PULSE = (
    "up",
    "process_start_time_seconds",
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "trtllm_num_requests_running",
    "nv_inference_request_success",
)


class BadAnswer(FleetError):
    """The server answered with something that is no answer of the query API."""


class QueryRefused(FleetError):
    """The server understood and refused: it says why."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series: labels with `__name__`, and samples as (milliseconds, value), ascending, NaN left out."""

    labels: Mapping[str, str]
    samples: tuple[tuple[int, float], ...]

    @property
    def name(self) -> str:
        return self.labels.get("__name__", "")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gave. `warnings` mean that parts may be missing (Thanos, Mimir)."""

    series: tuple[Series, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pulse:
    """One target as one server (or one of its replicas) sees it.

    `labels` are the target's own, without `__name__`. `scrapes_ms` are the times a page was taken at,
    `failed_ms` those at which the target did not answer; both ascend.
    """

    labels: Mapping[str, str]
    scrapes_ms: tuple[int, ...] = ()
    failed_ms: tuple[int, ...] = ()
    has_up: bool = False

    @property
    def newest_ms(self) -> int | None:
        return self.scrapes_ms[-1] if self.scrapes_ms else None

    @property
    def is_down(self) -> bool:
        """True when the newest attempt failed."""
        return bool(self.failed_ms) and (not self.scrapes_ms or self.failed_ms[-1] > self.scrapes_ms[-1])

    @property
    def interval_s(self) -> float | None:
        """Median seconds between attempts; None with fewer than two."""
        times = sorted({*self.scrapes_ms, *self.failed_ms})
        gaps = sorted(b - a for a, b in pairwise(times))
        return gaps[len(gaps) // 2] / 1000 if gaps else None


def quoted(value: str) -> str:
    """Return `value` as a PromQL string. Source: Prometheus documentation, Querying basics."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def one_of(values: Iterable[str]) -> str:
    """Return a PromQL string that matches exactly `values` in `=~` (RE2, anchored at both ends)."""
    return quoted("|".join(_SPECIAL.sub(r"\\\1", value) for value in values))


def selector(matchers: Sequence[str], *, seconds: float | None = None) -> str:
    """Return a selector from finished matchers, as a range over the last `seconds` if given."""
    span = "" if seconds is None else f"[{max(1, round(seconds * 1000))}ms]"
    return "{" + ",".join(matchers) + "}" + span


def matcher(label: str, values: Sequence[str]) -> str:
    """Return `label=~"a|b"`. Raises InvalidInput for what is no label name."""
    if not _LABEL_NAME.fullmatch(label):
        raise InvalidInput(
            f"{label[:60]!r} is not a label name", hint="Letters, digits and _ only", field="label"
        )
    if len(values) == 1:
        return f"{label}={quoted(values[0])}"
    return f"{label}=~{one_of(values)}"


def parsed_matchers(text: str) -> list[str]:
    """Return matchers from `a="b", c!="d"`, each checked and written anew.

    Raises InvalidInput where it is anything else: nothing an operator types can end the selector.
    """
    rest, found = text.strip(), list[str]()
    if rest.startswith("{") and rest.endswith("}"):
        rest = rest[1:-1].strip()
    pattern = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
    at = 0
    while at < len(rest):
        match = pattern.match(rest, at)
        if match is None:
            raise InvalidInput(
                f"cannot read matchers at {rest[at : at + 40]!r}",
                hint='Write them as in PromQL: job="vllm",cluster=~"eu-.*"',
                field="match",
            )
        label, operator, value = match.groups()
        plain = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value)
        found.append(f"{label}{operator}{quoted(plain)}")
        at = match.end()
    return found


def wanted_names() -> str:
    """Return the matcher of every series our dialects read, without `_created` ones."""
    prefixes = "|".join(_SPECIAL.sub(r"\\\1", prefix) for prefix in WANTED_PREFIXES)
    return f"__name__=~{quoted(f'(?:{prefixes}).*')}"


#: Series that no dialect reads: dates of birth, and parts of a page that are large.
UNWANTED = f"__name__!~{quoted('.*_created|http_requests?_(?:size|duration).*|http_request_duration.*')}"


def unseen(at_ms: int) -> str:
    """Return a matcher that excludes nothing and makes a query's text new.

    VictoriaMetrics remembers which series a text selects for up to ten seconds: a new node's series, and
    those that appear with its first request, would be missing from whole pages.
    """
    return f'__name__!="rhodeck_{at_ms}"'


def read_answer(body: bytes) -> Answer:
    """Return what a query API answered with a matrix or vector.

    Raises QueryRefused with the server's own words, BadAnswer for anything that is no such answer or is
    over the caps. Source: Prometheus documentation, HTTP API, Format overview.
    """
    data = read_data(body)
    kind, result = data.get("resultType"), data.get("result")
    if kind not in ("matrix", "vector") or not isinstance(result, list):
        raise BadAnswer(f"the answer is a {str(kind)[:40]}, not a matrix", hint=_HINT)
    found = cast("list[object]", result)
    if len(found) > SERIES_MAX:
        raise BadAnswer(
            f"{len(found)} series in one answer, over {SERIES_MAX}", hint="Narrow the source's matchers"
        )
    budget, series = SAMPLES_MAX, list[Series]()
    for item in found:
        one = _series(item)
        budget -= len(one.samples)
        if budget < 0:
            raise BadAnswer(f"over {SAMPLES_MAX} samples in one answer", hint="Narrow the matchers")
        series.append(one)
    return Answer(tuple(series), _texts(data.get("warnings")))


_HINT = "Is this the address of a Prometheus-compatible query API?"


def read_data(body: bytes) -> dict[str, object]:
    """Return the `data` object of an answer, with its `warnings` put in. Raises as `read_answer`."""
    try:
        said: object = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise BadAnswer("the answer is not JSON", hint=_HINT) from problem
    if not isinstance(said, dict):
        raise BadAnswer("the answer is not a JSON object", hint=_HINT)
    answer = cast("dict[str, object]", said)
    if answer.get("status") == "error":
        kind, words = str(answer.get("errorType"))[:60], str(answer.get("error"))[:500]
        raise QueryRefused(f"the server refuses: {kind}: {words}", hint="Its own words; look at its log")
    data = answer.get("data")
    if answer.get("status") != "success" or not isinstance(data, dict):
        raise BadAnswer("the answer has no data", hint=_HINT)
    return {**cast("dict[str, object]", data), "warnings": answer.get("warnings")}


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(str(item)[:300] for item in cast("list[object]", value)[:20])


def _series(item: object) -> Series:
    if not isinstance(item, dict):
        raise BadAnswer("a series is not an object", hint=_HINT)
    fields = cast("dict[str, object]", item)
    labels, values = fields.get("metric"), fields.get("values", [fields.get("value")])
    if not isinstance(labels, dict) or not isinstance(values, list):
        raise BadAnswer("a series has no labels or no values", hint=_HINT)
    texts = {str(k): str(v) for k, v in cast("dict[object, object]", labels).items()}
    samples = [_sample(pair) for pair in cast("list[object]", values)]
    ordered = sorted({at: value for at, value in samples if isfinite(value)}.items())
    return Series(texts, tuple(ordered))


def _sample(pair: object) -> tuple[int, float]:
    """Read [seconds, "value"]. Stale markers come as NaN where a server gives them at all."""
    try:
        at, value = cast("Sequence[object]", pair)
        return round(float(cast("float", at)) * 1000), float(cast("str", value))
    except (TypeError, ValueError, OverflowError) as problem:
        raise BadAnswer("a sample is not [time, value]", hint=_HINT) from problem


def pulses(answer: Answer, instance_label: str) -> dict[str, list[Pulse]]:
    """Return how each target (by its instance label) was scraped, one entry for each replica that did.

    A replica that has `up` is taken by it. Without `up` (pushed samples), scrapes are the times of the
    other pulse series, and labels are the instance and job alone.
    """
    found: dict[str, list[Pulse]] = {}
    without: dict[str, set[int]] = {}
    for series in answer.series:
        instance = series.labels.get(instance_label)
        if instance is None or series.name not in PULSE:
            continue
        if series.name != "up":
            without.setdefault(instance, set()).update(at for at, _ in series.samples)
            continue
        labels = {k: v for k, v in series.labels.items() if k != "__name__"}
        taken = tuple(at for at, value in series.samples if value > 0)
        failed = tuple(at for at, value in series.samples if value <= 0)
        found.setdefault(instance, []).append(Pulse(labels, taken, failed, has_up=True))
    for instance, times in without.items():
        if instance not in found:
            found[instance] = [Pulse({instance_label: instance}, tuple(sorted(times)))]
    return found


def best(candidates: Sequence[Pulse]) -> Pulse:
    """Return the replica to read: the one with the newest page, the first by labels where equal."""
    return min(candidates, key=lambda p: (-(p.newest_ms or 0), sorted(p.labels.items())))


@dataclass(slots=True)
class PageParts:
    """The series of one target without the target's own labels, ready to be cut into pages by time."""

    columns: dict[str, dict[int, float]] = field(default_factory=dict[str, dict[int, float]])
    doubled: int = 0  # series that were there already: another replica, or a label that we took off

    def add(self, series: Series, target: Mapping[str, str]) -> None:
        """Take a series if it is the target's; elsewhere it belongs to another replica."""
        labels = series.labels
        if any(labels.get(name) != value for name, value in target.items()):
            return
        own: dict[str, str] = {}
        for name, value in labels.items():
            if name in target or name == "__name__":
                continue
            plain = name.removeprefix(_EXPORTED)
            own[plain if plain in target else name] = value
        head = _head(series.name, own)
        if head in self.columns:
            self.doubled += 1
            return
        self.columns[head] = dict(series.samples)

    def page(self, at_ms: int) -> bytes:
        """Return the page of the scrape at `at_ms`: what had a sample then, and nothing else."""
        lines = [f"{head} {samples[at_ms]!r}" for head, samples in self.columns.items() if at_ms in samples]
        return ("\n".join(lines) + "\n").encode() if lines else b""


def _head(name: str, labels: Mapping[str, str]) -> str:
    if not labels:
        return name
    inner = ",".join(f"{key}={quoted(value)}" for key, value in sorted(labels.items()))
    return f"{name}{{{inner}}}"
