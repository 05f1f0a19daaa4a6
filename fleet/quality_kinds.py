"""What can be wrong with a source of metrics: the kinds, how bad each is, what suffers, what to do.

Data, no code. A finding says which source, engine and metric; the table here says what it means. Effects
name numbers as the pages call them. Prevents: a remark nobody can act on, and an unknown number whose
reason has to be guessed.
Source: vLLM issues and pull requests named beside the kinds; Prometheus exposition formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad: numbers become unknown, numbers become worse, or it is only worth knowing."""

    FAULT = "fault"
    WARNING = "warning"
    NOTE = "note"


class Kind(StrEnum):
    """What is wrong. The value is stored and shown in addresses: never rename one."""

    # no page, or not the page that was meant; `metric` is the reason
    NO_PAGE = "no_page"
    PART_MISSING = "part_missing"
    # the page itself
    METRIC_MISSING = "metric_missing"
    NOT_EXPORTED = "not_exported"
    RENAMED = "renamed"
    DEPRECATED = "deprecated"
    SEVERAL_KV_GAUGES = "several_kv_gauges"
    CONTENT_TYPE = "content_type"
    CUT_SHORT = "cut_short"
    SLOW_PAGE = "slow_page"
    CLOCK_SKEW = "clock_skew"
    SERIES_DROPPED = "series_dropped"
    LINES_DROPPED = "lines_dropped"
    DUPLICATE_SERIES = "duplicate_series"
    IMPOSSIBLE_VALUE = "impossible_value"
    CLAMPED = "clamped"
    HISTOGRAM_BROKEN = "histogram_broken"
    HISTOGRAM_REPAIRED = "histogram_repaired"
    APPROXIMATE = "approximate"
    # two pages or more
    GAP = "gap"
    RESTART = "restart"
    RESET_HIDDEN = "reset_hidden"
    EDGES_CHANGED = "edges_changed"
    BUCKET_FELL = "bucket_fell"
    FROZEN_COUNTERS = "frozen_counters"
    STALLED = "stalled"
    FROZEN_GAUGES = "frozen_gauges"
    TWO_WRITERS = "two_writers"
    INCONSISTENT_GAUGES = "inconsistent_gauges"
    COUNTERS_DISAGREE = "counters_disagree"
    # verdicts that cannot be given although the pages are well
    CAPACITY_UNKNOWN = "capacity_unknown"
    ARRIVALS_UNKNOWN = "arrivals_unknown"
    # gateways together, and ourselves
    GATEWAY_BYPASSED = "gateway_bypassed"
    ROUND_LATE = "round_late"
    ROUNDS_MISSED = "rounds_missed"
    ROUNDS_DROPPED = "rounds_dropped"
    TOO_MANY = "too_many"


