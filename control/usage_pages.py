"""Usage records of a month page by page, in a fixed order, as of one moment; whole or refused.

The first page fixes the moment (`as_of`) and what the records up to it add up to; every page's cursor
carries both. The last page is answered only if all pages together are that, and the books still are.
Prevents: pages that repeat or lose rows while gateways deliver, and a reader that stops at the first page
unaware.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from datetime import datetime
from typing import Any, cast
from zoneinfo import ZoneInfo

from sqlalchemy import ColumnElement, func, literal, select, text, tuple_
from sqlalchemy.orm import Session

from control.closed_months import require_zone
from control.tables import UsageRecordRow
from fleet.errors import Conflict, InvalidInput
from fleet.months import Month, month_of

DEFAULT_ROWS, MAX_ROWS = 1_000, 5_000
STATEMENT_S = 120
_FIELDS = (
    *(
        "finished_at",
        "gateway",
        "spool",
        "seq",
        "request_id",
        "tenant",
        "key_id",
        "tier",
        "model",
        "endpoint",
    ),
    *("node", "pool", "outcome", "prompt_tokens", "cached_tokens", "output_tokens", "exact"),
    *("reserved_tokens", "queued_s", "ttft_s", "engine_s", "received_at"),
)
_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can name and UTF-8 cannot
#: Types of a cursor's parts, in their order.
_PARTS = (str, str, int, int, int, int, int, int, str, str, str, int)


@dataclass(frozen=True, slots=True)
class _Cursor:
    """Where a reader is: of what, what it must come to, what it has seen, and the last row it has."""

    month: str
    as_of: str
    records: int
    prompt_tokens: int
    output_tokens: int
    seen: int = 0
    seen_prompt: int = 0
    seen_output: int = 0
    at: str = ""
    gateway: str = ""
    spool: str = ""
    seq: int = 0

    def text(self) -> str:
        """Return it as one word of a URL."""
        return base64.urlsafe_b64encode(json.dumps(astuple(self)).encode()).decode().rstrip("=")

    @property
    def total(self) -> tuple[int, int, int]:
        return self.records, self.prompt_tokens, self.output_tokens


def usage_page(
    session: Session, month: str, query: Mapping[str, str], *, zone: ZoneInfo, now: datetime
) -> dict[str, Any]:
    """Return the page after `query["after"]` (the first without it), at most `limit` rows.

    Raises InvalidInput for a limit or cursor that is none, Conflict if the records up to `as_of` are no
    longer what they were when the first page was read: the pages read so far are then worth nothing.
    """
    span, limit = month_of(month, zone), _limit(query.get("limit"))
    require_zone(session, zone)
    session.execute(text(f"SET LOCAL statement_timeout = '{STATEMENT_S}s'"))  # to count millions
    after = query.get("after")
    cursor = _first(session, span, now) if not after else _parsed(after, month)
    rows = _rows(session, span, cursor, limit + 1)
    here = rows[:limit]
    cursor = replace(
        cursor,
        seen=cursor.seen + len(here),
        seen_prompt=cursor.seen_prompt + sum(row["prompt_tokens"] for row in here),
        seen_output=cursor.seen_output + sum(row["output_tokens"] for row in here),
    )
    is_last = len(rows) <= limit
    if is_last:
        _require_all(session, span, cursor)
    else:
        last = here[-1]
        cursor = replace(
            cursor,
            at=last["finished_at"].isoformat(),
            gateway=last["gateway"],
            spool=last["spool"],
            seq=last["seq"],
        )
    return {
        "month": month,
        "time_zone": zone.key,
        "as_of": cursor.as_of,
        "records": cursor.records,
        "prompt_tokens": cursor.prompt_tokens,
        "output_tokens": cursor.output_tokens,
        "rows": here,
        "next": None if is_last else cursor.text(),
    }


def _first(session: Session, month: Month, now: datetime) -> _Cursor:
    return _Cursor(month.name, now.isoformat(), *_total(session, month, now))


def _within(month: Month, as_of: datetime) -> ColumnElement[bool]:
    r = UsageRecordRow
    return (r.finished_at >= month.start) & (r.finished_at < month.end) & (r.received_at <= as_of)


def _total(session: Session, month: Month, as_of: datetime) -> tuple[int, int, int]:
    r = UsageRecordRow
    sums = select(
        func.count(),
        func.coalesce(func.sum(r.prompt_tokens), 0),
        func.coalesce(func.sum(r.output_tokens), 0),
    ).where(_within(month, as_of))
    records, prompt, output = session.execute(sums).one()
    return int(records), int(prompt), int(output)


def _rows(session: Session, month: Month, cursor: _Cursor, limit: int) -> list[dict[str, Any]]:
    r = UsageRecordRow
    key = (r.finished_at, r.gateway, r.spool, r.seq)
    query = select(*(getattr(r, name) for name in _FIELDS)).where(
        _within(month, datetime.fromisoformat(cursor.as_of))
    )
    if cursor.seen:
        at = datetime.fromisoformat(cursor.at)
        last = tuple_(literal(at), literal(cursor.gateway), literal(cursor.spool), literal(cursor.seq))
        query = query.where(r.finished_at >= at, tuple_(*key) > last)  # the first part is for the index
    rows = session.execute(query.order_by(*key).limit(limit))
    return [dict(zip(_FIELDS, row, strict=True)) for row in rows]


def _require_all(session: Session, month: Month, cursor: _Cursor) -> None:
    seen = (cursor.seen, cursor.seen_prompt, cursor.seen_output)
    now = _total(session, month, datetime.fromisoformat(cursor.as_of))
    if seen == cursor.total == now:
        return
    raise Conflict(
        f"{cursor.seen} of {cursor.records} records were read, now they are {now[0]}: some came between",
        hint="Drop what was read and begin again without `after`",
        field="after",
        retryable=True,
    )


def _limit(said: str | None) -> int:
    if said is None:
        return DEFAULT_ROWS
    if not said.isascii() or not said.isdigit() or len(said) > 5 or not 1 <= int(said) <= MAX_ROWS:
        raise InvalidInput(
            f"limit is {said[:20]!r}", hint=f"Send a whole number from 1 to {MAX_ROWS}", field="limit"
        )
    return int(said)


def _parsed(word: str, month: str) -> _Cursor:
    wrong = InvalidInput(
        "after is no cursor of this month", hint="Send `next` of the page before", field="after"
    )
    try:
        parts: object = json.loads(base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        raise wrong from None
    if not isinstance(parts, list):
        raise wrong
    given = cast("list[Any]", parts)
    if len(given) != len(_PARTS) or not all(type(g) is t for g, t in zip(given, _PARTS, strict=True)):
        raise wrong
    cursor = _Cursor(*given)
    if cursor.month != month or not _are_instants(cursor.as_of, cursor.at) or not _can_be(given):
        raise wrong
    return cursor


def _can_be(parts: list[Any]) -> bool:
    """Say whether Postgres can hold the parts."""
    texts = [part for part in parts if isinstance(part, str)]
    numbers = [part for part in parts if isinstance(part, int)]
    are_texts = all("\x00" not in part and not _SURROGATE.search(part) for part in texts)
    return are_texts and all(0 <= part < 2**63 for part in numbers)


def _are_instants(*texts: str) -> bool:
    try:
        return all(datetime.fromisoformat(text).tzinfo is not None for text in texts)
    except ValueError:
        return False
