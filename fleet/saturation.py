"""What an engine was seen doing: windows as points, the mix they carry, and minutes at its limit.

Batches are sequences in decode, times seconds, rates per second. A point is one window between two scrapes.
Saturation is a fact of the samples (work waiting and no room left), not a threshold on a gauge. Prevents:
an occupancy taken for saturation, and a mean output length biased by requests still running.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fleet.curve_fit import Vector

MIN_WINDOWS = 12
MIN_COMPLETIONS = 20
MINUTE_COVERED_S = 45.0  # what must be covered of a minute to speak for it
OUTPUT_CV = 0.8  # coefficient of variation of chat outputs in public traces: squared cv 0.53 to 0.60
OUTPUT_CV_BAND = (0.4, 1.3)  # what it may be where nobody measured the KV that a sequence holds
BATCH_MAX = 1e6  # sequences no engine has: one hostile page must not spoil a fit
ITL_MAX_S = 1e6  # seconds no step takes
EVENTS_MAX = 1e9  # tokens a second no engine computes
MANY_RUNNING = 8  # below it one reading of the KV gauge says little about a sequence
MERGED_S = 30.0  # windows of a prefill-heavy mix are joined: ten seconds hold few prompts
PREFILL_HEAVY = 10.0  # prompt tokens a decode step of a request from which prefill rules the step
DEFAULT_MAX_NUM_SEQS = 256  # vLLM's default; used, and flagged, where nobody said and no queue was seen
LEAST_DEFAULT_BUDGET = 2048  # tokens a step may carry by default on small GPUs: how little it may be
LARGEST_DEFAULT_SEQS = 1024  # vLLM's default on the largest GPUs: how far unknown slots may reach


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the operator registered (launch arguments, objective). None: not known."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_capacity_tokens: int | None = None
    itl_slo_s: float | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One usable or unusable window of one engine."""

    ended_at_s: float
    length_s: float
    batch: float  # d(itl_sum) / dt: requests in decode, time average
    itl_s: float
    decode_events: float
    completed: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_computed: int | None = None
    running: int | None = None
    waiting: int | None = None
    kv_used_ratio: float | None = None
    preemptions: int | None = None
    usable: bool = True  # enters the curve; saturation and mix use every point

    @property
    def is_possible(self) -> bool:
        """Return whether an engine can have done this: a page may say anything."""
        most = EVENTS_MAX * self.length_s
        tokens = max(self.decode_events, self.prompt_tokens or 0, self.prompt_tokens_computed or 0)
        return self.batch <= BATCH_MAX and self.itl_s <= ITL_MAX_S and tokens <= most


@dataclass(frozen=True, slots=True)
class Mix:
    """What requests look like: capacity in req/s holds for this mix alone. None: too few completions."""

    completions: int
    decode_events: float | None  # O_ev, decode steps a request
    prompt_tokens: float | None  # I, cached included
    prompt_tokens_computed: float | None
    kv_ratio_per_sequence: float | None  # share of the KV cache one running sequence holds
    prefill_s: float | None = None  # seconds a request holds a slot before it decodes; None: not told apart

    @property
    def is_prefill_heavy(self) -> bool:
        """Whether prompts rule the step time."""
        share = self.prompts_per_event
        return share is not None and share >= PREFILL_HEAVY

    @property
    def prompts_per_event(self) -> float | None:
        """Return I / O, prompt tokens computed a decode step; all where cached ones are not told apart."""
        known = self.prompt_tokens_computed
        prompt = known if known is not None else self.prompt_tokens
        return prompt / self.decode_events if prompt is not None and self.decode_events else None


@dataclass(frozen=True, slots=True)
class Plateau:
    """A capacity that was seen: the engine full, with work waiting, for a minute or more."""

    tokens_per_s: float  # median of decode tokens/s over saturated windows, at the mean mix
    relative_error: float  # standard error of it, ratio
    seen_at_s: float
    windows: int


def mix_of(points: Sequence[Point]) -> Mix:
    """Return the mean request over `points`; KV per sequence from windows with 8 or more running."""
    counted = [p for p in points if p.completed is not None]
    completions = sum(p.completed or 0 for p in counted)
    kv = _kv_ratio_per_sequence(points)
    if completions < MIN_COMPLETIONS:
        return Mix(completions, None, None, None, kv)
    known = all(p.prompt_tokens is not None for p in counted)
    # a request in flight has decoded E[O^2]/(2 E[O]) so far: what began before and ended after evens out
    ran = [p.running for p in counted if p.running is not None]
    in_flight = (ran[-1] - ran[0]) * (1 + OUTPUT_CV**2) / 2 if ran else 0.0
    computed = all(p.prompt_tokens_computed is not None for p in counted)
    return Mix(
        completions,
        sum(p.decode_events for p in counted) / max(completions + in_flight, completions / 2),
        sum(p.prompt_tokens or 0 for p in counted) / completions if known else None,
        sum(p.prompt_tokens_computed or 0 for p in counted) / completions if computed else None,
        kv,
        _prefill_s(points, completions),
    )


