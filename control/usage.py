"""Takes usage from the gateways' spools exactly once.

A page of records, the quarter-hour sums and the cursor are one transaction; only then is the page
acknowledged to the gateway. A repeated page inserts nothing and adds nothing. Prevents: a request billed
twice after a lost acknowledgement, or never after a crash.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import aiohttp
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control import gateways, lease
from control.deps import Deps
from control.tables import GatewayRow, UsageCursorRow, UsageQuarterRow, UsageRecordRow
from fleet.errors import FleetError
from fleet.messages import UsageAck, UsagePage, UsageRecord
from fleet.months import quarter_of

PAGE_RECORDS = 1_000
PAGES_A_TICK = 20
MAX_COUNT = 10**12
MAX_TEXT_CHARACTERS = 500
_ONE_INSERT = 500  # rows; Postgres takes 65,535 parameters a statement


@dataclass(frozen=True, slots=True)
class Pulled:
    """What one gateway gave in one tick."""

    gateway: str
    records: int
    problem: str = ""


async def tick(deps: Deps) -> str:
    """Pull every gateway's new records and acknowledge them. Returns the line to log."""
    epoch = deps.leadership.current(deps.clock)
    if epoch is None:
        return "not leading"
    targets = await asyncio.to_thread(_targets, deps)
    results = await asyncio.gather(*(_pull(deps, epoch, name, url) for name, url in targets))
    taken = sum(result.records for result in results)
    problems = "; ".join(f"{r.gateway}: {r.problem}" for r in results if r.problem)
    return f"usage: {taken} records from {len(results)} gateways" + (f"; {problems}" if problems else "")


async def _pull(deps: Deps, epoch: int, name: str, url: str) -> Pulled:
    http, taken = deps.http(), 0

    async def page_after(seq: int) -> UsagePage:
        return await gateways.usage(
            http,
            name,
            url,
            after=seq,
            limit=PAGE_RECORDS,
            token=deps.admin_token,
            deadline_s=deps.call_deadline_s,
        )

    try:
        for _ in range(PAGES_A_TICK):
            cursors = await asyncio.to_thread(_cursors, deps, name)
            after = next(iter(cursors.values()), 0)  # of the spool seen last
            page = await page_after(after)
            if cursors.get(page.spool, 0) != after:  # the gateway began a new spool
                page = await page_after(cursors.get(page.spool, 0))
            if page.records:
                taken += await asyncio.to_thread(_store, deps, epoch, name, page)
            await _acknowledge(deps, http, name, url, page.spool)
            if len(page.records) < PAGE_RECORDS:
                break
    except FleetError as exc:
        return Pulled(name, taken, exc.message)
    return Pulled(name, taken)


async def _acknowledge(deps: Deps, http: aiohttp.ClientSession, name: str, url: str, spool: str) -> None:
    cursor = await asyncio.to_thread(_unacknowledged, deps, name, spool)
    if cursor is None:
        return
    await gateways.acknowledge_usage(
        http,
        name,
        url,
        UsageAck(spool=spool, seq=cursor),
        token=deps.admin_token,
        deadline_s=deps.call_deadline_s,
    )
    await asyncio.to_thread(_note_acknowledged, deps, name, spool, cursor)


def _targets(deps: Deps) -> list[tuple[str, str]]:
    with Session(deps.engine) as session:
        rows = session.execute(
            select(GatewayRow.name, GatewayRow.base_url)
            .where(GatewayRow.state == "active")
            .order_by(GatewayRow.name)
        )
        return [(name, url) for name, url in rows]


def _cursors(deps: Deps, gateway: str) -> dict[str, int]:
    """Return how far each spool of the gateway has been taken, the one seen last first."""
    with Session(deps.engine) as session:
        c = UsageCursorRow
        rows = session.execute(
            select(c.spool, c.seq).where(c.gateway == gateway).order_by(c.updated_at.desc())
        )
        return {spool: seq for spool, seq in rows}  # rows are not plain tuples


