"""Which Prometheus-compatible servers are registered, and which nodes are read from them.

Queries take a Session and return plain values. Prevents: a node both scraped and read from a server.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from control.promsource import SourceSettings
from control.tables import NodeRow, NodeSourceRow, PromBackfillRow, PromSourceRow
from fleet.errors import NotFound
from fleet.promql import parsed_matchers


@dataclass(frozen=True, slots=True)
class NodeSource:
    """Where one node's samples come from."""

    node: str
    source: str
    instance: str


@dataclass(frozen=True, slots=True)
class Backfill:
    """A range of history being read in; `done_until` is where it goes on."""

    id: int
    source: str
    since: datetime
    until: datetime
    done_until: datetime
    period_s: float
    samples: int

    @property
    def done_ratio(self) -> float:
        """Part of the range that is finished, 0..1."""
        return (self.done_until - self.since) / (self.until - self.since)


def sources(session: Session) -> list[SourceSettings]:
    """Return all sources by name."""
    rows = session.scalars(select(PromSourceRow).order_by(PromSourceRow.name))
    return [_settings(row) for row in rows]


def source_named(session: Session, name: str) -> SourceSettings:
    """Return one source. Raises NotFound."""
    row = session.get(PromSourceRow, name)
    if row is None:
        raise NotFound(
            f"no source is called {name[:80]!r}", hint="List them with `rhodeck prom list`", field="name"
        )
    return _settings(row)


def node_sources(session: Session) -> dict[str, NodeSource]:
    """Return the nodes that are not scraped directly and not removed, by name."""
    rows = session.execute(
        select(NodeSourceRow.node, NodeSourceRow.source, NodeSourceRow.instance)
        .join(NodeRow, NodeRow.name == NodeSourceRow.node)
        .where(NodeRow.state != "removed")
        .order_by(NodeSourceRow.node)
    )
    return {node: NodeSource(node, source, instance) for node, source, instance in rows}


def backfills(session: Session, source: str | None = None) -> list[Backfill]:
    """Return back-fills, newest first, of one source if given."""
    b = PromBackfillRow
    query = select(b).order_by(b.id.desc())
    if source is not None:
        query = query.where(b.source == source)
    return [
        Backfill(r.id, r.source, r.since, r.until, r.done_until, r.period_s, r.samples)
        for r in session.scalars(query)
    ]


def _settings(row: PromSourceRow) -> SourceSettings:
    def path(text: str | None) -> Path | None:
        return None if text is None else Path(text)

    return SourceSettings(
        name=row.name,
        url=row.url,
        instance_label=row.instance_label,
        matchers=tuple(parsed_matchers(row.matchers)),
        token_file=path(row.token_file),
        basic_file=path(row.basic_file),
        ca_file=path(row.ca_file),
        tenant=row.tenant,
    )
