"""Writes rounds to Postgres: one short transaction and one COPY a table and round.

Increments against stored bucket edges, never rates. Owns the ids of edge sets, and what a hostile page
may put into a row (lengths, sizes, no NUL). Prevents: half a round, a round written twice, a node that
fills the database with invented bucket edges, and one bad value that costs everybody the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from math import isfinite
from typing import Any, cast

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb
from sqlalchemy import Engine, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control import rollup_due
from control.database import session_scope
from control.gateway_scrape import FlowWindow
from control.scrape import EngineSample, GatewayResult, NodeResult, Round
from control.tables import HistogramEdgesRow, RoundRow
from fleet.errors import FleetError, Unavailable
from fleet.readings import Histogram

#: Sets of bucket edges ever stored. Every engine version has a few; thousands are an attack.
MAX_EDGE_SETS = 2_000
MAX_EDGES = 200
MAX_NAME_CHARACTERS = 200
MAX_DETAIL_CHARACTERS = 1_000
MAX_FLAGS = 20
_INT4_MAX = 2**31 - 1
_INT8_MAX = 2**63 - 1

_SAMPLE_TYPES: dict[str, str] = {
    "at": "timestamptz",
    "node": "text",
    "engine": "text",
    "model": "text",
    "counted_in": "text",
    "covered_s": "float8",
    "restarted": "bool",
    "fetch_s": "float8",
    **dict.fromkeys(
        (
            "arrivals",
            "completed",
            "errors",
            "aborted",
            "prompt_tokens",
            "prompt_tokens_computed",
            "generation_tokens",
            "preemptions",
            "prefix_cache_hits",
            "prefix_cache_queries",
        ),
        "int8",
    ),
    **dict.fromkeys(("running", "waiting", "waiting_capacity"), "int4"),
    "kv_used_ratio": "float8",
    "kv_capacity_tokens": "int8",
    "inference_sum_s": "float8",
    "inference_count": "int8",
    "prefill_sum_s": "float8",
    "prefill_count": "int8",
    "decode_sum_s": "float8",
    "decode_count": "int8",
    "flags": "text[]",
}
_HISTOGRAM_TYPES = {"edges": "int2", "counts": "int8[]", "sum_s": "float8"}
#: Short name of a histogram -> prefix of its columns.
_SAMPLE_HISTOGRAMS = {"ttft_s": "ttft", "itl_s": "itl", "queue_wait_s": "queue_wait", "e2e_s": "e2e"}
#: Lengths in tokens: of prompts and answers of finished requests, and of engine steps.
_LENGTH_HISTOGRAMS = {
    "prompt_tokens": "prompt_len",
    "generation_tokens": "output_len",
    "iteration_tokens": "step",
}
_LENGTH_TYPES = {"edges": "int2", "counts": "int8[]", "sum_tokens": "float8"}
#: Histograms of which sum and count are kept: mean times by stage.
_STAGES = ("inference", "prefill", "decode")
_GATEWAY_HISTOGRAMS = {"queue_wait_s": "queue_wait", "ttft_s": "ttft"}
_GATEWAY_TYPES: dict[str, str] = {
    "at": "timestamptz",
    "gateway": "text",
    "tenant": "text",
    "tier": "text",
    "covered_s": "float8",
    "offered": "int8",
    "repeated": "int8",
    "dispatched": "int8",
    "outcomes": "jsonb",
    "would_refuse": "jsonb",
    "prompt_tokens": "int8",
    "output_tokens": "int8",
    "queued_requests": "int4",
    "in_flight_requests": "int4",
    "in_flight_tokens": "int8",
}
_FAILURE_TYPES = {
    "at": "timestamptz",
    "node": "text",
    "reason": "text",
    "detail": "text",
    "fetch_s": "float8",
}


def _with_histograms(
    types: dict[str, str], prefixes: Iterable[str], columns: dict[str, str]
) -> dict[str, str]:
    return types | {f"{p}_{name}": kind for p in prefixes for name, kind in columns.items()}


_SAMPLE = _with_histograms(
    _with_histograms(_SAMPLE_TYPES, _SAMPLE_HISTOGRAMS.values(), _HISTOGRAM_TYPES),
    _LENGTH_HISTOGRAMS.values(),
    _LENGTH_TYPES,
)
_GATEWAY = _with_histograms(_GATEWAY_TYPES, _GATEWAY_HISTOGRAMS.values(), _HISTOGRAM_TYPES)

Edges = tuple[float, ...]


class RowRefused(FleetError):
    """Postgres does not take a value of these rows; trying again does not help."""


class EdgeIds:
    """Ids of bucket edge sets, each stored once. Forgets nothing until told the database is another."""

    def __init__(self) -> None:
        self._ids: dict[Edges, int] = {}

    def get(self, edges: Edges) -> int | None:
        """Return the id, or None for a set that was not stored."""
        return self._ids.get(edges)

    def forget(self) -> None:
        """Ask the database again: it was away and may have been replaced or restored."""
        self._ids.clear()

    def learn(self, engine: Engine, wanted: Iterable[Edges]) -> None:
        """Store unknown sets in a transaction of their own, so that a rollback cannot leave a false id."""
        new = {e for e in wanted if e not in self._ids and 0 < len(e) <= MAX_EDGES}
        if not new:
            return
        with session_scope(engine) as session:
            h = HistogramEdgesRow
            if not self._ids:
                self._ids = {tuple(edges): id_ for id_, edges in session.execute(select(h.id, h.edges))}
            room = MAX_EDGE_SETS - len(self._ids)
            fresh = sorted(new - self._ids.keys())[: max(room, 0)]
            for edges in fresh:
                session.execute(insert(h).values(edges=list(edges)).on_conflict_do_nothing())
            if fresh:
                rows = session.execute(select(h.id, h.edges).where(h.edges.in_([list(e) for e in fresh])))
                self._ids.update({tuple(edges): id_ for id_, edges in rows})


def edges_of(round_: Round) -> set[Edges]:
    """Return every set of bucket edges in a round."""
    node = {
        w.histograms[name].edges
        for result in round_.nodes
        for w in (sample.window for sample in result.samples)
        for name in (*_SAMPLE_HISTOGRAMS, *_LENGTH_HISTOGRAMS)
        if name in w.histograms
    }
    gateway = {
        flow.histograms[name].edges
        for result in round_.gateways
        for flow in result.flows or ()
        for name in _GATEWAY_HISTOGRAMS
        if name in flow.histograms
    }
    return node | gateway


def write_round(session: Session, round_: Round, ids: EdgeIds) -> bool:
    """Write a round in the caller's transaction. False, and nothing written, if its stamp is taken."""
    stamped = session.execute(
        insert(RoundRow)
        .values(
            at=round_.at,
            period_s=round_.period_s,
            duration_s=round_.duration_s,
            lag_s=round_.lag_s,
            nodes_total=len(round_.nodes),
            nodes_sampled=round_.nodes_sampled,
        )
        .on_conflict_do_nothing()
        .returning(RoundRow.at)
    ).first()
    if stamped is None:
        return False
    _copy_samples(session, [round_], ids)
    failures = [_failure_row(round_.at, result) for result in round_.nodes if result.reason is not None]
    copy_rows(session, "scrape_failure", _FAILURE_TYPES, failures)
    flows = {
        (row["gateway"], row["tenant"], row["tier"]): row
        for result in round_.gateways
        for row in (_flow_row(round_.at, result, flow, ids) for flow in result.flows or ())
    }
    copy_rows(session, "gateway_sample", _GATEWAY, list(flows.values()))
    rollup_due.mark_rounds(session, [round_.at], round_.period_s)
    return True


