"""Usage records as files and pages: every record of the month once, in one order, or nothing at all."""

from __future__ import annotations

import asyncio
import base64
import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pyarrow as pa
import pytest
from pyarrow import parquet
from sqlalchemy import Connection, text

from control import api_exports, export_usage, tokens
from control.api import ApiDeps, build_app
from control.cli import main
from control.database import make_engine, session_scope
from control.export_usage import UsageFile, UsageSums, usage_format, write_usage
from control.roles import Actor, Role
from control.tables import UsageRecordRow
from fleet.clock import SystemClock
from fleet.errors import FleetError, InvalidInput, Unavailable
from fleet.months import Month
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

ADMIN = Actor("ada", Role.ADMIN, "cli")
BERLIN = ZoneInfo("Europe/Berlin")
MONTH = "2026-11"  # in Berlin from 31 October 23:00Z to 30 November 23:00Z
START, END = datetime(2026, 10, 31, 23, tzinfo=UTC), datetime(2026, 11, 30, 23, tzinfo=UTC)
NOW = datetime(2026, 12, 2, tzinfo=UTC)
RECORDS = 2_500
HOSTILE = ("=1+1", "@x", "acme", "-2", "\uff1d1", 'a "b", c\nd', "+ü")


def record(number: int, at: datetime, **changes: Any) -> UsageRecordRow:
    return UsageRecordRow(
        **{
            "gateway": f"gw-{number % 3}",
            "spool": "s",
            "seq": number,
            "request_id": f"={number}" if number % 1_000 == 0 else f"req-{number}",
            "tenant": HOSTILE[number % len(HOSTILE)],
            "key_id": "k",
            "tier": "batch",
            "model": "m",
            "endpoint": "chat",
            "node": f"n{number % 5}",
            "pool": "h100",
            "outcome": "completed",
            "prompt_tokens": number,
            "cached_tokens": None if number % 2 else number // 2,
            "output_tokens": number % 97,
            "exact": bool(number % 2),
            "reserved_tokens": 10,
            "queued_s": number / 7,
            "ttft_s": None if number % 5 == 0 else 0.25,
            "engine_s": number * 0.1,
            "finished_at": at,
            "received_at": at + timedelta(seconds=2),
        }
        | changes
    )


@dataclass(frozen=True)
class Seeded:
    """A database with the records of November, and one just outside at either end."""

    database: FreshDatabase
    rows: list[tuple[datetime, str, str, int]]  # the keys of November's, in order

    def write(self, fmt: str, out: Any) -> UsageFile:
        return write_usage(self.database.engine, MONTH, usage_format(fmt), out, zone=BERLIN, now=NOW)


