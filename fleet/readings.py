"""What one metrics page said, and what happened between two pages: plain values.

Counters are cumulative since the engine's start, times are seconds, ratios are 0..1. `None` means the
page did not say; it is never 0. `dialects` makes readings, `windows` makes windows, everything else
only reads them. Prevents: a renamed metric turning into an idle node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class PageState(StrEnum):
    """What a successful answer to GET /metrics turned out to be."""

    OK = "ok"  # at least one engine with request series
    NO_ENGINE_SERIES = "no_engine_series"  # a valid page without engine series (log stats off, V0 idle)
    ROUTER = "router"  # a router's own page, not an engine's
    NOT_METRICS = "not_metrics"  # HTML, JSON, or an error body
    TOO_LARGE = "too_large"  # over the body cap; nothing was read


class Reason(StrEnum):
    """Why a node has no sample in a round. Stored with the round."""

    REFUSED = "refused"  # connection refused: starting, stopped or dead
    TIMEOUT = "timeout"
    TOO_LARGE = "too_large"
    NOT_METRICS = "not_metrics"
    NO_ENGINE_SERIES = "no_engine_series"
    ROUTER = "router"
    NO_GPU_SERIES = "no_gpu_series"  # of a GPU exporter: none of the node's GPUs is on its page
    HTTP_ERROR = "http_error"  # answered, but not 200
    UNREACHABLE = "unreachable"  # DNS, route, reset, TLS
    BLOCKED = "blocked"  # the address is not allowed to be scraped
    SOURCE_DOWN = "source_down"  # the Prometheus it is read from cannot be asked
    NOT_IN_SOURCE = "not_in_source"  # that Prometheus has no recent sample of it
    TARGET_DOWN = "target_down"  # that Prometheus cannot scrape it


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations per bucket, not cumulative.

    `edges` are the finite upper bounds, ascending; `counts` has one more entry than `edges`, the last
    being observations above the last edge. `sum` is in the unit of the edges, None when not given.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float | None
    is_repaired: bool = False  # cumulative counts fell from bucket to bucket and were lifted

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One engine's cumulative counters and gauges, as one page gave them.

    `histograms` is keyed by our short names: e2e_s, ttft_s, itl_s, tpot_s (per request), queue_wait_s,
    prefill_s, decode_s, inference_s, prompt_tokens, generation_tokens, iteration_tokens, params_n.
    """

    engine: str  # the `engine` label; "" where the dialect has none
    model: str | None
    running: int | None = None
    waiting: int | None = None
    waiting_capacity: int | None = None  # waiting for capacity only, where the engine says why
    kv_used_ratio: float | None = None  # clamped to 0..1; `flags` says when it was clamped
    kv_capacity_tokens: int | None = None  # from cache_config
    finished: dict[str, int] = field(default_factory=dict[str, int])  # by finished_reason
    prompt_tokens: int | None = None
    prompt_tokens_computed: int | None = None  # without cache hits
    generation_tokens: int | None = None
    preemptions: int | None = None
    prefix_cache_hits: int | None = None
    prefix_cache_queries: int | None = None
    cache_config: dict[str, str] | None = None
    histograms: dict[str, Histogram] = field(default_factory=dict[str, Histogram])
    flags: tuple[str, ...] = ()  # data-quality remarks: "kv_used_ratio_clamped", "itl_per_step", ...


@dataclass(frozen=True, slots=True)
class NamesRead:
    """How a page's quantities were found: our short name -> name on the wire, without suffixes."""

    read_as: dict[str, str] = field(default_factory=dict[str, str])
    renamed: dict[str, str] = field(default_factory=dict[str, str])  # read under this older name
    deprecated: dict[str, str] = field(default_factory=dict[str, str])  # an older name is there as well
    missing: tuple[str, ...] = ()  # this engine family exports it, the page has it not
    not_exported: tuple[str, ...] = ()  # this engine family has no such metric


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU (or MIG instance of one) as a page gave it. Ratios 0..1; None: not said, or DCGM's blank."""

    uuid: str  # with "/" and the instance for MIG
    index: str = ""  # as the exporter numbers them; for people only
    host: str = ""
    model: str = ""
    used_ratio: float | None = None
    tensor_ratio: float | None = None
    memory_busy_ratio: float | None = None
    power_w: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    temperature_c: float | None = None
    xid: int | None = None  # the last code; 0: none since the driver started
    row_remap_failed: bool | None = None


@dataclass(frozen=True, slots=True)
class PageReading:
    """Everything one metrics page said."""

    source: str  # file name or URL, without credentials
    dialect: str  # "vllm", "vllm_v0", "sglang", ... "unknown"
    shape: str  # "prometheus_text" | "prometheus_text_multiprocess" | "openmetrics" | "openmetrics_renamed"
    state: PageState
    engines: tuple[EngineReading, ...] = ()
    process_start_time_s: float | None = None  # Unix seconds; proof of a restart
    http_finished: int | None = None  # 2xx answers to POST on inference paths; includes client aborts
    http_failed: int | None = None  # 5xx answers to the same requests
    admission_rejections: int | None = None
    answers_owed: int = 0  # finished in the window before and not yet in `http_finished`; see fleet.windows
    lora_adapters: tuple[str, ...] | None = None  # with a request now; () none, None not said
    gpus: tuple[GpuReading, ...] = ()  # of a GPU exporter's page, or of an engine's that has them too
    dropped: tuple[str, ...] = ()  # what was left out and why: "line 41: not a number", "series cap"
    hint: str = ""  # what to do when state is not OK
    names: NamesRead | None = None  # None: no engine's page


@dataclass(frozen=True, slots=True)
class EngineWindow:
    """What one engine did between two pages of one life (or since its restart).

    `length_s` is the covered time: scraper's clock, start of request to start of request. Increments
    are reset-safe: at a restart an increment is the new value, and `restarted` is True. None: unknown.
    """

    engine: str
    model: str | None
    length_s: float
    restarted: bool
    arrivals: int | None  # completed + aborted + growth of in-system; None where it cannot be told
    completed: int | None  # finished for reasons other than abort and error
    errors: int | None
    aborted: int | None  # estimated where the engine does not count aborts
    prompt_tokens: int | None
    prompt_tokens_computed: int | None
    generation_tokens: int | None
    preemptions: int | None
    prefix_cache_hits: int | None
    prefix_cache_queries: int | None
    running: int | None  # at the end of the window
    waiting: int | None
    waiting_capacity: int | None
    kv_used_ratio: float | None
    kv_capacity_tokens: int | None
    histograms: dict[str, Histogram]  # increments; a family whose edges changed is absent
    flags: tuple[str, ...] = ()  # "restart", "histogram_edges_changed:ttft_s", "frozen", ...
