"""Turn a metrics page into readings: which engine family wrote it, which engines it has, what they say.

Counters are cumulative, times seconds, ratios 0..1. What a page does not say is None or a missing key.
Names are data in `dialect_names`; each engine is put together in `engine_readings`. Prevents: a renamed
metric reading as idle, a router's page counting as a node, a rank's copy counting as another request.
"""

from __future__ import annotations

from dataclasses import replace

from fleet.dialect_names import DIALECTS, INFERENCE_HANDLERS, VLLM, WANTED_PREFIXES, Dialect
from fleet.engine_readings import read_engines, whole_count
from fleet.exposition import DEFAULT_CAPS, Caps, Families, read_families
from fleet.gpu_readings import read_gpus
from fleet.iteration_records import read_records
from fleet.page_names import names_read
from fleet.readings import EngineReading, PageReading, PageState
from fleet.router_names import router_of


def read_page(
    body: bytes, *, source: str, content_type: str | None = None, caps: Caps = DEFAULT_CAPS
) -> PageReading:
    """Return what `body` says. Never raises: `state`, `dropped` and `hint` tell what could not be read.

    `source` is a name for people (file or URL without credentials). `content_type` is the answer's header
    where there was one; the shape is recognised without it. Source: vLLM 0.8.5 to 0.33 metrics pages.
    """
    families = read_families(body, prefixes=WANTED_PREFIXES, caps=caps)
    shape = _shape(body, families, content_type)
    page = PageReading(
        source=source, dialect="unknown", shape=shape, state=PageState.OK, dropped=families.remarks()
    )
    if families.too_large:
        return replace(
            page,
            state=PageState.TOO_LARGE,
            hint=f"The page has {len(body)} bytes; pages over {caps.body_bytes} bytes are not read",
        )
    if not families.series and not families.declared and not families.saw_sample:
        return _no_metrics(page, body, content_type)
    for dialect in DIALECTS:
        if any(name.startswith(dialect.prefix) for name in families.series):
            return _read_engines(page, families, dialect, body)
    return _no_engine(page, families, body)


def _shape(body: bytes, families: Families, content_type: str | None) -> str:
    if families.ended or "openmetrics" in (content_type or ""):
        is_renamed = b"\nvllm_" in body or body.startswith(b"vllm_")
        return "openmetrics_renamed" if is_renamed else "openmetrics"
    has_process = b"\nprocess_" in body or body.startswith(b"process_")
    return "prometheus_text" if has_process else "prometheus_text_multiprocess"


def _no_metrics(page: PageReading, body: bytes, content_type: str | None) -> PageReading:
    """Say what the body is instead. An empty page served as text is a metrics page without metrics."""
    start = body[:256].lstrip()
    kind = (content_type or "").partition(";")[0].strip().lower()
    if not start and kind in {"text/plain", "application/openmetrics-text"}:
        return replace(page, state=PageState.NO_ENGINE_SERIES, hint="The page is empty: nothing ran yet")
    if start.startswith((b"[", b"{")):
        if engines := read_records(body):
            return replace(page, dialect="tensorrt_llm", state=PageState.OK, engines=engines, hint=_RECORDS)
        hint = (
            "This is JSON, not a metrics page. TensorRT-LLM serves its metrics at /prometheus/metrics; "
            "vLLM and SGLang at /metrics"
        )
        dialect = "tensorrt_llm" if start.startswith(b"[") else "unknown"
        return replace(page, dialect=dialect, state=PageState.NOT_METRICS, hint=hint)
    if start.startswith(b"<"):
        hint = "This is a web page. Give the address of the engine's /metrics, not of a proxy's front page"
    elif start.startswith(b"\x1f\x8b"):
        hint = "This is packed with gzip: unpack it first (gunzip -c FILE | rhodeck metrics read -)"
    elif not start:
        hint = "The page is empty"
    else:
        hint = "No line of it reads as a metric. Give the address of the engine's /metrics"
    return replace(page, state=PageState.NOT_METRICS, hint=hint)


_RECORDS = (
    "Iteration records: gauges only, without completions and tokens. TensorRT-LLM counts those at "
    "/prometheus/metrics"
)