def write_past(session: Session, rounds: Sequence[Round], ids: EdgeIds) -> int:
    """Write samples of past rounds in the caller's transaction and return how many rows they are.

    A stamp that was a round already keeps what the round says of itself. The caller has seen to it that
    no row is there under these stamps, nodes and engines. Their minutes are marked to be rolled up.
    """
    if not rounds:
        return 0
    stamps = [
        {
            "at": r.at,
            "period_s": r.period_s,
            "duration_s": r.duration_s,
            "lag_s": r.lag_s,
            "nodes_total": len(r.nodes),
            "nodes_sampled": r.nodes_sampled,
        }
        for r in rounds
    ]
    session.execute(insert(RoundRow).values(stamps).on_conflict_do_nothing())
    rollup_due.mark_rounds(session, [r.at for r in rounds], rounds[0].period_s)
    return _copy_samples(session, rounds, ids)


def _copy_samples(session: Session, rounds: Sequence[Round], ids: EdgeIds) -> int:
    samples = {
        (row["at"], row["node"], row["engine"]): row  # names cut to length may meet
        for round_ in rounds
        for result in round_.nodes
        for row in (_sample_row(round_.at, result, sample, ids) for sample in result.samples)
    }
    copy_rows(session, "sample", _SAMPLE, list(samples.values()))
    return len(samples)


def copy_rows(session: Session, table: str, types: dict[str, str], rows: Sequence[dict[str, Any]]) -> None:
    """COPY `rows` into `table` in the session's transaction. `types` names the columns, in order.

    Raises Unavailable when the connection breaks or the server has no time or room, RowRefused when it
    does not take a value.
    """
    if not rows:
        return
    connection = session.connection().connection.driver_connection
    if not isinstance(connection, psycopg.Connection):
        raise TypeError(f"COPY needs psycopg, not {type(connection).__name__}")
    raw = cast("psycopg.Connection[Any]", connection)
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, types))
    )
    try:
        with raw.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(list(types.values()))
            for row in rows:
                copy.write_row([row.get(column) for column in types])
    except psycopg.OperationalError as problem:
        raise Unavailable(
            f"writing to {table} failed: {str(problem).strip()}",
            hint="Check that Postgres runs and has room",
        ) from problem
    except (psycopg.DataError, psycopg.IntegrityError) as problem:
        raise RowRefused(f"{table} refuses a row: {str(problem).strip()}") from problem