def _unacknowledged(deps: Deps, gateway: str, spool: str) -> int | None:
    with Session(deps.engine) as session:
        row = session.get(UsageCursorRow, (gateway, spool))
        return row.seq if row is not None and row.seq > row.acked_seq else None


def _note_acknowledged(deps: Deps, gateway: str, spool: str, seq: int) -> None:
    with Session(deps.engine) as session, session.begin():
        row = session.get(UsageCursorRow, (gateway, spool))
        if row is not None:
            row.acked_seq = max(row.acked_seq, seq)


def _store(deps: Deps, epoch: int, gateway: str, page: UsagePage) -> int:
    with Session(deps.engine) as session, session.begin():
        lease.require(session, epoch)
        return store_page(session, gateway, page, deps.clock.now())


def store_page(session: Session, gateway: str, page: UsagePage, now: datetime) -> int:
    """Insert a page's records, add the new ones to their quarter-hours, move the cursor.

    Joins the caller's transaction. Returns how many records were new; a repeated page gives 0.
    """
    new: set[int] = set()
    for start in range(0, len(page.records), _ONE_INSERT):
        part = page.records[start : start + _ONE_INSERT]
        statement = insert(UsageRecordRow).values(
            [_row(gateway, page.spool, record, now) for record in part]
        )
        inserted = session.scalars(statement.on_conflict_do_nothing().returning(UsageRecordRow.seq))
        new.update(inserted)
    _add_to_quarters(session, [record for record in page.records if record.seq in new])
    if page.records:
        _move_cursor(session, gateway, page.spool, page.records[-1].seq, now)
    return len(new)


def _row(gateway: str, spool: str, record: UsageRecord, now: datetime) -> dict[str, Any]:
    values = {
        name: _storable(value) for name, value in record.model_dump(exclude={"finished_at_s"}).items()
    }
    return {
        **values,
        "gateway": gateway,
        "spool": _storable(spool),
        "finished_at": datetime.fromtimestamp(record.finished_at_s, UTC),
        "received_at": now,
    }


def _storable(value: Any) -> Any:
    """Return what a column can hold: one odd record must not stop all the others."""
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd")[:MAX_TEXT_CHARACTERS]
    if isinstance(value, int) and not isinstance(value, bool):
        return min(value, MAX_COUNT)
    return value


def _add_to_quarters(session: Session, records: Sequence[UsageRecord]) -> None:
    sums: dict[tuple[datetime, str, str, str, str], list[Any]] = defaultdict(lambda: [0, 0, 0, Decimal(0)])
    for record in records:
        quarter = quarter_of(datetime.fromtimestamp(record.finished_at_s, UTC))
        total = sums[
            quarter,
            *(_storable(part) for part in (record.tenant, record.tier.value, record.model, record.pool)),
        ]
        total[0] += 1
        total[1] += min(record.prompt_tokens, MAX_COUNT)
        total[2] += min(record.output_tokens, MAX_COUNT)
        total[3] += Decimal(str(round(record.engine_s, 6)))
    if not sums:
        return
    q = UsageQuarterRow
    names = ("requests", "prompt_tokens", "output_tokens", "engine_s")
    # Sorted, so that two transactions lock rows in the same order.
    rows = [
        {"quarter": key[0], "tenant": key[1], "tier": key[2], "model": key[3], "pool": key[4]}
        | dict(zip(names, sums[key], strict=True))
        for key in sorted(sums)
    ]
    statement = insert(q).values(rows)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[q.quarter, q.tenant, q.tier, q.model, q.pool],
            set_={name: getattr(q, name) + statement.excluded[name] for name in names},
        )
    )


def _move_cursor(session: Session, gateway: str, spool: str, seq: int, now: datetime) -> None:
    c = UsageCursorRow
    statement = insert(c).values(gateway=gateway, spool=spool, seq=seq, updated_at=now)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[c.gateway, c.spool],
            set_={"seq": func.greatest(c.seq, statement.excluded.seq), "updated_at": now},
        )
    )