def _no_engine(page: PageReading, families: Families, body: bytes) -> PageReading:
    """A valid page of something else, or of an engine that keeps its statistics off."""
    http = families.series.get("http_requests_total", [])
    is_vllm = any(_is_inference(key.labels.get("handler", "")) for key, _ in http)
    if is_vllm:
        hint = "An engine without statistics: start vLLM without --disable-log-stats"
    elif gpus := read_gpus(families):
        return replace(
            page,
            dialect="dcgm",
            state=PageState.NO_ENGINE_SERIES,
            gpus=gpus,
            hint="This is a GPU exporter's page; an engine's page is at its own port, /metrics",
        )
    elif (router := router_of(body)) is not None:
        return replace(page, dialect="router", state=PageState.ROUTER, hint=_behind(router))
    else:
        hint = "No engine's metrics here: is statistics logging off, or is this another exporter?"
    return replace(
        page,
        dialect="vllm" if is_vllm else "unknown",
        state=PageState.NO_ENGINE_SERIES,
        hint=hint,
        process_start_time_s=_only(families, "process_start_time_seconds"),
        http_finished=_http(families, "2"),
        http_failed=_http(families, "5"),
    )


def _only(families: Families, name: str) -> float | None:
    samples = families.series.get(name)
    return samples[0][1] if samples else None


def _is_inference(handler: str) -> bool:
    return handler.endswith(INFERENCE_HANDLERS)


def _http(families: Families, status: str) -> int | None:
    """Answers of a class (2xx, 5xx) to POST on inference paths; 0 when the family is there without any."""
    samples = families.series.get("http_requests_total")
    if samples is None:
        is_declared = bool({"http_requests_total", "http_requests"} & families.declared)
        return 0 if is_declared else None
    wanted = [
        value
        for key, value in samples
        if key.labels.get("method") == "POST"
        and key.labels.get("status", "").startswith(status)
        and _is_inference(key.labels.get("handler", ""))
    ]
    return whole_count(sum(wanted))


def _behind(router: str) -> str:
    return f"This is a router's page ({router}): point at the engine's, one node for each engine behind it"


def _read_engines(page: PageReading, families: Families, dialect: Dialect, body: bytes) -> PageReading:
    engines, remarks = read_engines(families, dialect)
    state, hint = _state(families, dialect, engines, body)
    has_engine_label = any(e.engine for e in engines)
    return replace(
        page,
        dialect="router"
        if state is PageState.ROUTER
        else _dialect_name(families, dialect, has_engine_label),
        state=state,
        hint=hint,
        engines=engines if state is PageState.OK else (),
        gpus=read_gpus(families),
        process_start_time_s=_only(families, "process_start_time_seconds"),
        http_finished=_http(families, "2") if dialect is VLLM else None,
        http_failed=_http(families, "5") if dialect is VLLM else None,
        admission_rejections=_rejections(families),
        lora_adapters=_lora_adapters(families),
        dropped=(*page.dropped, *remarks),
        names=names_read(families, dialect) if state is PageState.OK else None,
    )


def _dialect_name(families: Families, dialect: Dialect, has_engine_label: bool) -> str:
    """vLLM's first engine (to 0.10) has no engine label; nor has the llm-d simulator, with newer names."""
    if dialect is not VLLM or has_engine_label:
        return dialect.name
    newer = ("vllm:kv_cache_usage_perc", "vllm:inter_token_latency_seconds_bucket")
    return "llm_d_sim" if any(name in families.series for name in newer) else "vllm_v0"


def _state(
    families: Families, dialect: Dialect, engines: tuple[EngineReading, ...], body: bytes
) -> tuple[PageState, str]:
    """Tell an engine's page from a router's and from one whose engine has said nothing yet."""
    known = families.declared | families.series.keys()
    is_engine = any(mark in known for mark in dialect.marks) or any(e.engine for e in engines)
    if not is_engine:
        return PageState.ROUTER, _behind(router_of(body) or "its own series, none of an engine's")
    if not engines:
        return PageState.NO_ENGINE_SERIES, (
            "The engine answers and has no request series: an idle vLLM before 0.11 shows them at its "
            "first request"
        )
    return PageState.OK, ""


def _rejections(families: Families) -> int | None:
    samples = families.series.get("vllm:admission_rejections_total")
    return None if samples is None else whole_count(sum(value for _, value in samples))


def _lora_adapters(families: Families) -> tuple[str, ...] | None:
    """Adapters with a request now: those of the newest series, whose value is a Unix time.

    A series stays for ever once it was there, and in multi-process mode its time is a sum, so only the
    order of the values means anything. None: the page has no such series.
    """
    samples = families.series.get("vllm:lora_requests_info")
    if not samples:
        return None
    labels = max(samples, key=lambda sample: sample[1])[0].labels
    listed = f"{labels.get('running_lora_adapters', '')},{labels.get('waiting_lora_adapters', '')}"
    return tuple(sorted({name.strip() for name in listed.split(",")} - {""}))
