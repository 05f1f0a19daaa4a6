"""What a diagnosis looks at, and what it answers: plain values.

Times are Unix seconds or seconds, sizes tokens, rates per second, ratios 0..1. Every part may be missing:
`None` is "nobody said", an empty tuple "nobody was asked". Prevents: a cause named from a number that
the engine never exported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from fleet.curve_fit import StepCurve
from fleet.health_reading import TimedWindow
from fleet.readings import Histogram


class Kind(StrEnum):
    """The verdict in one word."""

    CAPACITY = "capacity"  # more work than the hardware can do
    SCHEDULING = "scheduling"  # room enough, badly used
    FAULT = "fault"  # something is broken: an engine stands still, or numbers contradict each other
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


class Cause(StrEnum):
    """Everything a diagnosis can name."""

    HEAD_OF_LINE = "head_of_line"  # long contexts hold the places that short requests wait for
    CONCURRENCY_CAP = "concurrency_cap"  # a fixed number of places, with room behind it
    FIFO_MIXED_SIZES = "fifo_mixed_sizes"
    STATIC_BATCHING = "static_batching"
    TOKEN_BUDGET = "token_budget"  # noqa: S105 # whole prompts in a step, or max-num-batched-tokens off
    KV_OVERSUBSCRIPTION = "kv_oversubscription"
    HOT_NODE = "hot_node"
    TENANT_CROWDING = "tenant_crowding"
    RETRY_STORM = "retry_storm"
    PREFILL_INTERFERENCE = "prefill_interference"
    PRIORITY_IGNORED = "priority_ignored"
    NODE_SILENT = "node_silent"
    ENGINE_FROZEN = "engine_frozen"
    METRICS_INCONSISTENT = "metrics_inconsistent"
    CAPACITY = "capacity"


@dataclass(frozen=True, slots=True)
class Goals:
    """What users were promised. The first two come from the policy's `slo`."""

    ttft_s: float = 0.5
    attainment_ratio: float = 0.95
    itl_mean_s: float = 0.075  # 13 tokens/s: slower than people read aloud
    itl_p99_s: float = 0.15


@dataclass(frozen=True, slots=True)
class Launch:
    """How a pool's engines were started. None: not registered."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    scheduling_policy: str | None = None  # "fcfs" | "priority"
    chunked_prefill: bool | None = None


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """What is known of one engine's capacity at its mix. None: not identifiable."""

    requests_per_s: float | None = None  # mu under every limit, settings included
    low_requests_per_s: float | None = None
    high_requests_per_s: float | None = None
    decode_events: float | None = None  # decode steps a request
    curve: StepCurve | None = None
    reached: float | None = None  # largest batch seen
    kv_batch: float | None = None  # sequences the KV cache holds
    grade: str | None = None


@dataclass(frozen=True, slots=True)
class EngineEvidence:
    """One engine over the interval: disjoint windows, oldest first."""

    node: str
    engine: str
    pool: str
    windows: tuple[TimedWindow, ...]
    launch: Launch = Launch()
    capacity: EngineCapacity | None = None  # None: the diagnosis fits it to `windows`


@dataclass(frozen=True, slots=True)
class FlowSlice:
    """What one tenant did in one tier in one round, all gateways together. None: not counted.

    Requests that callers' own limits refused are in none of the counts: no capacity would have served them.
    """

    ended_at_s: float
    covered_s: float
    offered: int | None = None
    dispatched: int | None = None
    refused: int | None = None
    originals: int | None = None  # of the offered, those that do not repeat a refused request
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    queued: int | None = None
    in_flight: int | None = None
    queue_wait: Histogram | None = None
    ttft: Histogram | None = None


@dataclass(frozen=True, slots=True)
class FlowEvidence:
    """One tenant in one tier, as the gateways counted it."""

    tenant: str
    tier: str
    slices: tuple[FlowSlice, ...]
    weight: float | None = None  # its policy weight inside the tier
    engine_priority: int | None = None  # sent to the engine; lower runs first


@dataclass(frozen=True, slots=True)
class QuietNode:
    """A node that should serve and gave no metrics up to the end of the interval, though it was asked."""

    node: str
    seen_s: float | None  # Unix seconds of its last sample; None: not in the last two days
    reason: str | None = None  # of the last try
    missed: int = 0  # rounds of the interval without an answer


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything one diagnosis may use."""

    since_s: float
    until_s: float
    engines: tuple[EngineEvidence, ...] = ()
    flows: tuple[FlowEvidence, ...] = ()
    goals: Goals = Goals()
    order: str | None = None  # of the gateways' queues: "fifo" | "sjf_aging"; None: no policy
    silent: tuple[str, ...] = ()  # nodes of which nothing was read in the interval
    quiet: tuple[QuietNode, ...] = ()  # nodes that are silent at its end, while rounds go on
    last_sample_s: float | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """One figure of the evidence. `value` None: not exported or not enough of it."""

    label: str
    value: float | str | None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """A line for a small chart: (Unix seconds, value); None is a gap."""

    name: str
    unit: str
    points: tuple[tuple[float, float | None], ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause with what speaks for it and what to turn."""

    cause: Cause
    confidence: float  # 0..1
    title: str
    why: str
    numbers: tuple[Number, ...]
    knob: str
    knob_link: str  # "policy:FIELD", "node:NAME", "tenant:NAME" or "flag:NAME"
    expect: str
    subjects: tuple[str, ...] = ()  # nodes, engines, tenants
    series: tuple[Series, ...] = ()
    missing: tuple[str, ...] = ()  # what was not exported and would have made it surer


@dataclass(frozen=True, slots=True)
class Curve:
    """Distribution of utilization over engines and minutes: demand / what the hardware could do."""

    p10: float
    p50: float
    p90: float
    samples: int
    series: Series | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer. `findings` are ranked, surest and most telling first."""

    kind: Kind
    sentence: str
    findings: tuple[Finding, ...] = ()
    utilization: Curve | None = None
    numbers: tuple[Number, ...] = ()
    cannot_tell: tuple[str, ...] = field(default_factory=tuple[str, ...])
