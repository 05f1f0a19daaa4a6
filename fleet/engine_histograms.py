"""Build each engine's histograms from `_bucket` and `_sum` series.

Bounds are data, not constants: an operator can set them, and they differ between versions. Counts are
per bucket, not cumulative. Prevents: a family without its `+Inf` bucket, or with counts that fall, being
taken at its word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, isnan

from fleet.dialect_names import Names
from fleet.exposition import Families, Sample
from fleet.histograms import from_cumulative
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
    sums = _sums(families.samples.get(f"{name}_sum", []), key_of, repeat_labels)
    found: dict[Key, Histogram] = {}
    for key, series in _buckets(families.samples.get(f"{name}_bucket", []), key_of, repeat_labels).items():
        cumulative: dict[float, float] = {}
        for buckets in series.values():
            for bound, value in buckets.items():
                cumulative[bound] = cumulative.get(bound, 0.0) + value
        where = f"{name} of engine {key[0] or '-'}"
        bounds = sorted(cumulative)
        if not bounds or bounds[-1] != inf:
            remarks.append(f"{where} has no +Inf bucket")
        elif len(bounds) > BUCKETS_MAX:
            remarks.append(f"{where} has {len(bounds)} buckets, over {BUCKETS_MAX}")
        elif len({tuple(sorted(b)) for b in series.values()}) > 1:
            remarks.append(f"{where} has parts with different bounds")
        elif not all(0 <= value < 2.0**63 for value in cumulative.values()):
            remarks.append(f"{where} has a bucket that is not a count")
        else:
            counts = [cumulative[bound] for bound in bounds]
            histogram = from_cumulative(bounds, counts, sums.get(key))
            if histogram is not None:
                found[key] = histogram
    return found


#: Labels besides the bound and the repeats: one histogram of several that make up a family.
Part = tuple[tuple[str, str], ...]


def _part(labels: Mapping[str, str], repeat_labels: Names) -> Part:
    return tuple(sorted((k, v) for k, v in labels.items() if k != "le" and k not in repeat_labels))


def _buckets(
    samples: list[Sample], key_of: Callable[[Sample], Key], repeat_labels: Names
) -> dict[Key, dict[Part, dict[float, float]]]:
    found: dict[Key, dict[Part, dict[float, float]]] = {}
    for sample in samples:
        labels, value = sample
        bound = _bound(labels.get("le", ""))
        if bound is None:
            continue
        buckets = found.setdefault(key_of(sample), {}).setdefault(_part(labels, repeat_labels), {})
        buckets[bound] = max(value, buckets.get(bound, value))
    return found


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if isnan(bound) or bound == -inf else bound


def _sums(samples: list[Sample], key_of: Callable[[Sample], Key], repeat_labels: Names) -> dict[Key, float]:
    parts: dict[Key, dict[Part, float]] = {}
    for sample in samples:
        own = parts.setdefault(key_of(sample), {})
        part = _part(sample[0], repeat_labels)
        own[part] = max(sample[1], own.get(part, sample[1]))
    return {key: sum(own.values()) for key, own in parts.items()}
