"""What is wrong with the pages of one source: findings from one page, from two, and from a run of them.

Pure but for `SourceWatch`, the memory of one source's last pages. Times are seconds on the asker's clock.
Findings say what is so now; since when is for whoever keeps them. Prevents: a page that reads well and
says nothing true, and remarks about it that nobody ever sees.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fleet.lifesigns import Life, Pulses, Writer, is_other_process, two_writers, writer
from fleet.percentages import percent
from fleet.quality_kinds import Finding, Kind, Severity
from fleet.readings import EngineReading, EngineWindow, PageReading

#: Findings kept of one source and round; the rest are counted in one more.
FINDINGS_MAX = 40
DETAIL_CHARS = 300
#: Windows over which gauges are held against counters, and how far they may be apart.
WINDOWS_HELD = 6
GAUGE_TOLERANCE = 0.25
GAUGE_MIN = 8.0  # batch and gauge are compared where both are larger
COUNTER_TOLERANCE = 0.10
COUNTER_MIN = 20
IDLE_KV_MIN = 0.02
METRICS_TYPES = frozenset({"text/plain", "application/openmetrics-text", ""})

#: How remarks of the reader begin or end -> what they are. The first that fits.
_REMARKS: tuple[tuple[re.Pattern[str], Kind], ...] = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"cut short$", Kind.CUT_SHORT),
        (r"given twice", Kind.DUPLICATE_SERIES),
        (
            r"^(series cap|cap of|over \d+ bad lines|page of )|were kept$|over the line cap",
            Kind.SERIES_DROPPED,
        ),
        (r": not a count$| is (nan|-?inf)$", Kind.IMPOSSIBLE_VALUE),
        (r" of engine .+ has ", Kind.HISTOGRAM_BROKEN),
    )
)
_FLAGS = {
    "kv_used_ratio_clamped": (Kind.CLAMPED, "kv_used_ratio"),
    "gap": (Kind.GAP, ""),
}
_FLAG_PREFIXES = {
    "histogram_edges_changed:": Kind.EDGES_CHANGED,
    "histogram_bucket_fell:": Kind.BUCKET_FELL,
}
_APPROXIMATE = {
    "itl_per_step": "ITL is per step: speculative decoding gives several tokens a step",
    "prefix_cache_unit_unknown": "prefix cache counts may be blocks, not tokens (vLLM 0.8)",
    "prefix_hits_include_preempted": "prefix hits include recomputed requests (vLLM to 0.11)",
    "aborts_not_attributed": "aborts are counted for all engines of the page together",
    "arrivals_lower_bound": "arrivals are a lower bound: client aborts are not counted",
    "arrivals_clamped": "requests left that were never seen to come: arrivals of a window read 0",
}


def remark_findings(remarks: Sequence[str]) -> list[Finding]:
    """Return one finding a kind of what the reader left out, with the first remark as detail."""
    found: dict[Kind, list[str]] = {}
    for remark in remarks:
        if not remark.startswith("and "):  # "and 412 more": of kinds that are named
            found.setdefault(_remark_kind(remark), []).append(remark)
    more = next((f"; {remark}" for remark in remarks if remark.startswith("and ")), "")
    return [
        Finding(
            kind, detail=_cut("; ".join(said[:3]) + (f" and {len(said) - 3} more" * (len(said) > 3)) + more)
        )
        for kind, said in found.items()
    ]


def _remark_kind(remark: str) -> Kind:
    return next((kind for pattern, kind in _REMARKS if pattern.search(remark)), Kind.LINES_DROPPED)


def _cut(text: str) -> str:
    return text if len(text) <= DETAIL_CHARS else f"{text[: DETAIL_CHARS - 1]}\u2026"


def page_findings(page: PageReading, content_type: str | None) -> list[Finding]:
    """Return what one engine's page lacks, names otherwise, or says twice."""
    found = remark_findings(page.dropped)
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind not in METRICS_TYPES:
        found.append(Finding(Kind.CONTENT_TYPE, detail=_cut(f"served as {kind[:80]!r}")))
    found += [
        Finding(Kind.HISTOGRAM_REPAIRED, engine.engine, name, "counts fell from one bucket to the next")
        for engine in page.engines
        for name, histogram in engine.histograms.items()
        if histogram.is_repaired
    ]
    names = page.names
    if names is None:
        return found
    found += [
        Finding(Kind.METRIC_MISSING, metric=q, detail=f"{page.dialect} exports it; this page has it not")
        for q in names.missing
    ]
    found += [Finding(Kind.RENAMED, metric=q, detail=f"read as {n}") for q, n in names.renamed.items()]
    for quantity, name in names.deprecated.items():
        several = Kind.SEVERAL_KV_GAUGES if quantity == "kv_used_ratio" else Kind.DEPRECATED
        found.append(
            Finding(several, metric=quantity, detail=f"{names.read_as[quantity]} counts, not {name}")
        )
    if names.not_exported:
        listed = ", ".join(names.not_exported)
        found.append(Finding(Kind.NOT_EXPORTED, detail=f"{page.dialect} has no metric for: {listed}"))
    return found


