"""Flow by the API: the states the page shows, and one queue's minutes, for scripts."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from zoneinfo import ZoneInfo

import httpx
import pytest

from control import tokens
from control.api import ApiDeps, build_app
from control.database import session_scope
from control.roles import Actor, Role
from fleet.clock import ManualClock
from tests.pages.flow_rows import MINUTES, add_flow
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres


class Api:
    """The application over ASGI, one loop a call, with a token that may read the status."""

    def __init__(self, database: FreshDatabase, clock: ManualClock) -> None:
        with session_scope(database.engine) as session:
            actor = Actor("ada", Role.ADMIN, "cli")
            token = tokens.create_api_token(
                session, name="s", scopes=["status:read"], days=1, actor=actor, now=clock.now()
            )
        self._app = build_app(ApiDeps(database.engine, clock, ZoneInfo("UTC")))
        self._headers = {"Authorization": f"Bearer {token.secret}"}

    def get(self, path: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://api.test", headers=self._headers
            ) as client:
                return await client.get(path)

        return asyncio.run(ask())


@pytest.fixture
def api(database: FreshDatabase, clock: ManualClock) -> Api:
    return Api(database, clock)


def test_states_are_those_of_the_page_and_say_when_they_are_old(
    api: Api, database: FreshDatabase, clock: ManualClock
) -> None:
    assert api.get("/api/v1/flow").json() == {"queues": []}
    with session_scope(database.engine) as session:
        add_flow(session, clock.now())
    queues = api.get("/api/v1/flow").json()["queues"]
    assert [(q["scope"], q["name"], q["balance"], q["is_stale"]) for q in queues] == [
        ("fleet", "", "unstable", False),
        ("tier", "interactive", "unstable", False),
    ]
    assert {s["name"] for s in queues[0]["detail"]["signals"]} == {"flow", "age", "trend", "backlog"}
    (one,) = api.get("/api/v1/flow?scope=tier&name=interactive").json()["queues"]
    assert one["name"] == "interactive"
    clock.advance(120)
    assert all(q["is_stale"] for q in api.get("/api/v1/flow").json()["queues"])


def test_a_timeline_has_a_point_for_each_minute_and_null_where_nothing_was_counted(
    api: Api, database: FreshDatabase, clock: ManualClock
) -> None:
    with session_scope(database.engine) as session:
        add_flow(session, clock.now())
    clock.advance(timedelta(minutes=10).total_seconds())
    said = api.get("/api/v1/flow/timeline?minutes=30").json()
    assert (said["scope"], said["name"]) == ("fleet", "")
    counted = [point["arrivals"] for point in said["points"]]
    # 40 minutes until ten minutes ago, looked back for 30: 20 of 600 arrivals each, then none
    assert 600 in counted
    assert counted[-1] is None
    assert sum(n for n in counted if n is not None) in range(19 * 600, 21 * 600 + 1)
    assert MINUTES == 40


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/api/v1/flow?scope=planet", 422, "scope"),
        ("/api/v1/flow?name=interactive", 422, "scope"),
        ("/api/v1/flow?scope=fleet&name=x", 422, "name"),
        ("/api/v1/flow?scope=tier", 422, "name"),
        ("/api/v1/flow/timeline?minutes=0", 422, "minutes"),
        ("/api/v1/flow/timeline?minutes=-5", 422, "minutes"),
        ("/api/v1/flow/timeline?minutes=99999", 422, "minutes"),
        ("/api/v1/flow/timeline?scope=tier&name=gold", 404, "name"),
    ],
)
def test_what_cannot_be_asked_is_refused_at_its_field(
    api: Api, database: FreshDatabase, clock: ManualClock, path: str, status: int, field: str
) -> None:
    with session_scope(database.engine) as session:
        add_flow(session, clock.now())
    answer = api.get(path)
    assert (answer.status_code, answer.json()["field"]) == (status, field)
