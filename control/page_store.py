"""Writes and reads what is known of a node's pages and GPUs. Every function joins the caller's transaction.

A page's state is written when it changes and once a minute, GPU values once a minute and when an error code
changes; times are the round's. Values of a GPU keep its place (`slot`) for ever. Prevents: eight rows a
node and round for values that move once in thirty seconds, and an error code that came and went unseen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control.rounds import FurtherPage, NodeResult, PageResult, Round
from control.tables import EndpointSeenRow, GpuRow, GpuSampleRow, NodeEndpointRow
from fleet.readings import GpuReading

WRITE_EVERY_S = 60.0
#: GPUs a node may ever have had. MIG makes seven of one; a page that invents UUIDs stops here.
SLOTS_MAX = 256
_DETAIL_CHARACTERS = 500

_Page = tuple[str, str]  # node, url


@dataclass(slots=True)
class PageStore:
    """What was written last, so that unchanged things wait for their minute. One writer owns it."""

    _pages: dict[_Page, tuple[tuple[object, ...], datetime]] = field(
        default_factory=dict[_Page, tuple[tuple[object, ...], datetime]]
    )
    _gpus: dict[str, tuple[tuple[int | None, ...], datetime]] = field(
        default_factory=dict[str, tuple[tuple[int | None, ...], datetime]]
    )

    def write(self, session: Session, round_: Round) -> None:
        """Write what is due of a round. If the transaction fails, the next minute makes up for it."""
        at = round_.at
        due = [(node, page) for node in round_.nodes for page in node.pages if self._is_due(node, page, at)]
        if due:
            _write_pages(session, at, due)
        for node in round_.nodes:
            gpus = gpus_of(node)
            if gpus and self._gpus_due(node.node, gpus, at):
                _write_gpus(session, node.node, at, gpus)

    def _is_due(self, node: NodeResult, page: PageResult, at: datetime) -> bool:
        key, now = (node.node, page.url), (page.dialect, page.reason, page.not_exported)
        known = self._pages.get(key)
        if known is not None and known[0] == now and _is_young(known[1], at):
            return False
        self._pages[key] = now, at
        return True

    def _gpus_due(self, node: str, gpus: Sequence[GpuReading], at: datetime) -> bool:
        codes = tuple(gpu.xid for gpu in gpus)
        known = self._gpus.get(node)
        if known is not None and known[0] == codes and _is_young(known[1], at):
            return False
        self._gpus[node] = codes, at
        return True


def _is_young(written: datetime, at: datetime) -> bool:
    return 0 <= (at - written).total_seconds() < WRITE_EVERY_S


def gpus_of(node: NodeResult) -> tuple[GpuReading, ...]:
    """Return the GPUs that all pages of a node named, each once, by UUID. The first page wins."""
    found: dict[str, GpuReading] = {}
    for page in node.pages:
        for gpu in page.gpus:
            found.setdefault(gpu.uuid, gpu)
    return tuple(found[uuid] for uuid in sorted(found))


def _write_pages(session: Session, at: datetime, due: Iterable[tuple[NodeResult, PageResult]]) -> None:
    rows: list[dict[str, Any]] = [
        {
            "node": node.node,
            "url": page.url,
            "kind": page.kind,
            "dialect": page.dialect,
            "tried_at": at,
            "seen_at": at if page.reason is None else None,
            "reason": None if page.reason is None else page.reason.value,
            "detail": _fit(page.detail),
            "not_exported": list(page.not_exported),
        }
        for node, page in due
    ]
    statement = insert(EndpointSeenRow)
    new = statement.excluded
    kept = {c: new[c] for c in ("kind", "tried_at", "reason", "detail")}
    seen = EndpointSeenRow
    session.execute(
        statement.on_conflict_do_update(
            index_elements=["node", "url"],
            set_=kept
            | {
                "seen_at": func.coalesce(new["seen_at"], seen.seen_at),
                "dialect": func.coalesce(new["dialect"], seen.dialect),
                "not_exported": new["not_exported"],
            },
        ),
        rows,
    )


def _fit(text: str) -> str:
    return text.replace("\x00", "")[:_DETAIL_CHARACTERS]


def _write_gpus(session: Session, node: str, at: datetime, gpus: Sequence[GpuReading]) -> None:
    known = {row.uuid: row for row in session.scalars(select(GpuRow).where(GpuRow.node == node))}
    free = max((row.slot for row in known.values()), default=-1) + 1
    for gpu in gpus:
        row = known.get(gpu.uuid)
        if row is None:
            if free >= SLOTS_MAX:
                continue
            row = known[gpu.uuid] = GpuRow(node=node, uuid=_fit(gpu.uuid), slot=free, xid_at=None)
            session.add(row)
            free += 1
        elif gpu.xid is not None and row.xid is not None and gpu.xid != row.xid:
            row.xid_at = at
        _fill(row, gpu, at)
    here = {gpu.uuid for gpu in gpus}
    slots: list[GpuRow | None] = [None] * free
    for row in known.values():
        slots[row.slot] = row if row.uuid in here else None
    session.execute(
        insert(GpuSampleRow)
        .values(
            at=at,
            node=node,
            used_ratio=[None if r is None else r.used_ratio for r in slots],
            power_w=[None if r is None else r.power_w for r in slots],
            memory_used_ratio=[None if r is None else _memory_ratio(r) for r in slots],
            temperature_c=[None if r is None else r.temperature_c for r in slots],
        )
        .on_conflict_do_nothing()
    )


def _fill(row: GpuRow, gpu: GpuReading, at: datetime) -> None:
    row.label, row.model, row.host = _fit(gpu.index), _fit(gpu.model), _fit(gpu.host)
    row.seen_at = at
    row.used_ratio, row.tensor_ratio, row.power_w = gpu.used_ratio, gpu.tensor_ratio, gpu.power_w
    row.memory_used_bytes, row.memory_total_bytes = gpu.memory_used_bytes, gpu.memory_total_bytes
    row.temperature_c, row.row_remap_failed = gpu.temperature_c, gpu.row_remap_failed
    row.xid = gpu.xid if gpu.xid is not None else row.xid


def _memory_ratio(row: GpuRow) -> float | None:
    used, total = row.memory_used_bytes, row.memory_total_bytes
    return None if used is None or not total else used / total


def further_pages(session: Session) -> dict[str, tuple[FurtherPage, ...]]:
    """Return the further pages of every node that has some, in order of their address."""
    found: dict[str, list[FurtherPage]] = {}
    rows = session.scalars(select(NodeEndpointRow).order_by(NodeEndpointRow.node, NodeEndpointRow.url))
    for row in rows:
        page = FurtherPage(row.url, row.kind, row.host, tuple(row.gpus or ()))
        found.setdefault(row.node, []).append(page)
    return {node: tuple(pages) for node, pages in found.items()}


def forget_pages(session: Session, node: str, urls: Iterable[str]) -> None:
    """Drop what was last seen of pages that are a node's no more."""
    seen = EndpointSeenRow
    session.execute(delete(seen).where(seen.node == node, seen.url.in_(list(urls))))
