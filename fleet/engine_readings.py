"""Put the engines of one page together from its families: counters, gauges, configuration, remarks.

One page can hold many engines (data parallel ranks, replicas under Ray). Counts are whole and below
2^63, ratios 0..1. Prevents: a rank's copy of a value being added, two names of one quantity being added,
and a number that cannot be a count (negative, 1e300) reaching the database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from fleet.dialect_names import VLLM, Dialect, Names, Part
from fleet.engine_histograms import read_histograms
from fleet.exposition import Families
from fleet.exposition_lines import Sample
from fleet.readings import EngineReading, Histogram

ENGINES_MAX = 512
#: Series of a backend under Triton: they carry the backend's model, whatever the ensemble is called.
_BACKEND = "nv_trt_llm_"
_COUNT_MAX = 2.0**63

#: (engine label, model name, replica): what tells the engines of one page apart.
EngineKey = tuple[str, str, str]


def whole_count(value: float) -> int | None:
    """Return `value` as a count, or None where it cannot be one (negative, or past 64 bits)."""
    return round(value) if 0 <= value < _COUNT_MAX else None


def block_tokens(config: dict[str, str] | None) -> int | None:
    """Return the tokens of one cache block, the unit in which prefixes are found again. None: not said.

    A hybrid model's real block can be hundreds of tokens (`effective_attention_block_size`), and a prefix
    shorter than one never hits.
    """
    return _first_positive(config, "effective_attention_block_size", "block_size")


def kv_capacity_tokens(config: dict[str, str] | None) -> int | None:
    """Return how many tokens the KV cache holds, None when the page does not say.

    The engine's own figure where it gives one (0.24 and later), else blocks times block size.
    """
    said = _first_positive(config, "kv_cache_size_tokens")
    if said is not None:
        return said
    blocks, size = _first_positive(config, "num_gpu_blocks"), _first_positive(config, "block_size")
    return None if blocks is None or size is None or blocks * size >= _COUNT_MAX else blocks * size


def _first_positive(config: dict[str, str] | None, *names: str) -> int | None:
    for name in names:
        text = (config or {}).get(name, "")
        if text.isascii() and text.isdigit() and 0 < len(text) < 19 and int(text) > 0:
            return int(text)
    return None


def read_engines(families: Families, dialect: Dialect) -> tuple[tuple[EngineReading, ...], tuple[str, ...]]:
    """Return the engines of a page in order of their label, and why values were left out."""
    page = _Page(families, dialect, _busiest_model(families, dialect))
    for field, names in dialect.gauges.items():
        page.put(field, names, _largest if field == "kv_used_ratio" else page.total)
    for field, names in dialect.counters.items():
        page.put(field, names, page.total)
    for field, part in dialect.parts.items():
        page.put_part(field, part)
    page.put_capacity()
    page.put_finished()
    histograms = read_histograms(
        families, dialect.histograms, page.key, dialect.repeat_labels, page.remarks
    )
    keys = sorted({*page.values, *page.finished, *histograms}, key=_in_order)
    if len(keys) > ENGINES_MAX:
        page.remarks.append(f"{len(keys)} engines on one page; {ENGINES_MAX} were kept")
        keys = keys[:ENGINES_MAX]
    engines = [page.reading(key, _in_seconds(histograms.get(key, {}), dialect)) for key in keys]
    if dialect is VLLM:
        engines = [_with_cache_config(page, key, e) for key, e in zip(keys, engines, strict=True)]
        engines = [replace(e, flags=(*e.flags, *_vllm_flags(page, e))) for e in engines]
    return tuple(_name_replicas(keys, engines)), tuple(page.remarks)


def _busiest_model(families: Families, dialect: Dialect) -> str | None:
    """Return the one model to read where a page's models are steps of the same request, else None.

    The ensemble; where there is none, the model with the most requests.
    """
    if not dialect.busiest:
        return None
    requests: dict[str, float] = {}
    for key, value in families.series.get(dialect.busiest, ()):  # one series a version of the model
        name = key.labels.get(dialect.model_label, "")
        requests[name] = requests.get(name, 0.0) + value
    return "ensemble" if requests.get("ensemble") else max(sorted(requests), key=requests.__getitem__)


def _in_seconds(histograms: dict[str, Histogram], dialect: Dialect) -> dict[str, Histogram]:
    """Bring histograms that are written in another unit into ours."""
    scaled = dict(histograms)
    for short in dialect.scale.keys() & histograms.keys():
        unit, found = dialect.scale[short], histograms[short]
        total = None if found.sum is None else found.sum * unit
        scaled[short] = Histogram(tuple(edge * unit for edge in found.edges), found.counts, total)
    return scaled


def _in_order(key: EngineKey) -> tuple[int, EngineKey]:
    engine = key[0]
    return (int(engine) if engine.isascii() and engine.isdigit() and len(engine) < 10 else -1), key


def _largest(samples: list[Sample]) -> float:
    return max(value for _, value in samples)


def _name_replicas(keys: list[EngineKey], engines: list[EngineReading]) -> list[EngineReading]:
    """Make engine names unique where several replicas under Ray call their engine the same."""
    times: dict[tuple[str, str], int] = {}
    for engine, model, _ in keys:
        times[engine, model] = times.get((engine, model), 0) + 1
    return [
        replace(reading, engine=f"{engine}@{replica}") if times[engine, model] > 1 else reading
        for (engine, model, replica), reading in zip(keys, engines, strict=True)
    ]


@dataclass(slots=True)
class _Page:
    """The engines of one page while they are being filled, family by family."""

    families: Families
    dialect: Dialect
    model: str | None  # the only one that is read
    remarks: list[str]
    values: dict[EngineKey, dict[str, float]]
    finished: dict[EngineKey, dict[str, int]]

    def __init__(self, families: Families, dialect: Dialect, model: str | None) -> None:
        self.families = families
        self.dialect = dialect
        self.model = model
        self.remarks = []
        self.values = {}
        self.finished = {}

    def key(self, sample: Sample) -> EngineKey:
        labels = sample[0].labels
        engine = ""
        for name in self.dialect.engine_labels:
            engine = labels.get(name, engine)
        model = labels.get(self.dialect.model_label, "") if self.model is None else self.model
        return engine, model, labels.get("ReplicaId", "")

    def split(self, name: str) -> dict[EngineKey, list[Sample]]:
        found: dict[EngineKey, list[Sample]] = {}
        samples = self.families.series.get(name, ())
        if self.model is not None and not name.startswith(_BACKEND):
            of_model = self.dialect.model_label
            samples = [s for s in samples if s[0].labels.get(of_model, "") == self.model]
        for sample in samples:
            found.setdefault(self.key(sample), []).append(sample)
        return found

    def total(self, samples: list[Sample]) -> float:
        """Add parts, take one of repeats (the largest): see `Dialect`."""
        if len(samples) == 1:
            return samples[0][1]
        whole = self.dialect.total_label
        if whole:
            samples = [s for s in samples if not s[0].labels.get(whole)] or samples
        repeats = self.dialect.repeat_labels
        parts: dict[tuple[tuple[str, str], ...], float] = {}
        for key, value in samples:
            part = tuple(sorted(item for item in key.labels.items() if item[0] not in repeats))
            parts[part] = max(value, parts.get(part, value))
        return sum(parts.values())

    def put(self, field: str, names: Names, pick: Callable[[list[Sample]], float]) -> None:
        """Set `field` of each engine from the newest name it has."""
        for name in reversed(names):
            for key, samples in self.split(name).items():
                self.values.setdefault(key, {})[field] = pick(samples)

    def part(self, part: Part | str) -> dict[EngineKey, float]:
        """Return a gauge by engine: of a name, or of the series of a name that carry one label."""
        if isinstance(part, str):
            return {key: self.total(samples) for key, samples in self.split(part).items()}
        name, label, value = part
        found: dict[EngineKey, float] = {}
        for key, samples in self.split(name).items():
            chosen = [s for s in samples if s[0].labels.get(label) == value]
            if chosen:
                found[key] = self.total(chosen)
        return found

    def put_part(self, field: str, part: Part) -> None:
        """Set `field` from the series of a name that carry one label."""
        for key, value in self.part(part).items():
            self.values.setdefault(key, {})[field] = value

    def put_capacity(self) -> None:
        """Set the KV capacity where all its factors are there and none is 0 (not started yet)."""
        factors = [self.part(part) for part in self.dialect.capacity]
        for key in factors[0] if factors else ():
            product = prod(factor.get(key, 0.0) for factor in factors)
            if product > 0:
                self.values.setdefault(key, {})["kv_capacity_tokens"] = product

    def put_finished(self) -> None:
        for key, samples in self.split(self.dialect.finished).items():
            reasons: dict[str, list[Sample]] = {}
            for sample in samples:
                reasons.setdefault(sample[0].labels.get("finished_reason", "finished"), []).append(sample)
            for reason, chosen in reasons.items():
                self._finish(key, reason, self.total(chosen))
        for reason, name in self.dialect.finished_alone.items():
            for key, samples in self.split(name).items():
                self._finish(key, reason, self.total(samples))

    def _finish(self, key: EngineKey, reason: str, value: float) -> None:
        count = self._whole(key, f"finished {reason}", value)
        if count is not None:
            self.finished.setdefault(key, {})[reason] = count

    def _whole(self, key: EngineKey, what: str, value: float | None) -> int | None:
        if value is None:
            return None
        count = whole_count(value)
        if count is None:
            self.remarks.append(f"{what} of engine {key[0] or '-'} is {value:g}: not a count")
        return count

    def reading(self, key: EngineKey, histograms: dict[str, Histogram]) -> EngineReading:
        values = self.values.get(key, {})
        counts = {
            field: self._whole(key, field, value)
            for field, value in values.items()
            if field != "kv_used_ratio"
        }
        kv = values.get("kv_used_ratio")
        clamped = None if kv is None else min(1.0, max(0.0, kv))
        return EngineReading(
            engine=key[0],
            model=key[1] or None,
            kv_used_ratio=clamped,
            finished=self.finished.get(key, {}),
            histograms=histograms,
            flags=() if clamped == kv else ("kv_used_ratio_clamped",),
            running=counts.get("running"),
            waiting=counts.get("waiting"),
            waiting_capacity=counts.get("waiting_capacity"),
            kv_capacity_tokens=counts.get("kv_capacity_tokens"),
            prompt_tokens=counts.get("prompt_tokens"),
            prompt_tokens_computed=counts.get("prompt_tokens_computed"),
            generation_tokens=counts.get("generation_tokens"),
            preemptions=counts.get("preemptions"),
            prefix_cache_hits=counts.get("prefix_cache_hits"),
            prefix_cache_queries=counts.get("prefix_cache_queries"),
        )


def _with_cache_config(page: _Page, key: EngineKey, engine: EngineReading) -> EngineReading:
    """Add the cache configuration, whose series has an engine label and no model name."""
    for series, _ in page.families.series.get("vllm:cache_config_info", ()):
        labels = series.labels
        if (labels.get("engine", ""), labels.get("ReplicaId", "")) == (key[0], key[2]):
            config = {k: v for k, v in labels.items() if k not in {"engine", "ReplicaId"}}
            return replace(engine, cache_config=config, kv_capacity_tokens=kv_capacity_tokens(config))
    return engine


def _vllm_flags(page: _Page, engine: EngineReading) -> tuple[str, ...]:
    """Remarks on what this age and configuration of vLLM make of its numbers."""
    series = page.families.series
    flags: list[str] = []
    drafts = series.get("vllm:spec_decode_num_drafts_total", [])
    if any(value > 0 for _, value in drafts):
        flags.append("itl_per_step")  # a step yields several tokens: ITL is not time per token
    has_queries = engine.prefix_cache_queries is not None
    if has_queries and "vllm:prefix_cache_queries_total" not in series:
        flags.append("prefix_cache_unit_unknown")  # 0.8 counts blocks, 0.9 and later tokens
    is_old = not any(name in series for name in _SINCE_0_11_1)
    if has_queries and is_old and engine.preemptions:
        flags.append("prefix_hits_include_preempted")  # recomputed requests counted as hits to 0.11
    return tuple(flags)


_SINCE_0_11_1 = (
    "vllm:engine_sleep_state",
    "vllm:external_prefix_cache_queries_total",
    "vllm:mm_cache_queries_total",
    "vllm:prompt_tokens_by_source_total",
)