def flag_findings(engine: str, flags: Iterable[str]) -> list[Finding]:
    """Return what the remarks on one engine's window mean. Standstills and restarts are told elsewhere."""
    found: list[Finding] = []
    for flag in flags:
        prefix, _, rest = flag.partition(":")
        if flag in _FLAGS:
            kind, metric = _FLAGS[flag]
            found.append(Finding(kind, engine, metric))
        elif f"{prefix}:" in _FLAG_PREFIXES:
            found.append(Finding(_FLAG_PREFIXES[f"{prefix}:"], engine, rest))
        elif flag in _APPROXIMATE:
            found.append(Finding(Kind.APPROXIMATE, engine, flag, _APPROXIMATE[flag]))
    return found


@dataclass(slots=True)
class _Held:
    """The last windows of one engine: what gauges and counters said of the same time."""

    batch: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOWS_HELD))
    counted: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=WINDOWS_HELD))
    idle_kv: int = 0  # windows in a row with KV in use and nothing running or waiting
    empty_kv: int = 0  # windows in a row with requests running and KV at 0


@dataclass(frozen=True, slots=True)
class Signs:
    """What a page says in the light of those before it."""

    lives: tuple[Life, ...]  # of the page's engines, in their order
    is_other_process: bool  # written by another process than the page before: no increments


@dataclass(slots=True)
class SourceWatch:
    """The last pages of one node, as far as judging the next one takes."""

    pulses: dict[str, Pulses] = field(default_factory=dict[str, Pulses])
    writers: deque[Writer] = field(default_factory=lambda: deque(maxlen=8))
    held: dict[str, _Held] = field(default_factory=dict[str, _Held])
    read_at_s: float | None = None  # Unix seconds

    def take(self, names: Sequence[str], page: PageReading, at_s: float, unix_s: float) -> Signs:
        """Take the page dated `at_s` (monotonic) and `unix_s`; `names` are its engines' names."""
        gone = self.pulses.keys() - set(names)
        for name in gone:
            del self.pulses[name]
            self.held.pop(name, None)
        for name, engine in zip(names, page.engines, strict=True):
            self.pulses.setdefault(name, Pulses()).add(engine, at_s)
        wrote = writer(page)
        other = bool(self.writers) and is_other_process(self.writers[-1], wrote, read_at_s=self.read_at_s)
        self.writers.append(wrote)
        self.read_at_s = unix_s
        lives = tuple(self.pulses[name].life() for name in names)
        return Signs(lives, other or two_writers(self.writers))

    def findings(
        self, names: Sequence[str], page: PageReading, windows: Sequence[EngineWindow], signs: Signs
    ) -> list[Finding]:
        """Return everything about the page just taken that takes more than one page to see."""
        found: list[Finding] = []
        if signs.is_other_process:
            found.append(Finding(Kind.TWO_WRITERS, detail=self._writers_said()))
        for name, engine, window, life in zip(names, page.engines, windows, signs.lives, strict=True):
            found += flag_findings(name, window.flags)
            if window.restarted:
                found.append(self._restart(name, engine))
            found += self._standing(name, engine, life)
            found += self._contradictions(name, engine, window, page.dialect)
        return found

    def _writers_said(self) -> str:
        starts = sorted({w.start_time_s for w in self.writers if w.start_time_s is not None})
        if len(starts) > 1:
            return f"{len(starts)} processes, started at {', '.join(f'{s:.0f}' for s in starts[:4])} (Unix)"
        totals = [str(w.finished) for w in self.writers][-4:]
        return f"finished requests read {', '.join(totals)} on successive pages"

    def _restart(self, name: str, engine: EngineReading) -> Finding:
        kept = self.pulses[name].kept
        before = kept[-2].finished if len(kept) > 1 else None
        now = kept[-1].finished
        if before is not None and before > 0 and now >= before:
            return Finding(Kind.RESET_HIDDEN, name, detail=f"finished requests went from {before} to {now}")
        return Finding(Kind.RESTART, name)

    def _standing(self, name: str, engine: EngineReading, life: Life) -> list[Finding]:
        pulses = self.pulses[name]
        still = f"no counter has moved for {pulses.unchanged_s:.0f} s"
        if life is Life.FROZEN:
            return [Finding(Kind.FROZEN_COUNTERS, name, detail=f"{engine.running} run, {still}")]
        if life is Life.STUCK:
            return [Finding(Kind.STALLED, name, detail=f"{engine.waiting} wait, none run, {still}")]
        if pulses.gauges_stand_still():
            since = pulses.kept[-1].at_s - pulses.gauges_since_s
            said = f"running {engine.running}, KV {engine.kv_used_ratio} for {since:.0f} s of work"
            return [Finding(Kind.FROZEN_GAUGES, name, detail=said)]
        return []

    def _contradictions(
        self, name: str, engine: EngineReading, window: EngineWindow, dialect: str
    ) -> list[Finding]:
        """Hold gauges against counters over the last minute. Source: the two ways to count one batch."""
        held = self.held.setdefault(name, _Held())
        if window.restarted or window.length_s <= 0:
            self.held[name] = _Held()
            return []
        found = [*self._batch(name, held, window)]
        if dialect.startswith("vllm"):
            found += _kv_contradiction(name, held, engine)
            found += _counters_disagree(name, held, window)
        return found

    def _batch(self, name: str, held: _Held, window: EngineWindow) -> Iterable[Finding]:
        itl = window.histograms.get("itl_s")
        is_exact = "itl_per_step" not in window.flags and itl is not None and itl.sum is not None
        if not is_exact or window.running is None or itl is None or itl.sum is None:
            return
        held.batch.append((itl.sum / window.length_s, float(window.running)))
        if len(held.batch) < WINDOWS_HELD:
            return
        batch = sum(b for b, _ in held.batch) / WINDOWS_HELD
        gauge = sum(g for _, g in held.batch) / WINDOWS_HELD
        if min(batch, gauge) > GAUGE_MIN and abs(batch - gauge) > GAUGE_TOLERANCE * max(batch, gauge):
            said = f"{batch:.0f} sequences decode by the counters, the gauge says {gauge:.0f} run"
            yield Finding(Kind.INCONSISTENT_GAUGES, name, "running", said)


