"""Nodes and sources by the API: the same commands as pages and command line."""

from __future__ import annotations

import asyncio
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest
from sqlalchemy import select

from control import commands_fleet, tokens
from control.api import ApiDeps, build_app
from control.database import session_scope
from control.roles import Actor, Role
from control.tables import AuditRow
from fleet.clock import ManualClock
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

ADMIN = Actor("ada", Role.ADMIN, "cli")


class Api:
    """The application, asked over ASGI: one loop a call."""

    def __init__(self, deps: ApiDeps, secret: str) -> None:
        self._app = build_app(deps)
        self._headers = {"Authorization": f"Bearer {secret}"}

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://api.test", headers=self._headers
            ) as client:
                return await client.request(method, path, **more)

        return asyncio.run(ask())

    def post(self, path: str, json: Any) -> httpx.Response:
        return self.request("POST", path, json=json)


@pytest.fixture
def api(database: FreshDatabase, clock: ManualClock) -> Api:
    with session_scope(database.engine) as session:
        commands_fleet.add_pool(session, ADMIN, name="p", models=["m"], now=clock.now())
        token = tokens.create_api_token(
            session,
            name="fleet",
            scopes=["fleet:read", "fleet:write"],
            days=30,
            actor=ADMIN,
            now=clock.now(),
        )
    return Api(ApiDeps(database.engine, clock, ZoneInfo("UTC")), token.secret)


def done(api: Api, method: str, path: str, body: Any = None, **more: Any) -> Any:
    answer = api.request(method, f"/api/v1{path}", json=body, **more)
    assert answer.status_code < 300, answer.text
    return answer.json()


def test_a_node_is_added_drained_rested_and_removed(
    api: Api, database: FreshDatabase, clock: ManualClock
) -> None:
    node = {"name": "n", "url": "http://10.0.0.1:8000/metrics", "pool": "p"}
    done(api, "POST", "/nodes", node)
    done(api, "POST", "/nodes/n/pages", {"url": "http://10.0.0.1:9400", "kind": "gpu"})
    for verb, state in (("drain", "draining"), ("rest", "maintenance"), ("resume", "active")):
        assert done(api, "POST", f"/nodes/n/{verb}", {"note": "fan"})["state"] == state
        (row,) = done(api, "GET", "/nodes")["nodes"]
        assert (row["state"], row["origin"]["source"]) == (state, None)
    found = done(api, "GET", "/nodes/n")
    assert [(page["url"], page["kind"], page["tried_at"]) for page in found["pages"]] == [
        ("http://10.0.0.1:8000/metrics", "engine", None),
        ("http://10.0.0.1:9400/metrics", "gpu", None),
    ]
    done(api, "DELETE", "/nodes/n")
    assert done(api, "GET", "/nodes")["nodes"] == []
    with session_scope(database.engine) as session:
        rows = session.scalars(select(AuditRow).where(AuditRow.via == "api").order_by(AuditRow.id)).all()
        said = [(row.action, row.note) for row in rows]
    assert said == [
        ("node.add", ""),
        ("node.page_add", ""),
        ("node.drain", "fan"),
        ("node.rest", "fan"),
        ("node.resume", "fan"),
        ("node.remove", ""),
    ]


def test_the_same_key_adds_once(api: Api) -> None:
    node = {"name": "n", "url": "http://10.0.0.1:8000", "pool": "p"}
    first = done(api, "POST", "/nodes", node, headers={"Idempotency-Key": "k"})
    assert done(api, "POST", "/nodes", node, headers={"Idempotency-Key": "k"}) == first
    assert api.post("/api/v1/nodes", json=node).status_code == 409


def test_hostile_addresses_are_refused_with_the_field(api: Api) -> None:
    for url in ("http://169.254.169.254", "http://[fe80::1]:80", "ftp://a", "http://u:p@a", "http://a/x?y"):
        answer = api.post("/api/v1/nodes", json={"name": "n", "url": url, "pool": "p"})
        assert (answer.status_code, answer.json()["field"]) == (422, "url")
    page = {"url": "http://169.254.169.254/latest", "kind": "gpu"}
    assert api.post("/api/v1/nodes/n/pages", json=page).status_code == 422


def test_a_source_is_added_paused_and_removed(api: Api, clock: ManualClock) -> None:
    source = {"name": "s", "kind": "dns_srv", "settings": {"service": "_vllm._tcp.a.b"}, "pool": "p"}
    done(api, "POST", "/discovery", source)
    clock.advance(1.0)
    assert done(api, "POST", "/discovery/s/pause", {})["state"] == "paused"
    (found,) = done(api, "GET", "/discovery")["sources"]
    assert (found["state"], found["interval_s"], found["grace_s"]) == ("paused", 30.0, 600.0)
    assert (found["tried_at"], found["found"]) == (None, None)  # not asked is no "0 nodes"
    assert done(api, "POST", "/discovery/s/resume", {})["state"] == "active"
    assert done(api, "DELETE", "/discovery/s?with_nodes=true") == {
        "source": "s",
        "nodes": 0,
        "nodes_removed": True,
    }
    bad = source | {"settings": {"service": "_vllm._tcp.a.b", "server": "example.org"}}
    answer = api.post("/api/v1/discovery", json=bad)
    assert (answer.status_code, answer.json()["field"]) == (422, "server")
