"""The /metrics page of a simulated node: families, labels, order and bucket edges of vLLM 0.32.

Text exposition format, one engine ("0"), single-process registry: `_created` and `process_*` included.
Latencies are in the engine's seconds, `_created` and the start time in Unix seconds. Prevents: a
simulator that is easier to read than the engine it stands for.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

import orjson
from prometheus_client.utils import floatToGoString

from fleet.engine import Engine
from fleet.engine_profile import EngineProfile
from fleet.engine_tally import FINISHED_REASONS, HistogramTally

HIGH_RESOLUTION_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0,
    30.0, 60.0,
)  # fmt: skip
LOW_RESOLUTION_EDGES = (0.1, 0.5, 1.0)

#: vLLM family -> the tally's histogram.
ENGINE_HISTOGRAMS = {
    "vllm:request_prompt_tokens": "prompt_tokens",
    "vllm:request_generation_tokens": "generation_tokens",
    "vllm:iteration_tokens_total": "iteration_tokens",
    "vllm:request_max_num_generation_tokens": "max_generation_tokens",
    "vllm:request_params_n": "params_n",
    "vllm:request_params_max_tokens": "params_max_tokens",
    "vllm:time_to_first_token_seconds": "ttft_s",
    "vllm:inter_token_latency_seconds": "itl_s",
    "vllm:request_time_per_output_token_seconds": "tpot_s",
    "vllm:e2e_request_latency_seconds": "e2e_s",
    "vllm:request_queue_time_seconds": "queue_wait_s",
    "vllm:request_inference_time_seconds": "inference_s",
    "vllm:request_prefill_time_seconds": "prefill_s",
    "vllm:request_decode_time_seconds": "decode_s",
    "vllm:request_num_preemptions": "preemptions",
    "vllm:request_prefill_kv_computed_tokens": "prefill_computed_tokens",
}
SIZE_FAMILIES = {"http_request_size_bytes": 1, "http_response_size_bytes": 2}
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_OPEN_FILES = "/proc/self/fd"  # Linux; elsewhere the sample is left out
CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family as the page announces it."""

    name: str
    type: str
    help: str


@dataclass(slots=True)
class HttpTally:
    """What the HTTP front end counts, when a response ends: requests, sizes and durations."""

    requests: dict[tuple[str, str, str], int] = field(default_factory=dict[tuple[str, str, str], int])
    sizes: dict[str, list[int]] = field(default_factory=dict[str, list[int]])  # count, bytes in, bytes out
    durations: dict[tuple[str, str], HistogramTally] = field(
        default_factory=dict[tuple[str, str], HistogramTally]
    )
    overall: HistogramTally = field(default_factory=lambda: HistogramTally(HIGH_RESOLUTION_EDGES))

    def book(
        self, handler: str, method: str, status: int, duration_s: float, bytes_in: int, bytes_out: int
    ) -> None:
        """Book one ended response. Sizes are those of the Content-Length headers, 0 where there is none."""
        key = (handler, method, f"{status // 100}xx")
        self.requests[key] = self.requests.get(key, 0) + 1
        size = self.sizes.setdefault(handler, [0, 0, 0])
        size[0] += 1
        size[1] += bytes_in
        size[2] += bytes_out
        self.durations.setdefault((handler, method), HistogramTally(LOW_RESOLUTION_EDGES)).add(duration_s)
        self.overall.add(duration_s)


@cache
def page_definition() -> tuple[tuple[Family, ...], dict[str, str]]:
    """Return the families of the page in order, and the labels of `vllm:cache_config_info`."""
    raw = orjson.loads(resources.files("simfleet").joinpath("data/vllm_0_32_families.json").read_bytes())
    return tuple(Family(*row) for row in raw["families"]), raw["cache_config"]


def cache_config(profile: EngineProfile) -> dict[str, str]:
    """Return the labels of `vllm:cache_config_info` for a profile, without the `engine` label."""
    labels = dict(page_definition()[1])
    labels.pop("engine", None)
    labels.update(
        block_size=str(profile.block_size),
        effective_attention_block_size=str(profile.block_size),
        num_gpu_blocks=str(profile.num_gpu_blocks),
        kv_cache_size_tokens=str(profile.num_gpu_blocks * profile.block_size),
        kv_cache_max_concurrency=str(profile.num_gpu_blocks * profile.block_size / profile.max_model_len),
        kv_cache_memory_bytes="None",
    )
    return labels


