"""Months over HTTP: listed with their content, closed and corrected by a token for it and by no other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from control import tokens
from control.api import ApiDeps, build_app
from control.closed_months import closed_month
from control.database import session_scope
from control.roles import Actor, Role
from control.tables import AuditRow, GatewayRow, NodeRow
from fleet.clock import ManualClock
from tests.month_books import CLOSING_TIME, FEBRUARY, ZONE, write_books
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

MONTH = "/api/v1/months/2026-02"


class Api:
    """The application over ASGI on the books of February, two hours into March; one token a scope."""

    def __init__(self, database: FreshDatabase, folder: Path, *, has_key: bool = True) -> None:
        self.database, clock = database, ManualClock(CLOSING_TIME)
        admin = Actor("ada", Role.ADMIN, "cli")
        with session_scope(database.engine) as session:
            write_books(session)
            self.secrets = {
                scope: tokens.create_api_token(
                    session, name=scope, scopes=[scope], days=1, actor=admin, now=CLOSING_TIME
                ).secret
                for scope in ("spend:read", "months:write", "fleet:write")
            }
        key_file = folder / "finance.key" if has_key else None
        self._app = build_app(ApiDeps(database.engine, clock, ZONE, finance_key=key_file))

    def call(
        self, method: str, path: str, scope: str, body: Any = None, key: str | None = None
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.secrets[scope]}"}
        if key is not None:
            headers["Idempotency-Key"] = key

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://api.test") as client:
                return await client.request(method, path, json=body, headers=headers)

        return asyncio.run(ask())


@pytest.fixture
def api(database: FreshDatabase, tmp_path: Path) -> Api:
    return Api(database, tmp_path)


def test_a_month_is_seen_closed_checked_and_corrected(api: Api) -> None:
    before = api.call("GET", MONTH, "spend:read").json()
    # by hand: 10 node-hours at 28; 10 of 40 engine-hours were acme's
    assert before["state"] == "open"
    assert (before["total_usd"], before["parts"]) == ("280.00", {"usage": "70.00", "idle": "210.00"})
    with session_scope(api.database.engine) as session:  # a gateway whose use nobody has pulled yet
        session.add(
            GatewayRow(name="gw-2", base_url="http://127.0.0.1:2", state="active", created_at=FEBRUARY)
        )
    begun = api.call("POST", f"{MONTH}/closing", "months:write")
    assert begun.status_code == 200
    assert {check["name"] for check in begun.json()["checklist"] if check["is_blocking"]} >= {
        "month is over",
        "prices for all node time",
    }
    refused = api.call("POST", f"{MONTH}/close", "months:write", {})
    assert refused.status_code == 409
    assert "gateways' usage is drained" in refused.json()["message"]
    done = api.call("POST", f"{MONTH}/close", "months:write", {"accept": True, "note": "q1"}, key="k1")
    assert done.status_code == 200, done.text
    said = done.json()
    again = api.call("POST", f"{MONTH}/close", "months:write", {"accept": True, "note": "q1"}, key="k1")
    assert again.json() == said  # the same key closes nothing twice
    verified = api.call("GET", f"{MONTH}/verification", "spend:read").json()
    assert (verified["holds"], verified["is_signed"], verified["sha256"]) == (True, True, said["sha256"])
    correction = {"tenant": "acme", "amount_usd": "-5.00", "reason": "refund"}
    made = api.call("POST", f"{MONTH}/corrections", "months:write", correction)
    assert (made.status_code, made.json()["correction"]) == (201, 1)
    march = api.call("GET", "/api/v1/months/2026-03", "spend:read").json()
    assert march["parts"]["adjustment"] == "-5.00"
    with session_scope(api.database.engine) as session:
        who = session.execute(
            select(AuditRow.action, AuditRow.role, AuditRow.via).where(AuditRow.subject == "month 2026-02")
        ).all()
    assert [tuple(row) for row in who] == [
        ("month.closing", "finance", "api"),
        ("month.close", "finance", "api"),
        ("month.correct", "finance", "api"),
    ]


def test_the_list_says_what_each_month_is_and_of_a_closed_one_what_proves_it(api: Api) -> None:
    opened = api.call("GET", "/api/v1/months", "spend:read").json()["months"]
    assert opened == [{"month": "2026-03", "state": "open"}, {"month": "2026-02", "state": "open"}]
    api.call("POST", f"{MONTH}/closing", "months:write")
    assert api.call("GET", "/api/v1/months", "spend:read").json()["months"][1]["state"] == "closing"
    api.call("POST", f"{MONTH}/close", "months:write", {"accept": True})
    march, february = api.call("GET", "/api/v1/months", "spend:read").json()["months"]
    assert march == {"month": "2026-03", "state": "open"}
    with session_scope(api.database.engine) as session:
        closed = closed_month(session, "2026-02")
    assert closed is not None
    assert february == {
        "month": "2026-02",
        "state": "closed",
        "time_zone": "UTC",
        "method": closed.method,
        "total_usd": "280.00",
        "rows": 2,  # acme's part, and what nobody held
        "sha256": closed.sha256,
        "signature": closed.signature,
        "key_id": closed.key_id,
        "closed_at": "2026-03-01T02:00:00+00:00",
        "closed_by": closed.closed_by,
    }
    assert len(february["sha256"]) == len(february["signature"]) == 64


def test_a_nodes_life_is_corrected_over_http(api: Api) -> None:
    with session_scope(api.database.engine) as session:
        where, since = "http://127.0.0.1:9", FEBRUARY
        kept = {"price_class": "on_demand", "state": "active", "created_at": since}
        session.add(NodeRow(name="n9", base_url=where, pool="a", **kept))
    body = {"node": "n9", "up": True, "start": "2026-02-03T10:00Z", "end": "2026-02-03T12:30+00:30"}
    body["reason"] = "registered late"
    made = api.call("POST", "/api/v1/node-time", "months:write", body, key="k1")
    assert (made.status_code, made.json()) == (201, {"node": "n9", "changed_node_hours": "2.000000"})
    again = api.call("POST", "/api/v1/node-time", "months:write", body, key="k1")
    assert again.json() == made.json()
    assert api.call("GET", MONTH, "spend:read").json()["total_usd"] == "336.00"  # 12 node-hours at 28
    down = body | {"up": False, "end": "2026-02-03T11:00Z"}
    assert api.call("POST", "/api/v1/node-time", "months:write", down).json()["changed_node_hours"] == (
        "-1.000000"
    )
    for change, status in (
        ({"node": "none"}, 404),
        ({"start": "0001-01-01T00:00+14:00"}, 422),
        ({"end": "9999-12-31T23:45-12:00"}, 422),
        ({"start": "2026-02-03T10:01Z"}, 422),
        ({"reason": " "}, 422),
        ({"node": "n9\x00"}, 422),  # a text no database keeps
        ({"reason": "\x00"}, 422),
        ({"node": "n9\\u0000"}, 404),  # but this one is six plain characters after it
        ({"end": "2026-04-03T11:00Z"}, 409),  # the ledger has not counted so far
    ):
        assert api.call("POST", "/api/v1/node-time", "months:write", body | change).status_code == status
    assert api.call("POST", "/api/v1/node-time", "spend:read", body).status_code == 403


@pytest.mark.parametrize(("scope", "status"), [("spend:read", 403), ("fleet:write", 403)])
def test_only_a_token_for_months_changes_them(api: Api, scope: str, status: int) -> None:
    for method, path in (
        ("POST", f"{MONTH}/closing"),
        ("DELETE", f"{MONTH}/closing"),
        ("POST", f"{MONTH}/close"),
        ("POST", f"{MONTH}/corrections"),
    ):
        assert api.call(method, path, scope, {}).status_code == status
    assert api.call("GET", MONTH, "months:write").status_code == 403  # writing is not reading


def test_what_cannot_be_is_refused_and_leaves_the_month_as_it_is(api: Api) -> None:
    assert api.call("DELETE", f"{MONTH}/closing", "months:write").status_code == 409
    assert api.call("POST", f"{MONTH}/close", "months:write", {}).status_code == 409
    assert api.call("POST", "/api/v1/months/2026-13/closing", "months:write").status_code == 422
    wrong = api.call("POST", f"{MONTH}/close", "months:write", {"force": True})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "force")
    late = {"tenant": "acme", "amount_usd": "1", "reason": "x"}
    assert api.call("POST", f"{MONTH}/corrections", "months:write", late).status_code == 409
    assert api.call("POST", f"{MONTH}/closing", "months:write").status_code == 200
    assert api.call("DELETE", f"{MONTH}/closing", "months:write").json()["state"] == "open"
    assert api.call("GET", MONTH, "spend:read").json()["state"] == "open"


def test_without_a_key_nothing_is_closed(database: FreshDatabase, tmp_path: Path) -> None:
    api = Api(database, tmp_path, has_key=False)
    api.call("POST", f"{MONTH}/closing", "months:write")
    answer = api.call("POST", f"{MONTH}/close", "months:write", {"accept": True})
    assert answer.status_code == 503
    assert "RHODECK_FINANCE_KEY_FILE" in answer.json()["hint"]
    assert api.call("GET", MONTH, "spend:read").json()["state"] == "closing"
