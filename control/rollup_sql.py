"""The statements of rollups, made from the columns `tables_rollup` declares. Pure text, constants only.

`lift` reads raw rows as rollup rows of one round; `merge` makes one row of many with the same key and the
same bucket edges. Sums of counts stop at the largest 64-bit number instead of failing. Prevents: a column
that is in the table but forgotten in one of the statements.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from control.tables_rollup import Family, Level, Measure, Merge

_INT8_MAX = 9_223_372_036_854_775_807
_WIDTH = {Level.MINUTE: "1 minute", Level.HOUR: "1 hour", Level.DAY: "1 day"}


def lift(family: Family, source: str, condition: str = "true", only: Container[str] | None = None) -> str:
    """Return SELECT of raw rows of `source` in the shape of rollup rows, `at` being the round's.

    `only`: the edges and measures wanted, where not all are; a short statement is planned sooner.
    """
    keys = [f"{value} AS {name}" for name, value in family.keys]
    edges = [f"{prefix}_edges" for prefix in family.histograms]
    edges = [name for name in edges if only is None or name in only]
    measures = [f"{m.lift} AS {m.name}" for m in family.measures if only is None or m.name in only]
    columns = ", ".join(["at", *keys, "at AS last_at", *edges, *measures])
    return f"SELECT {columns} FROM {source} WHERE {condition}"  # noqa: S608 # constants


def relabel(
    family: Family, source: str, keys: Mapping[str, str], joined: str = "", condition: str = "true"
) -> str:
    """Return SELECT of rollup rows under other keys, as parts of a larger whole.

    The newest value of one part is not that of the whole, so it becomes unknown.
    """
    values = [f"{keys.get(name, f'r.{name}')} AS {name}" for name in family.key_names]
    edges = [f"r.{prefix}_edges" for prefix in family.histograms]
    measures = [
        f"NULL::{_sql_type(measure)} AS {measure.name}"
        if measure.merge is Merge.NEWEST
        else f"r.{measure.name}"
        for measure in family.measures
    ]
    columns = ", ".join(["r.at", *values, "r.last_at", *edges, *measures])
    return f"SELECT {columns} FROM {source} AS r {joined} WHERE {condition}"  # noqa: S608 # constants


def plain(family: Family, source: str, condition: str = "true", only: Container[str] | None = None) -> str:
    """Return SELECT of rollup rows as they are, in the order of `lift`; `only` as there."""
    always = {*family.key_names, "last_at"}
    columns = [name for name in family.columns() if only is None or name in only or name in always]
    return f"SELECT {', '.join(['at', *columns])} FROM {source} WHERE {condition}"  # noqa: S608


def merge(
    family: Family,
    level: Level,
    source: str,
    buckets: Mapping[str, int],
    side_by_side: Container[str] = (),
) -> str:
    """Return SELECT that merges the rows of `source` (a SELECT) into rows of `level`.

    `buckets`: the largest number of buckets of each histogram in `source`. `side_by_side`: sums of which
    the largest is meant, the rows being of one time and not of one after another.
    """
    start = f"date_bin('{_WIDTH[level]}', at, 'epoch')"
    keys = list(family.key_names)
    edges = [f"{prefix}_edges" for prefix in family.histograms]
    if edges:
        order = ", ".join(edges)
        within = ", ".join([start, *keys])
        variant = f"(dense_rank() OVER (PARTITION BY {within} ORDER BY {order}) - 1)::smallint"
    else:
        variant = "0::smallint"
    measures = [
        f"max({measure.name}) AS {measure.name}"
        if measure.name in side_by_side
        else f"{_merged(measure, buckets)} AS {measure.name}"
        for measure in family.measures
    ]
    columns = ", ".join(
        [f"{start} AS at", f"{variant} AS variant", *keys, "max(last_at) AS last_at", *edges, *measures]
    )
    grouped = f"SELECT {columns} FROM ({source}) AS part GROUP BY {', '.join([start, *keys, *edges])}"  # noqa: S608
    tallies = [m.name for m in family.measures if m.merge is Merge.TALLY]
    if not tallies:
        return grouped
    names = ["at", "variant", *family.columns()]
    shown = [_tallied(name) if name in tallies else name for name in names]
    return f"SELECT {', '.join(shown)} FROM ({grouped}) AS whole"  # noqa: S608


def insert(family: Family, level: Level, merged: str, *, ctes: str = "") -> str:
    """Return INSERT of what `merged` selects; `ctes` (WITH ...) come before it."""
    names = ", ".join(["at", "variant", *family.columns()])
    return f"{ctes} INSERT INTO {family.table(level)} ({names}) {merged}"


def _merged(measure: Measure, buckets: Mapping[str, int]) -> str:
    name = measure.name
    match measure.merge:
        case Merge.ADD if _sql_type(measure) == "bigint":
            return _whole_sum(name)
        case Merge.ADD:
            return f"sum({name})"
        case Merge.ADD_IF_ALL:
            return added_if_all(name)
        case Merge.LOWEST:
            return f"min({name})"
        case Merge.HIGHEST:
            return f"max({name})"
        case Merge.NEWEST:
            return f"(array_agg({name} ORDER BY last_at DESC))[1]"
        case Merge.TALLY:
            return f"array_agg({name})"
        case Merge.BUCKETS:
            return added_buckets(name, buckets.get(name.removesuffix("_counts"), 0))


def _whole_sum(value: str) -> str:
    """`LEAST` would turn an unknown sum into the largest number: it passes over NULL."""
    return f"CASE WHEN sum({value}) > {_INT8_MAX} THEN {_INT8_MAX} ELSE sum({value}) END::bigint"


def added_if_all(name: str) -> str:
    """Return the sum of `name`, unknown as soon as one row does not know it."""
    return f"CASE WHEN count(*) = count({name}) THEN sum({name}) END"


def added_buckets(name: str, count: int) -> str:
    """Return the sum of the arrays `name`, each of at most `count` buckets, element by element.

    Rows of one set of edges have equally many buckets; what is beyond theirs is cut off again. Adding by
    subscript is many times as fast as unnesting.
    """
    sums = ", ".join(_whole_sum(f"{name}[{i}]") for i in range(1, count + 1))
    return f"(ARRAY[{sums}]::bigint[])[1:max(cardinality({name}))]"


def _tallied(name: str) -> str:
    total = f"LEAST(sum(each.value::numeric), {_INT8_MAX})::bigint AS total"
    parts = f"unnest({name}) AS one, jsonb_each_text(one) AS each"
    added = f"SELECT each.key, {total} FROM {parts} GROUP BY each.key"  # noqa: S608 # constants
    return f"(SELECT coalesce(jsonb_object_agg(key, total), '{{}}') FROM ({added}) AS added) AS {name}"  # noqa: S608


def _sql_type(measure: Measure) -> str:
    return {"BIGINT": "bigint", "DOUBLE": "float8", "TEXT": "text"}.get(str(measure.kind), "")