@pytest.fixture
def seeded(database: FreshDatabase) -> Seeded:
    keys: list[tuple[datetime, str, str, int]] = []
    with session_scope(database.engine) as session:
        for number in range(RECORDS):
            # three records an instant, inserted in another order than they are read
            at = START + timedelta(minutes=(number * 7919 % RECORDS) // 3 * 30)
            session.add(record(number, at))
            keys.append((at, f"gw-{number % 3}", "s", number))
        session.add(record(RECORDS, START - timedelta(microseconds=1)))
        session.add(record(RECORDS + 1, END))
    return Seeded(database, sorted(keys))


def test_a_csv_has_every_record_of_the_month_once_in_order(seeded: Seeded) -> None:
    out = io.BytesIO()
    made = seeded.write("csv", out)
    body = out.getvalue()
    rows = list(csv.DictReader(io.StringIO(body.decode(), newline="")))
    assert [(r["gateway"], int(r["seq"])) for r in rows] == [(key[1], key[3]) for key in seeded.rows]
    assert (made.sums.records, made.size) == (RECORDS, len(body))
    assert made.sha256 == hashlib.sha256(body).hexdigest()
    # 0 + 1 + ... + 2499
    assert sum(int(r["prompt_tokens"]) for r in rows) == made.sums.prompt_tokens == 2499 * 2500 // 2
    assert sum(Decimal(r["engine_s"]) for r in rows) == made.sums.engine_s == Decimal("312375.0")
    first = next(r for r in rows if r["seq"] == "5")
    assert (first["cached_tokens"], first["ttft_s"], first["exact"]) == ("", "", "true")
    assert datetime.fromisoformat(rows[0]["finished_at"]) == START


def test_text_of_a_csv_is_neutralised_and_that_of_parquet_is_the_text(seeded: Seeded) -> None:
    out, columns = io.BytesIO(), io.BytesIO()
    seeded.write("csv", out)
    seeded.write("parquet", columns)
    table = parquet.read_table(io.BytesIO(columns.getvalue()))
    assert set(table.column("tenant").to_pylist()) == set(HOSTILE)
    rows = list(csv.DictReader(io.StringIO(out.getvalue().decode(), newline="")))
    run = ("=1+1", "@x", "-2", "\uff1d1", "+ü")
    assert {r["tenant"] for r in rows} == {f"'{name}" if name in run else name for name in HOSTILE}
    assert {r["request_id"] for r in rows if int(r["seq"]) % 1_000 == 0} == {"'=0", "'=1000", "'=2000"}


def test_parquet_has_types_and_says_what_it_is(seeded: Seeded) -> None:
    out = io.BytesIO()
    made = seeded.write("parquet", out)
    table = parquet.read_table(io.BytesIO(out.getvalue()))
    assert table.schema.field("engine_s").type == pa.decimal128(20, 6)
    assert table.schema.field("finished_at").type == pa.timestamp("us", tz="UTC")
    assert table.column("finished_at").to_pylist() == [key[0] for key in seeded.rows]
    assert table.column("cached_tokens").null_count == RECORDS // 2
    assert made.sums.records == table.num_rows == RECORDS
    assert table.schema.metadata[b"rhodeck.month"] == MONTH.encode()


@pytest.mark.parametrize("fmt", ["csv", "parquet"])
def test_a_month_without_records_is_a_file_without_rows(database: FreshDatabase, fmt: str) -> None:
    out = io.BytesIO()
    made = write_usage(database.engine, MONTH, usage_format(fmt), out, zone=BERLIN, now=NOW)
    assert (made.sums.records, made.sums.engine_s) == (0, 0)
    assert out.getvalue()  # a header


def test_blocks_of_any_size_give_the_same_file(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, pieces = io.BytesIO(), io.BytesIO()
    seeded.write("csv", whole)
    monkeypatch.setattr(export_usage, "BLOCK_BYTES", 700)
    seeded.write("csv", pieces)
    assert pieces.getvalue() == whole.getvalue()


def test_records_that_are_missing_in_the_file_are_a_refusal(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = export_usage._copied

    def torn(connection: Connection, month: Month) -> Iterator[bytes]:
        rows = copied(connection, month)
        next(rows)
        yield from rows

    monkeypatch.setattr(export_usage, "_copied", torn)
    with pytest.raises(FleetError, match=f"{RECORDS - 1} records"):
        seeded.write("csv", io.BytesIO())


# --- a database that goes away --------------------------------------------------------------------------


def end_connection(database: FreshDatabase, connection: Connection) -> None:
    """End the server's side of `connection` and wait until it is gone."""
    pid = connection.connection.driver_connection.info.backend_pid  # pyright: ignore
    other = make_engine(database.dsn, pool_size=1)
    with other.begin() as killer:
        killer.execute(text("SET LOCAL statement_timeout = '90s'"))
        assert killer.scalar(text("SELECT pg_terminate_backend(:pid, 60000)"), {"pid": pid})
    other.dispose()


def test_a_database_that_goes_away_before_the_first_row_is_unavailable(
    database: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = export_usage._sums

    def ended(connection: Connection, month: Month) -> UsageSums:
        end_connection(database, connection)
        return sums(connection, month)

    monkeypatch.setattr(export_usage, "_sums", ended)
    with pytest.raises(Unavailable, match="cannot be reached"):
        write_usage(database.engine, MONTH, "csv", io.BytesIO(), zone=BERLIN, now=NOW)


@pytest.fixture
def cut_off(database: FreshDatabase, monkeypatch: pytest.MonkeyPatch) -> FreshDatabase:
    """40,000 records, more than fits any buffer; the connection is ended after the first row of a copy."""
    with session_scope(database.engine) as session:
        session.execute(
            text(
                "INSERT INTO usage_record SELECT 'g', 's', n, repeat('r', 200), 't', 'k', 'batch', 'm', "
                "'chat', 'n', 'p', 'completed', 1, NULL, 1, true, 1, 0, NULL, 0.5, :at, :at "
                "FROM generate_series(1, 40000) n"
            ),
            {"at": START},
        )
    copied = export_usage._copied

    def ended(connection: Connection, month: Month) -> Iterator[bytes]:
        rows = copied(connection, month)
        yield next(rows)
        end_connection(database, connection)
        yield from rows

    monkeypatch.setattr(export_usage, "_copied", ended)
    return database


def test_a_database_that_goes_away_leaves_no_file(
    cut_off: FreshDatabase,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DATABASE_URL", cut_off.dsn)
    monkeypatch.setenv("RHODECK_FINANCE_TIMEZONE", "Europe/Berlin")
    target = tmp_path / "usage.csv"
    target.write_text("the one of yesterday")
    with pytest.raises(SystemExit) as ended:
        main(["spend", "usage", MONTH, "--out", str(target)])
    assert ended.value.code == 1
    assert "the database failed after" in capfd.readouterr().err
    assert target.read_text() == "the one of yesterday"
    assert [path.name for path in tmp_path.iterdir()] == ["usage.csv"]


def test_a_database_that_goes_away_is_never_a_200(cut_off: FreshDatabase) -> None:
    answer = caller(cut_off)(f"/api/v1/usage/{MONTH}.csv")
    assert answer.status_code == 503
    assert answer.json()["retryable"] is True


# --- over HTTP ------------------------------------------------------------------------------------------


def caller(database: FreshDatabase, *scopes: str) -> Callable[..., httpx.Response]:
    """Calls of the API with a token that holds `scopes`."""
    with session_scope(database.engine) as session:
        secret = tokens.create_api_token(
            session,
            name="pull",
            scopes=scopes or ("spend:read",),
            days=1,
            actor=ADMIN,
            now=SystemClock().now(),
        ).secret
    app = build_app(ApiDeps(database.engine, SystemClock(), BERLIN))

    async def ask(path: str, query: dict[str, str]) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            return await client.get(path, params=query, headers={"Authorization": f"Bearer {secret}"})

    return lambda path, **query: asyncio.run(ask(path, query))


def test_a_file_over_http_carries_what_to_check_it_by(seeded: Seeded) -> None:
    answer = caller(seeded.database)(f"/api/v1/usage/{MONTH}.csv")
    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
    assert answer.headers["x-rhodeck-rows"] == str(RECORDS)
    assert answer.headers["content-disposition"] == f'attachment; filename="usage_{MONTH}.csv"'


def test_only_a_token_for_spend_gets_usage(seeded: Seeded) -> None:
    call = caller(seeded.database, "status:read")
    assert call(f"/api/v1/usage/{MONTH}.csv").status_code == 403
    assert call(f"/api/v1/usage/{MONTH}").status_code == 403


def test_a_workbook_of_records_is_refused(seeded: Seeded) -> None:
    answer = caller(seeded.database)(f"/api/v1/usage/{MONTH}.xlsx")
    assert (answer.status_code, answer.json()["field"]) == (422, "format")


def test_a_third_export_at_once_is_asked_to_come_again(seeded: Seeded) -> None:
    for _ in range(api_exports.AT_ONCE):
        assert api_exports._room.acquire(blocking=False)
    try:
        with pytest.raises(Unavailable, match="2 exports"):
            api_exports.usage_file(
                seeded.database.engine, {"month": MONTH, "format": "csv"}, zone=BERLIN, now=NOW
            )
    finally:
        for _ in range(api_exports.AT_ONCE):
            api_exports._room.release()
    answer = caller(seeded.database)(f"/api/v1/usage/{MONTH}.parquet")
    assert answer.status_code == 200  # the room was given back


# --- pages ----------------------------------------------------------------------------------------------


def pages(
    call: Callable[..., httpx.Response], limit: int, between: Callable[[], None] = lambda: None
) -> Any:
    """Read all pages; return the rows and the last answer."""
    rows: list[dict[str, Any]] = []
    query = {"limit": str(limit)}
    while True:
        answer = call(f"/api/v1/usage/{MONTH}", **query)
        if answer.status_code != 200:
            return rows, answer
        page = answer.json()
        rows += page["rows"]
        if page["next"] is None:
            return rows, answer
        query["after"] = page["next"]
        between()


@pytest.mark.parametrize("limit", [1_000, 2_500, 999])
def test_pages_are_the_month_once_in_order_and_add_up(seeded: Seeded, limit: int) -> None:
    rows, last = pages(caller(seeded.database), limit)
    assert [(row["gateway"], row["seq"]) for row in rows] == [(key[1], key[3]) for key in seeded.rows]
    assert sum(row["prompt_tokens"] for row in rows) == last.json()["prompt_tokens"] == 2499 * 2500 // 2
    assert last.json()["records"] == RECORDS


def test_what_arrives_after_the_first_page_is_not_of_it(seeded: Seeded) -> None:
    number = iter(range(10_000, 20_000))

    def arrives() -> None:
        with session_scope(seeded.database.engine) as session:
            later = SystemClock().now() + timedelta(hours=1)
            session.add(record(next(number), START, gateway="gw-0", received_at=later))

    rows, last = pages(caller(seeded.database), 1_000, arrives)
    assert (last.status_code, len(rows)) == (200, RECORDS)


@pytest.mark.parametrize("at", [START, END - timedelta(seconds=1)])
def test_a_record_that_slips_in_makes_the_last_page_a_refusal(seeded: Seeded, at: datetime) -> None:
    """Its transaction had taken its stamp before the first page and committed after it."""
    number = iter(range(10_000, 20_000))

    def slips() -> None:
        with session_scope(seeded.database.engine) as session:
            session.add(record(next(number), at, received_at=START))

    rows, last = pages(caller(seeded.database), 1_000, slips)
    assert (last.status_code, last.json()["error"]) == (409, "Conflict")
    assert len(rows) < RECORDS + 1


def _cursor(*parts: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


@pytest.mark.parametrize(
    "after",
    [
        "x",
        "====",
        "ü",
        _cursor(1),
        _cursor("2026-10", NOW.isoformat(), 1, 1, 1, 1, 1, 1, NOW.isoformat(), "g", "s", 1),
        _cursor(MONTH, "2026", 1, 1, 1, 1, 1, 1, NOW.isoformat(), "g", "s", 1),
        _cursor(MONTH, NOW.isoformat(), 1, 1, 1, 1, 1, 1, "", "g", "s", 1),
        _cursor(MONTH, NOW.isoformat(), 1, 1, 1, 1, 1, 1, NOW.isoformat(), "\x00", "s", 1),
        _cursor(MONTH, NOW.isoformat(), 1, 1, 1, 1, 1, 1, NOW.isoformat(), "\ud800", "s", 1),
        _cursor(MONTH, NOW.isoformat(), 1, 1, 1, 1, 1, 1, NOW.isoformat(), "g", "s", 2**70),
        base64.urlsafe_b64encode(b"[" * 100_000).decode()[:60_000],
    ],
)
def test_a_cursor_that_is_none_is_refused(seeded: Seeded, after: str) -> None:
    answer = caller(seeded.database)(f"/api/v1/usage/{MONTH}", after=after)
    assert (answer.status_code, answer.json()["field"]) == (422, "after")


@pytest.mark.parametrize("limit", ["0", "-1", "5001", "ten", "٣"])
def test_a_limit_that_is_none_is_refused(seeded: Seeded, limit: str) -> None:
    answer = caller(seeded.database)(f"/api/v1/usage/{MONTH}", limit=limit)
    assert (answer.status_code, answer.json()["field"]) == (422, "limit")


def test_a_month_that_is_none_is_refused(seeded: Seeded) -> None:
    with pytest.raises(InvalidInput):
        write_usage(seeded.database.engine, "2026-13", "csv", io.BytesIO(), zone=BERLIN, now=NOW)