def _labels(labels: Mapping[str, str]) -> str:
    """Render labels alphabetically, without braces."""
    return ",".join([f'{name}="{labels[name].translate(_ESCAPES)}"' for name in sorted(labels)])


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


class MetricsPage:
    """Renders one node's page. `started_at_s` is the Unix time its process claims to have started at."""

    def __init__(self, profile: EngineProfile, model_name: str, started_at_s: float) -> None:
        self._base = {"engine": "0", "model_name": model_name}
        self._model = {"model_name": model_name}
        self._created = floatToGoString(started_at_s)
        self._started_at_s = started_at_s
        self._cache_config = _labels({**cache_config(profile), "engine": "0"})

    def render(self, engine: Engine, http: HttpTally) -> bytes:
        """Return the whole page."""
        scalars = {**self._process_rows(), **self._gauge_rows(engine), **self._counter_rows(engine)}
        scalars["http_requests_total"] = [
            (_labels({"handler": handler, "method": method, "status": status}), count)
            for (handler, method, status), count in http.requests.items()
        ]
        lines: list[str] = []
        for family in page_definition()[0]:
            lines.append(f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.type}\n")
            if family.type == "histogram":
                series = self._histogram_series(family.name, engine, http)
                for labels, tally in series:
                    lines.extend(_histogram_lines(family.name, labels, tally))
                created = [labels for labels, _ in series]
            elif family.type == "summary":
                rows = [(_labels({"handler": h}), size) for h, size in http.sizes.items()]
                which = SIZE_FAMILIES[family.name]
                for text, size in rows:
                    lines.append(f"{family.name}_count{{{text}}} {floatToGoString(size[0])}\n")
                    lines.append(f"{family.name}_sum{{{text}}} {floatToGoString(size[which])}\n")
                created = [{"handler": h} for h in http.sizes]
            else:
                rows = scalars[family.name]
                lines.extend(f"{family.name}{_braced(text)} {floatToGoString(v)}\n" for text, v in rows)
                if family.type != "counter" or not family.name.startswith(("vllm:", "http_")):
                    continue
                lines.extend(self._created_lines(family, [text for text, _ in rows]))
                continue
            lines.extend(self._created_lines(family, [_labels(labels) for labels in created]))
        return "".join(lines).encode()

    def _created_lines(self, family: Family, labels: Iterable[str]) -> list[str]:
        rows = [f"{_created_name(family)}{_braced(text)} {self._created}\n" for text in labels]
        if not rows:
            return []
        name = _created_name(family)
        return [f"# HELP {name} {family.help}\n# TYPE {name} gauge\n", *rows]

    def _histogram_series(
        self, name: str, engine: Engine, http: HttpTally
    ) -> list[tuple[dict[str, str], HistogramTally]]:
        if name == "http_request_duration_highr_seconds":
            return [({}, http.overall)]
        if name == "http_request_duration_seconds":
            return [({"handler": h, "method": m}, tally) for (h, m), tally in http.durations.items()]
        return [(self._base, engine.tally.histograms[ENGINE_HISTOGRAMS[name]])]

    def _gauge_rows(self, engine: Engine) -> dict[str, list[tuple[str, float]]]:
        def by(label: str, values: Mapping[str, float]) -> list[tuple[str, float]]:
            return [(_labels({**self._base, label: key}), value) for key, value in values.items()]

        base = _labels(self._base)
        return {
            "vllm:num_requests_running": [(base, engine.running)],
            "vllm:num_requests_waiting": [(base, engine.waiting)],
            "vllm:num_requests_waiting_by_reason": by(
                "reason", {"capacity": engine.waiting, "deferred": 0}
            ),
            "vllm:engine_sleep_state": by(
                "sleep_state", {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
            ),
            "vllm:kv_cache_usage_perc": [(base, engine.kv_used_ratio)],
            "vllm:cache_config_info": [(self._cache_config, 1)],
        }

    def _counter_rows(self, engine: Engine) -> dict[str, list[tuple[str, float]]]:
        def by(label: str, values: Mapping[str, float]) -> list[tuple[str, float]]:
            return [(_labels({**self._base, label: key}), value) for key, value in values.items()]

        base, t = _labels(self._base), engine.tally
        plain = {
            "estimated_flops_per_gpu": 0,
            "estimated_read_bytes_per_gpu": 0,
            "estimated_write_bytes_per_gpu": 0,
            "prefix_cache_queries": t.prefix_cache_queries,
            "prefix_cache_hits": t.prefix_cache_hits,
            "external_prefix_cache_queries": 0,
            "external_prefix_cache_hits": 0,
            "mm_cache_queries": 0,
            "mm_cache_hits": 0,
            "num_preemptions": t.preemptions,
            "prompt_tokens": t.prompt_tokens,
            "prompt_tokens_cached": t.prompt_tokens_cached,
            "generation_tokens": t.generation_tokens,
        }
        rows: dict[str, list[tuple[str, float]]] = {
            f"vllm:{name}_total": [(base, value)] for name, value in plain.items()
        }
        computed = t.prompt_tokens - t.prompt_tokens_cached
        rows["vllm:prompt_tokens_by_source_total"] = by(
            "source",
            {
                "local_compute": computed,
                "local_cache_hit": t.prompt_tokens_cached,
                "external_kv_transfer": 0,
            },
        )
        cached: dict[str, float] = dict.fromkeys(
            ("device", "host", "p2p", "disk", "external_unspecified"), 0
        )
        cached["device"] = t.prefix_cache_hits
        rows["vllm:prompt_tokens_cached_by_source_total"] = by("source", cached)
        rows["vllm:request_success_total"] = by(
            "finished_reason", {reason: t.finished[reason] for reason in FINISHED_REASONS}
        )
        rows["vllm:admission_rejections_total"] = [
            (_labels({**self._model, "reason": reason}), 0)
            for reason in ("max_num_queued_reqs", "max_num_queued_tokens")
        ]
        return rows

    def _process_rows(self) -> dict[str, list[tuple[str, float]]]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        stats = gc.get_stats()
        version = platform.python_version_tuple()
        info = {
            "implementation": platform.python_implementation(),
            "major": version[0],
            "minor": version[1],
            "patchlevel": version[2],
            "version": platform.python_version(),
        }

        def by_generation(key: str) -> list[tuple[str, float]]:
            return [(f'generation="{n}"', float(row[key])) for n, row in enumerate(stats)]

        rss_bytes = usage.ru_maxrss * 1024
        return {
            "python_gc_objects_collected_total": by_generation("collected"),
            "python_gc_objects_uncollectable_total": by_generation("uncollectable"),
            "python_gc_collections_total": by_generation("collections"),
            "python_info": [(_labels(info), 1)],
            "process_virtual_memory_bytes": [("", rss_bytes)],
            "process_resident_memory_bytes": [("", rss_bytes)],
            "process_start_time_seconds": [("", self._started_at_s)],
            "process_cpu_seconds_total": [("", usage.ru_utime + usage.ru_stime)],
            "process_open_fds": [("", len(os.listdir(_OPEN_FILES)))] if os.path.isdir(_OPEN_FILES) else [],
            "process_max_fds": [("", resource.getrlimit(resource.RLIMIT_NOFILE)[0])],
        }


def _created_name(family: Family) -> str:
    """`x_total` counters are created as `x_created`; histograms keep their whole name."""
    stem = family.name.removesuffix("_total") if family.type == "counter" else family.name
    return f"{stem}_created"


@cache
def _bucket_prefixes(name: str, labels: tuple[tuple[str, str], ...], edges: tuple[float, ...]) -> list[str]:
    """Everything of a histogram's bucket lines but the value; it never changes in a page's life."""
    rendered = (floatToGoString(edge) for edge in (*edges, float("inf")))
    return [f"{name}_bucket{{{_labels({**dict(labels), 'le': le})}}} " for le in rendered]


def _histogram_lines(name: str, labels: dict[str, str], tally: HistogramTally) -> list[str]:
    lines: list[str] = []
    running = 0
    prefixes = _bucket_prefixes(name, tuple(labels.items()), tally.edges)
    for prefix, count in zip(prefixes, tally.counts, strict=True):
        running += count
        lines.append(f"{prefix}{floatToGoString(running)}\n")
    text = _braced(_labels(labels))
    lines.append(f"{name}_count{text} {floatToGoString(running)}\n")
    lines.append(f"{name}_sum{text} {floatToGoString(tally.sum)}\n")
    return lines