def _kv_ratio_per_sequence(points: Sequence[Point]) -> float | None:
    """Return KV use over running requests, from readings with 8 or more running, else from all."""
    held = [
        (p.kv_used_ratio, p.running)
        for p in points
        if p.kv_used_ratio is not None and p.running and p.kv_used_ratio > 0
    ]
    many = [(used, running) for used, running in held if running >= MANY_RUNNING]
    chosen = many or held
    running = sum(running for _, running in chosen)
    return sum(used for used, _ in chosen) / running if many or running >= 100 else None


def merged(points: Sequence[Point], mix: Mix) -> list[Point]:
    """Return usable points, joined to half a minute where prompts rule the step time.

    With 8,000 prompt tokens for 50 decoded ones, ten seconds hold too few prompts: batch and step time
    then scatter together, and the line through them is too flat. Neighbours without a gap are joined.
    """
    if not mix.is_prefill_heavy:
        return list(points)
    found: list[Point] = []
    group: list[Point] = []
    for point in points:
        starts_at = point.ended_at_s - point.length_s
        if group and abs(group[-1].ended_at_s - starts_at) > 1.0:
            group = []
        group.append(point)
        if sum(p.length_s for p in group) >= MERGED_S:
            found.append(_joined(group))
            group = []
    return found if len(found) >= MIN_WINDOWS else list(points)


def _joined(group: Sequence[Point]) -> Point:
    seconds, gaps = sum(p.length_s for p in group), sum(p.batch * p.length_s for p in group)
    events = sum(p.decode_events for p in group)
    return replace(
        group[-1],
        length_s=seconds,
        batch=gaps / seconds,
        itl_s=gaps / events,
        decode_events=events,
        prompt_tokens=_total([p.prompt_tokens for p in group]),
        prompt_tokens_computed=_total([p.prompt_tokens_computed for p in group]),
    )


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _prefill_s(points: Sequence[Point], completions: int) -> float | None:
    """Return how long a request holds a slot without decoding: Little's law on running minus decoding.

    None where the difference is within three standard errors of nothing: `running` is a gauge read once a
    window, and the noise of it must not take slots away.
    """
    told = [(p.running - p.batch, p.length_s) for p in points if p.running is not None and p.is_possible]
    if len(told) < MIN_WINDOWS or not completions:
        return None
    apart = np.asarray([difference for difference, _ in told], np.float64)
    mean = float(apart.mean())
    if mean <= 3 * float(apart.std()) / math.sqrt(len(told)):
        return None
    return mean * sum(length for _, length in told) / completions


def known_slots(points: Sequence[Point], limits: EngineLimits) -> tuple[float, tuple[str, ...]]:
    """Return sequence slots and how they are known: registered, seen while requests waited, or assumed."""
    if limits.max_num_seqs is not None:
        return float(limits.max_num_seqs), ()
    full = [p.running for p in points if p.running is not None and (p.waiting or 0) > 0]
    if len(full) >= MIN_WINDOWS:
        return float(max(full)), ("max_num_seqs_learned",)
    return float(DEFAULT_MAX_NUM_SEQS), ("max_num_seqs_assumed",)


def throughput_60s(points: Sequence[Point]) -> Vector:
    """Return decode tokens/s over trailing 60 s, one value a point that has 45 s or more behind it."""
    rates: list[float] = []
    first, events, covered = 0, 0.0, 0.0
    for point in points:
        events += point.decode_events
        covered += point.length_s
        while points[first].ended_at_s <= point.ended_at_s - 60:
            events -= points[first].decode_events
            covered -= points[first].length_s
            first += 1
        if covered >= MINUTE_COVERED_S:
            rates.append(events / covered)
    return np.asarray(rates, np.float64)


def is_saturated(minute: Sequence[Point], slots: float) -> bool:
    """Return whether samples of one minute (45 s or more covered) show an engine at its limit.

    Saturated: waiting > 0 in at least 90 % of the samples, and 97 % of the slots in use, the KV cache 97 %
    full, or preemptions. `slots` may be infinite where it is not known.
    """
    waited = sum((p.waiting or 0) > 0 for p in minute)
    if not _covers_minute(minute) or waited < 0.9 * len(minute):
        return False
    full = all((p.running or 0) >= 0.97 * slots for p in minute)
    memory = all((p.kv_used_ratio or 0.0) >= 0.97 for p in minute)
    return full or memory or any(p.preemptions for p in minute)


def _covers_minute(minute: Sequence[Point]) -> bool:
    return sum(p.length_s for p in minute) >= MINUTE_COVERED_S


def saturated_points(
    points: Sequence[Point], slots: float, *, does_queue_suffice: bool = False
) -> list[Point]:
    """Return points that end a saturated minute; with `does_queue_suffice` also one that queued throughout.

    Where work waits all the time the engine does what it can, whichever limit holds it: a token budget full
    of prompts shows in no gauge.
    """
    found: list[Point] = []
    first = queued = 0
    for position, point in enumerate(points):
        queued += (point.waiting or 0) > 0
        while points[first].ended_at_s <= point.ended_at_s - 60:
            queued -= (points[first].waiting or 0) > 0
            first += 1
        count = position + 1 - first
        if queued < 0.9 * count:
            continue
        minute = points[first : position + 1]
        if is_saturated(minute, slots) or (
            does_queue_suffice and queued == count and _covers_minute(minute)
        ):
            found.append(point)
    return found