def _kv_contradiction(name: str, held: _Held, engine: EngineReading) -> Iterable[Finding]:
    kv = engine.kv_used_ratio
    if kv is None or engine.running is None or engine.waiting is None:
        return
    held.idle_kv = held.idle_kv + 1 if kv > IDLE_KV_MIN and not engine.running + engine.waiting else 0
    held.empty_kv = held.empty_kv + 1 if kv == 0 and engine.running else 0
    if held.idle_kv >= WINDOWS_HELD:
        said = f"{percent(kv)} of the KV cache is in use and no request is inside"
        yield Finding(Kind.INCONSISTENT_GAUGES, name, "kv_used_ratio", said)
    elif held.empty_kv >= WINDOWS_HELD:
        said = f"{engine.running} requests run and the KV cache reads empty"
        yield Finding(Kind.INCONSISTENT_GAUGES, name, "kv_used_ratio", said)


def _counters_disagree(name: str, held: _Held, window: EngineWindow) -> Iterable[Finding]:
    e2e = window.histograms.get("e2e_s")
    if e2e is None or window.completed is None:
        return
    held.counted.append((window.completed + (window.errors or 0), e2e.count))
    finished, observed = (sum(column) for column in zip(*held.counted, strict=True))
    larger = max(finished, observed)
    if larger >= COUNTER_MIN and abs(finished - observed) > COUNTER_TOLERANCE * larger:
        said = f"{finished} requests finished and {observed} latencies were observed in the last windows"
        yield Finding(Kind.COUNTERS_DISAGREE, name, "e2e_s", said)


def bounded(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return at most `FINDINGS_MAX` findings, each once; what was left out is counted in one more."""
    unique = list({(f.kind, f.engine, f.metric): f for f in findings}.values())
    if len(unique) <= FINDINGS_MAX:
        return tuple(unique)
    worst_first = [*Severity]
    unique.sort(key=lambda f: worst_first.index(f.severity))
    left = len(unique) - FINDINGS_MAX
    return (*unique[:FINDINGS_MAX], Finding(Kind.TOO_MANY, detail=f"{left} more in one round"))
