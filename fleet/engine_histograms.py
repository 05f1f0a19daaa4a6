"""Build each engine's histograms from `_bucket` and `_sum` series.

Bounds are data, not constants: an operator can set them, and they differ between versions. Counts are
per bucket, not cumulative. Prevents: a family without its `+Inf` bucket, or with counts that fall, being
taken at its word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from fleet.dialect_names import Names
from fleet.exposition import Families
from fleet.exposition_lines import Sample, SeriesKey
from fleet.histograms import from_cumulative, from_rising
from fleet.readings import Histogram

BUCKETS_MAX = 512

#: Like `engine_readings.EngineKey`.
Key = tuple[str, str, str]


def read_histograms(
    families: Families,
    table: Mapping[str, Names],
    key_of: Callable[[Sample], Key],
    repeat_labels: Names,
    remarks: list[str],
) -> dict[Key, dict[str, Histogram]]:
    """Return histograms by engine and short name. The newest name an engine has wins.

    A family that cannot be trusted is left out and named in `remarks`.
    """
    found: dict[Key, dict[str, Histogram]] = {}
    for short, names in table.items():
        for name in reversed(names):
            for key, histogram in _family(families, name, key_of, repeat_labels, remarks).items():
                found.setdefault(key, {})[short] = histogram
    return found


def _family(
    families: Families,
    name: str,
    key_of: Callable[[Sample], Key],
    repeat_labels: Names,
    remarks: list[str],
) -> dict[Key, Histogram]:
    samples = families.series.get(f"{name}_bucket")
    if not samples:
        return {}
    usual = _usual(families, name, samples, key_of)
    if usual is not None:
        return usual
    sums = {key.group: value for key, value in families.series.get(f"{name}_sum", ())}
    found: dict[Key, list[_Part]] = {}
    for group in _groups(samples):
        key = group[0][0]
        bounds = [series.bound for series, _ in group if series.bound is not None]
        counts = [count for series, count in group if series.bound is not None]
        if bounds != sorted(bounds):
            order = sorted(range(len(bounds)), key=bounds.__getitem__)
            bounds, counts = [bounds[at] for at in order], [counts[at] for at in order]
        if bounds:
            part = _Part(tuple(bounds), tuple(counts), sums.get(key.group), key.labels)
            found.setdefault(key_of(group[0]), []).append(part)
    histograms: dict[Key, Histogram] = {}
    for key, parts in found.items():
        histogram, problem = _build(parts if len(parts) == 1 else _without_repeats(parts, repeat_labels))
        if histogram is not None:
            histograms[key] = histogram
        else:
            remarks.append(f"{name} of engine {key[0] or '-'} {problem}")
    return histograms


@dataclass(frozen=True, slots=True)
class _Shape:
    """The buckets of a family of one engine that is written as it should be."""

    keys: list[SeriesKey]
    edges: tuple[float, ...]


_SHAPES_MAX = 4096
_shapes: dict[str, _Shape] = {}


def _usual(
    families: Families, name: str, samples: list[Sample], key_of: Callable[[Sample], Key]
) -> dict[Key, Histogram] | None:
    """Return a family of one engine, one sum and rising counts; None where it has to be looked at closely.

    The lines of a page seen before have their answer; keys of lines seen before are the same objects, so
    that comparing them costs next to nothing.
    """
    known = {} if families.layout is None else families.layout.edges
    edges, sums = known.get(name), families.series.get(f"{name}_sum", [])
    if edges is None:
        edges = _usual_edges([key for key, _ in samples], [key for key, _ in sums])
        if edges is None:
            return None
        known[name] = edges
    histogram = from_rising(edges, [count for _, count in samples], sums[0][1])
    return None if histogram is None else {key_of(samples[0]): histogram}


def _usual_edges(keys: list[SeriesKey], sums: list[SeriesKey]) -> tuple[float, ...] | None:
    if len(sums) != 1 or sums[0].group != keys[0].group:
        return None
    shape = _shapes.get(keys[0].canonical)
    if shape is None or shape.keys != keys:
        shape = _shape(keys)
        if shape is None:
            return None
        if len(_shapes) >= _SHAPES_MAX:
            _shapes.clear()
        _shapes[keys[0].canonical] = shape
    return shape.edges


def _shape(keys: list[SeriesKey]) -> _Shape | None:
    bounds = [key.bound for key in keys if key.bound is not None]
    is_whole = len(bounds) == len(keys) <= BUCKETS_MAX and bounds[-1] == inf
    is_rising = all(low < high for low, high in pairwise(bounds))
    if not is_whole or not is_rising or any(key.group != keys[0].group for key in keys):
        return None
    return _Shape(keys, tuple(bounds[:-1]))


@dataclass(frozen=True, slots=True)
class _Part:
    """One histogram as written: cumulative counts at ascending bounds."""

    bounds: tuple[float, ...]
    cumulative: tuple[float, ...]
    sum: float | None
    labels: Mapping[str, str]


def _groups(samples: list[Sample]) -> Iterable[list[Sample]]:
    """Buckets that share all labels but their bound."""
    if len({key.group for key, _ in samples}) == 1:  # one engine: nearly every page
        return [samples]
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample[0].group, []).append(sample)
    return groups.values()


def _without_repeats(parts: list[_Part], repeat_labels: Names) -> list[_Part]:
    """Of parts that differ only in a repeating label keep the one with the most observations."""
    kept: dict[tuple[tuple[str, str], ...], _Part] = {}
    for part in parts:
        told = tuple(sorted((k, v) for k, v in part.labels.items() if k != "le" and k not in repeat_labels))
        other = kept.get(told)
        if other is None or part.cumulative[-1] > other.cumulative[-1]:
            kept[told] = part
    return list(kept.values())


def _build(parts: list[_Part]) -> tuple[Histogram | None, str]:
    """Add the parts up, or say what is wrong with them."""
    bounds = parts[0].bounds
    if bounds[-1] != inf:
        return None, "has no +Inf bucket"
    if len(bounds) > BUCKETS_MAX:
        return None, f"has {len(bounds)} buckets, over {BUCKETS_MAX}"
    if any(part.bounds != bounds for part in parts):
        return None, "has parts with different bounds"
    if len(set(bounds)) < len(bounds):
        return None, "has a bound twice"
    counts = parts[0].cumulative
    if len(parts) > 1:
        counts = tuple(map(sum, zip(*(part.cumulative for part in parts), strict=True)))
    if min(counts) < 0 or max(counts) >= 2.0**63:
        return None, "has a bucket that is not a count"
    sums = [part.sum for part in parts]
    total = sum(s for s in sums if s is not None) if None not in sums else None
    return from_cumulative(bounds, counts, total), ""