@dataclass(frozen=True, slots=True)
class Meaning:
    """One kind in words. `affects` holds unless the finding's metric says it more closely."""

    title: str
    severity: Severity
    affects: tuple[str, ...]
    do: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with one source now. Equal `engine`, `metric` and `kind` are the same finding."""

    kind: Kind
    engine: str = ""  # "" for the whole page
    metric: str = ""  # our short name of the quantity, or a reason; "" where none is meant
    detail: str = ""

    def affects(self, *, of_gateway: bool = False) -> tuple[str, ...]:
        """Return the numbers that suffer, as the pages call them."""
        meaning = MEANINGS[self.kind]
        if of_gateway and meaning.affects[: len(EVERYTHING)] == EVERYTHING:
            return GATEWAY_EVERYTHING
        if self.kind in _BY_METRIC:
            return METRIC_EFFECTS.get(self.metric, meaning.affects)
        return meaning.affects

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return MEANINGS[self.kind].severity


EVERYTHING = ("rho", "capacity", "arrivals", "throughput", "KV use", "latency", "SLO attainment")
#: What comes from a gateway's page.
GATEWAY_EVERYTHING = ("traffic by tenant", "refusals", "gateway queue", "demand of fleet and tiers")

#: Our short name of a quantity -> the numbers that come from it.
METRIC_EFFECTS: dict[str, tuple[str, ...]] = {
    "running": ("arrivals", "rho", "saturation", "frozen-node alert"),
    "waiting": ("arrivals", "rho", "saturation", "time to drain"),
    "kv_used_ratio": ("KV use", "KV rho", "KV forecast", "admission by KV"),
    "kv_capacity_tokens": ("KV tokens", "KV rho"),
    "finished": ("throughput", "arrivals", "rho"),
    "prompt_tokens": ("prompt tokens", "token rho", "cost by tokens"),
    "generation_tokens": ("output tokens", "batch size", "capacity", "rho"),
    "preemptions": ("preemptions", "capacity windows"),
    "e2e_s": ("latency end to end", "Little's law"),
    "ttft_s": ("TTFT", "SLO attainment"),
    "itl_s": ("inter-token latency", "capacity", "rho"),
    "queue_wait_s": ("queue wait at the engine", "Little's law"),
    "prefill_s": ("prefill time", "Little's law"),
    "decode_s": ("decode time", "Little's law"),
}
_BY_METRIC = frozenset(
    {
        Kind.METRIC_MISSING,
        Kind.RENAMED,
        Kind.DEPRECATED,
        Kind.IMPOSSIBLE_VALUE,
        Kind.HISTOGRAM_BROKEN,
        Kind.HISTOGRAM_REPAIRED,
        Kind.EDGES_CHANGED,
        Kind.BUCKET_FELL,
        Kind.CLAMPED,
    }
)

_FAULT, _WARNING, _NOTE = Severity.FAULT, Severity.WARNING, Severity.NOTE

MEANINGS: dict[Kind, Meaning] = {
    Kind.NO_PAGE: Meaning(
        "No metrics page",
        _FAULT,
        (*EVERYTHING, "silent-node alert"),
        "Ask the address by hand: `curl ADDRESS/metrics`; the reason says what went wrong",
    ),
    Kind.PART_MISSING: Meaning(
        "One of the node's pages is missing",
        _WARNING,
        ("the engines or GPUs on that page", "sums of the node"),
        "The node's other pages are read; ask this one by hand, or take it off the node",
    ),
    Kind.METRIC_MISSING: Meaning(
        "Metric missing",
        _FAULT,
        EVERYTHING,
        "This engine should export it: look whether its statistics are on and whether it is hidden",
    ),
    Kind.NOT_EXPORTED: Meaning(
        "Not exported by this engine",
        _NOTE,
        ("the quantities named",),
        "Nothing to mend: this engine has no such metric; what needs it stays unknown",
    ),
    Kind.RENAMED: Meaning(
        "Read under an old name",
        _NOTE,
        (),
        "Nothing now; the name goes away with an upgrade of the engine, and is then read under the new one",
    ),
    Kind.DEPRECATED: Meaning(
        "Old name shown as well",
        _NOTE,
        (),
        "Nothing: the newer name counts; turn the engine's hidden metrics off to make the page smaller",
    ),
    Kind.SEVERAL_KV_GAUGES: Meaning(
        "Several KV gauges",
        _WARNING,
        ("KV use", "KV rho"),
        "The largest is taken; find out which of them the scheduler goes by",
    ),
    Kind.CONTENT_TYPE: Meaning(
        "Wrong content type",
        _NOTE,
        (),
        "The page reads as metrics though its header says otherwise: a proxy may be rewriting it",
    ),
    Kind.CUT_SHORT: Meaning(
        "Page cut short",
        _WARNING,
        ("whatever stood on the missing lines",),
        "A proxy or a size limit cuts the answer; ask the engine directly",
    ),
    Kind.SLOW_PAGE: Meaning(
        "Slow to answer",
        _WARNING,
        ("age of every number", "samples lost when it passes the deadline"),
        "What answers is busy: give it more of its machine, add API servers, or set a longer deadline",
    ),
    Kind.CLOCK_SKEW: Meaning(
        "Clock differs from ours",
        _WARNING,
        ("matching our times with the node's logs",),
        "Set the node's clock by NTP; our own sums use our clock only",
    ),
    Kind.SERIES_DROPPED: Meaning(
        "Series over the limit",
        _FAULT,
        EVERYTHING,
        "The page has more series than are read: find the label that grows without end",
    ),
    Kind.LINES_DROPPED: Meaning(
        "Lines left out",
        _WARNING,
        ("whatever stood on those lines",),
        "See the detail: something writes lines into the page that are no metrics",
    ),
    Kind.DUPLICATE_SERIES: Meaning(
        "Series given twice",
        _WARNING,
        ("the metric named",),
        "The first one counts; two exporters may be writing into one page",
    ),
    Kind.IMPOSSIBLE_VALUE: Meaning(
        "Impossible value",
        _WARNING,
        EVERYTHING,
        "The value was left out (negative, not finite, or no count): report it to the engine's makers",
    ),
    Kind.CLAMPED: Meaning(
        "Outside its range",
        _WARNING,
        ("the metric named",),
        "Shown at the end of its range: do not trust it (vllm-ascend issue 10048 saw -0.39)",
    ),
    Kind.HISTOGRAM_BROKEN: Meaning(
        "Histogram unreadable",
        _FAULT,
        ("latency",),
        "It was left out: see the detail for what is wrong with its buckets",
    ),
    Kind.HISTOGRAM_REPAIRED: Meaning(
        "Histogram repaired",
        _WARNING,
        ("latency",),
        "Bucket counts that fall were lifted to the one before: quantiles are approximate",
    ),
    Kind.APPROXIMATE: Meaning(
        "Means something else here",
        _NOTE,
        ("the metric named",),
        "A known property of this engine's version; see docs/metrics.md for the remark",
    ),
    Kind.GAP: Meaning(
        "Gap between pages",
        _WARNING,
        ("arrivals", "throughput", "rho"),
        "More than three rounds were missed: what happened in between cannot be placed in time",
    ),
    Kind.RESTART: Meaning(
        "Restarted",
        _NOTE,
        ("requests counted between the last page and the end",),
        "Nothing if it was meant; look for a crash otherwise",
    ),
    Kind.RESET_HIDDEN: Meaning(
        "Reset hidden by growth",
        _NOTE,
        ("requests counted between the last page and the end",),
        "Counters began again and had passed their old values by the next page: told by the start time",
    ),
    Kind.EDGES_CHANGED: Meaning(
        "Bucket bounds changed",
        _WARNING,
        ("latency",),
        "The engine was started with other buckets: quantiles over the change are not added up",
    ),
    Kind.BUCKET_FELL: Meaning(
        "Bucket count fell",
        _WARNING,
        ("latency",),
        "The increments were left out; if it goes on, two processes write into this page",
    ),
    Kind.FROZEN_COUNTERS: Meaning(
        "Nothing moves",
        _FAULT,
        (*EVERYTHING, "frozen-node alert"),
        "Requests run and no counter moves: the worker hangs though /health says 200; restart it",
    ),
    Kind.STALLED: Meaning(
        "Requests wait, none run",
        _FAULT,
        ("rho", "capacity", "saturation", "frozen-node alert"),
        "The engine is stuck, not busy (vllm-metal issue 479): restart it",
    ),
    Kind.FROZEN_GAUGES: Meaning(
        "Gauges stand still",
        _WARNING,
        ("running", "waiting", "KV use", "saturation"),
        "Counters move and gauges do not: go by the counters, and look at the engine's log thread",
    ),
    Kind.TWO_WRITERS: Meaning(
        "Two processes answer in turn",
        _FAULT,
        EVERYTHING,
        "Give each process its own address, or start vLLM with a shared registry (vLLM PR 18053)",
    ),
    Kind.INCONSISTENT_GAUGES: Meaning(
        "Gauges contradict counters",
        _WARNING,
        ("running", "KV use", "saturation", "capacity windows"),
        "Trust the counters; see the detail for both numbers",
    ),
    Kind.COUNTERS_DISAGREE: Meaning(
        "Counters contradict each other",
        _WARNING,
        ("throughput", "latency", "SLO attainment"),
        "Finished requests and latency observations differ: several API servers may count apart",
    ),
    Kind.CAPACITY_UNKNOWN: Meaning(
        "Capacity not known yet",
        _NOTE,
        ("rho", "headroom", "time to saturation"),
        "Wait for some minutes of load, or give the pool a configured rate: `rhodeck pools`",
    ),
    Kind.ARRIVALS_UNKNOWN: Meaning(
        "Arrivals not counted",
        _WARNING,
        ("arrivals", "rho", "saturation"),
        "Less than half of the last minute was seen: see the other findings of this source",
    ),
    Kind.GATEWAY_BYPASSED: Meaning(
        "Traffic past the gateways",
        _WARNING,
        ("arrivals refused at the door", "rho of pool and fleet"),
        "Engines count more requests than the gateways sent: close the way around them",
    ),
    Kind.ROUND_LATE: Meaning(
        "Round started late",
        _WARNING,
        ("age of every number",),
        "The controller's machine is overloaded, or a step blocks it: see rhodeck_control_loop_lag_seconds",
    ),
    Kind.ROUNDS_MISSED: Meaning(
        "Rounds missed",
        _WARNING,
        ("samples of those rounds", "alert timers"),
        "No round ran in between: the controller was stopped, asleep or overloaded",
    ),
    Kind.ROUNDS_DROPPED: Meaning(
        "Rounds lost before they were stored",
        _FAULT,
        ("history of those rounds",),
        "The database was away or refused them; the log says which",
    ),
    Kind.TOO_MANY: Meaning(
        "More findings than are kept",
        _WARNING,
        (),
        "This source changes its labels all the time: the rest of its findings are counted only",
    ),
}