def plain_text(text: str | None, limit: int = MAX_NAME_CHARACTERS) -> str | None:
    """Return `text` as Postgres can hold it: without NUL and lone surrogates, at most `limit` long."""
    if text is None:
        return None
    return text.replace("\x00", "").encode("utf-8", "replace").decode()[:limit]


def json_fit(value: object) -> object:
    """Return JSON that Postgres takes: what is not finite becomes null, text is plain."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, str):
        return plain_text(value, MAX_DETAIL_CHARACTERS)
    if isinstance(value, dict):
        return {str(k): json_fit(v) for k, v in cast("dict[object, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [json_fit(item) for item in cast("Sequence[object]", value)]
    return value


def _small(value: int | None) -> int | None:
    """A gauge that does not fit a 32-bit column is no count of requests: unknown."""
    return value if value is None or 0 <= value <= _INT4_MAX else None


def _big(value: int | None) -> int | None:
    return value if value is None or 0 <= value <= _INT8_MAX else None


def _sample_row(at: datetime, result: NodeResult, sample: EngineSample, ids: EdgeIds) -> dict[str, Any]:
    w = sample.window
    row: dict[str, Any] = {
        "at": at,
        "node": result.node,
        "engine": plain_text(sample.engine),
        "model": plain_text(w.model),
        "counted_in": plain_text(result.pool),
        "covered_s": sample.covered_s,
        "restarted": w.restarted,
        "fetch_s": result.fetch_s,
        "arrivals": _big(w.arrivals),
        "completed": _big(w.completed),
        "errors": _big(w.errors),
        "aborted": _big(w.aborted),
        "prompt_tokens": _big(w.prompt_tokens),
        "prompt_tokens_computed": _big(w.prompt_tokens_computed),
        "generation_tokens": _big(w.generation_tokens),
        "preemptions": _big(w.preemptions),
        "prefix_cache_hits": _big(w.prefix_cache_hits),
        "prefix_cache_queries": _big(w.prefix_cache_queries),
        "running": _small(w.running),
        "waiting": _small(w.waiting),
        "waiting_capacity": _small(w.waiting_capacity),
        "kv_used_ratio": w.kv_used_ratio,
        "kv_capacity_tokens": _big(w.kv_capacity_tokens),
        "flags": [plain_text(flag) for flag in w.flags[:MAX_FLAGS]],
    }
    for prefix in _STAGES:
        row |= _stage(w.histograms, prefix)
    lengths = _histogram_columns(w.histograms, _LENGTH_HISTOGRAMS, ids, sum_column="sum_tokens")
    return row | _histogram_columns(w.histograms, _SAMPLE_HISTOGRAMS, ids) | lengths


def _stage(histograms: dict[str, Histogram], prefix: str) -> dict[str, Any]:
    """Return the columns of a stage of which only mean times are kept."""
    found = histograms.get(f"{prefix}_s")
    return {} if found is None else {f"{prefix}_sum_s": found.sum, f"{prefix}_count": _big(found.count)}


def _histogram_columns(
    histograms: dict[str, Histogram], prefixes: dict[str, str], ids: EdgeIds, sum_column: str = "sum_s"
) -> dict[str, Any]:
    """Return the columns of each histogram; one whose edges or counts cannot be stored is left out."""
    columns: dict[str, Any] = {}
    for name, prefix in prefixes.items():
        histogram = histograms.get(name)
        edges_id = None if histogram is None else ids.get(histogram.edges)
        if histogram is None or edges_id is None or histogram.count > _INT8_MAX:
            continue
        columns[f"{prefix}_edges"] = edges_id
        columns[f"{prefix}_counts"] = list(histogram.counts)
        columns[f"{prefix}_{sum_column}"] = histogram.sum
    return columns


def _failure_row(at: datetime, result: NodeResult) -> dict[str, Any]:
    return {
        "at": at,
        "node": result.node,
        "reason": None if result.reason is None else result.reason.value,
        "detail": plain_text(result.detail, MAX_DETAIL_CHARACTERS),
        "fetch_s": result.fetch_s,
    }


def _flow_row(at: datetime, result: GatewayResult, flow: FlowWindow, ids: EdgeIds) -> dict[str, Any]:
    row: dict[str, Any] = {
        "at": at,
        "gateway": result.gateway,
        "tenant": plain_text(flow.tenant),
        "tier": plain_text(flow.tier),
        "covered_s": flow.covered_s,
        "offered": _big(flow.offered),
        "repeated": _big(flow.repeated),
        "dispatched": _big(flow.dispatched),
        "outcomes": Jsonb({plain_text(name): count for name, count in flow.outcomes.items()}),
        "would_refuse": None if flow.would_refuse is None else Jsonb(flow.would_refuse),
        "prompt_tokens": _big(flow.prompt_tokens),
        "output_tokens": _big(flow.output_tokens),
        "queued_requests": _small(flow.queued_requests),
        "in_flight_requests": _small(flow.in_flight_requests),
        "in_flight_tokens": _big(flow.in_flight_tokens),
    }
    return row | _histogram_columns(flow.histograms, _GATEWAY_HISTOGRAMS, ids)
