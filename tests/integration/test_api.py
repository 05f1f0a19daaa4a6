"""The API as scripts meet it: a process, a socket, a token. Each door opens to its own key only."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session
from starlette.routing import Route

from control import tokens
from control.api import ApiDeps, build_app
from control.database import session_scope
from control.openapi import document
from control.prices import add_price
from control.roles import Actor, Role
from control.tables import NodeQuarterRow, PoolRow, UsageQuarterRow
from fleet.clock import SystemClock
from fleet.policy import Policy, default_policy
from tests.gateway_process import ROOT, eventually
from tests.postgres_server import DatabaseFactory, FreshDatabase

pytestmark = pytest.mark.postgres

ADMIN = Actor("ada", Role.ADMIN, "cli")
MONTH = "2026-02"
SCOPES = (
    "status:read",
    "policy:read",
    "policy:write",
    "spend:read",
    "alerts:read",
    "alerts:write",
    "fleet:read",
    "fleet:write",
    "months:write",
)
#: method, path, scope, status with the right token and no body
CALLS = [
    ("GET", "/api/v1/status", "status:read", 200),
    ("GET", "/api/v1/rho", "status:read", 200),
    ("GET", "/api/v1/quality", "status:read", 200),
    ("GET", "/api/v1/diagnosis", "status:read", 200),
    ("GET", "/api/v1/flow", "status:read", 200),
    ("GET", "/api/v1/flow/timeline", "status:read", 404),
    ("GET", "/api/v1/policy", "policy:read", 200),
    ("POST", "/api/v1/policy", "policy:write", 422),
    ("POST", "/api/v1/policy/rollback", "policy:write", 422),
    ("GET", f"/api/v1/spend/{MONTH}.csv", "spend:read", 200),
    ("GET", f"/api/v1/spend/{MONTH}.xlsx", "spend:read", 200),
    ("GET", f"/api/v1/spend/{MONTH}.parquet?layout=focus", "spend:read", 200),
    ("GET", f"/api/v1/spend/{MONTH}.pdf", "spend:read", 422),
    ("GET", "/api/v1/spend/days", "spend:read", 200),
    ("GET", f"/api/v1/reconciliation/{MONTH}", "spend:read", 404),
    ("GET", "/api/v1/budgets", "spend:read", 200),
    ("GET", f"/api/v1/usage/{MONTH}.csv", "spend:read", 200),
    ("GET", f"/api/v1/usage/{MONTH}", "spend:read", 200),
    ("GET", "/api/v1/months", "spend:read", 200),
    ("GET", f"/api/v1/months/{MONTH}", "spend:read", 200),
    ("GET", f"/api/v1/months/{MONTH}/verification", "spend:read", 409),
    ("POST", f"/api/v1/months/{MONTH}/closing", "months:write", 200),
    ("DELETE", f"/api/v1/months/{MONTH}/closing", "months:write", 200),
    ("POST", f"/api/v1/months/{MONTH}/close", "months:write", 409),  # its closing was not begun
    ("POST", f"/api/v1/months/{MONTH}/corrections", "months:write", 422),
    ("POST", "/api/v1/node-time", "months:write", 422),
    ("GET", "/api/v1/alerts", "alerts:read", 200),
    ("POST", "/api/v1/alerts/1/acknowledge", "alerts:write", 404),
    ("POST", "/api/v1/silences", "alerts:write", 422),
    ("DELETE", "/api/v1/silences/1", "alerts:write", 404),
    ("GET", "/api/v1/alert-rules", "alerts:read", 200),
    ("PUT", "/api/v1/alert-rules/rho_high", "alerts:write", 422),
    ("DELETE", "/api/v1/alert-rules/rho_high", "alerts:write", 200),
    ("GET", "/api/v1/webhooks", "alerts:read", 200),
    ("POST", "/api/v1/webhooks", "alerts:write", 422),
    ("DELETE", "/api/v1/webhooks/pager", "alerts:write", 404),
    ("POST", "/api/v1/webhooks/pager/test", "alerts:write", 404),
    ("POST", "/api/v1/webhooks/pager/retry", "alerts:write", 404),
    ("GET", "/api/v1/nodes", "fleet:read", 200),
    ("POST", "/api/v1/nodes", "fleet:write", 422),
    ("GET", "/api/v1/nodes/n", "fleet:read", 404),
    ("DELETE", "/api/v1/nodes/n", "fleet:write", 404),
    ("POST", "/api/v1/nodes/n/drain", "fleet:write", 404),
    ("POST", "/api/v1/nodes/n/rest", "fleet:write", 404),
    ("POST", "/api/v1/nodes/n/resume", "fleet:write", 404),
    ("POST", "/api/v1/nodes/n/pages", "fleet:write", 422),
    ("GET", "/api/v1/discovery", "fleet:read", 200),
    ("POST", "/api/v1/discovery", "fleet:write", 422),
    ("DELETE", "/api/v1/discovery/s", "fleet:write", 404),
    ("POST", "/api/v1/discovery/s/pause", "fleet:write", 404),
    ("POST", "/api/v1/discovery/s/resume", "fleet:write", 404),
    ("POST", "/api/v1/estimates/compare", "status:read", 422),
    ("GET", "/api/v1/estimates/inputs", "status:read", 200),
    ("GET", "/api/v1/estimates/traces", "status:read", 200),
    ("GET", "/api/v1/estimates/runs", "status:read", 200),
    ("GET", "/api/v1/estimates/runs/1", "status:read", 404),
    ("POST", "/api/v1/estimates/runs", "fleet:write", 422),
    ("POST", "/api/v1/estimates/runs/1/cancel", "fleet:write", 404),
]
OPEN = ["/healthz", "/readyz", "/openapi.json"]


@dataclass
class Api:
    """A served API, its database, and a token for each scope."""

    base_url: str
    database: FreshDatabase
    process: subprocess.Popen[bytes]
    log: Path
    secrets: dict[str, str] = field(default_factory=dict)

    def client(self, scope: str | None = None, *, secret: str | None = None) -> httpx.Client:
        key = self.secrets[scope] if scope else secret
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.base_url, headers=headers, trust_env=False, timeout=30)

    def call(self, method: str, path: str, scope: str | None = None, **extra: Any) -> httpx.Response:
        with self.client(scope) as client:
            return client.request(method, path, **extra)

    def head(self) -> dict[str, Any]:
        answer = self.call("GET", "/api/v1/policy", "policy:read")
        assert answer.status_code == 200
        found: dict[str, Any] = answer.json()
        return found

    def publish(self, document: Any, parent: Any, note: Any = "because", **headers: str) -> httpx.Response:
        body = {"document": document, "parent": parent, "note": note}
        return self.call("POST", "/api/v1/policy", "policy:write", json=body, headers=headers)


def make_token(database: FreshDatabase, *scopes: str, ago: timedelta = timedelta()) -> tokens.NewApiToken:
    """A token made `ago`, good for one day from then."""
    with session_scope(database.engine) as session:
        return tokens.create_api_token(
            session,
            name="+".join(scopes)[:100],
            scopes=scopes,
            days=1,
            actor=ADMIN,
            now=SystemClock().now() - ago,
        )


def seed_spend(database: FreshDatabase) -> None:
    """February 2026: ten node-hours at 12 USD, three tenants, one with a name a spreadsheet would run."""
    quarter = datetime(2026, 2, 10, 12, 0, tzinfo=UTC)
    with session_scope(database.engine) as session:
        session.add(PoolRow(name="a", models=["m"], max_num_seqs=4, created_at=quarter))
        add_price(
            session,
            price_class="on_demand",
            usd_per_node_hour=Decimal(12),
            effective_from=datetime(2026, 2, 1, tzinfo=UTC),
            source="contract of 2026-01",
            actor=ADMIN,
            now=quarter,
        )
        for number in range(40):
            session.add(
                NodeQuarterRow(
                    node=f"n{number % 4}",
                    quarter=quarter + timedelta(minutes=15 * (number // 4)),
                    pool="a",
                    price_class="on_demand",
                    up_s=Decimal(900),
                    last_seen_at=quarter,
                )
            )
        for tenant, engine_s in (("acme", 7_000), ("globex", 13_000), ('=HYPERLINK("x")', 1_001)):
            session.add(
                UsageQuarterRow(
                    quarter=quarter,
                    tenant=tenant,
                    tier="batch",
                    model="m",
                    pool="a",
                    requests=10,
                    prompt_tokens=500,
                    output_tokens=300,
                    engine_s=Decimal(engine_s),
                )
            )


@contextlib.contextmanager
def serving(database: FreshDatabase, log: Path) -> Iterator[Api]:
    """`rhodeck api` as a process on a free port; SIGTERM at the end."""
    environment = dict(os.environ) | {"DATABASE_URL": database.dsn}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "control", "api", "--port", "0"],
            cwd=ROOT,
            env=environment,
            stdout=out,
            stderr=out,
        )

    def address() -> str | None:
        assert process.poll() is None, log.read_text()
        found = re.search(r"running on (http://127\.0\.0\.1:\d+)", log.read_text())
        return found and found[1]

    try:
        api = Api(eventually(address, within_s=60), database, process, log)
        api.secrets = {scope: make_token(database, scope).secret for scope in SCOPES}
        yield api
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@pytest.fixture(scope="module")
def api(database_factory: DatabaseFactory, tmp_path_factory: pytest.TempPathFactory) -> Generator[Api]:
    with (
        database_factory.fresh() as database,
        serving(database, tmp_path_factory.mktemp("api") / "log") as served,
    ):
        seed_spend(database)
        assert served.publish(default_policy().as_document(), 0).status_code == 201
        yield served


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The body of an error: the five keys, nothing of the inside."""
    body: dict[str, Any] = answer.json()
    assert {"error", "message", "hint", "field", "retryable"} <= body.keys()
    assert "Traceback" not in answer.text
    assert "sqlalchemy" not in answer.text.lower()
    assert "psycopg" not in answer.text.lower()
    return body


def rows_written(api: Api) -> int:
    with Session(api.database.engine) as session:
        return session.scalars(text("SELECT count(*) FROM audit")).one()


# --- who may come in -------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "scope", "status"), CALLS)
def test_each_call_opens_to_its_own_scope_only(
    api: Api, method: str, path: str, scope: str, status: int
) -> None:
    expired = make_token(api.database, *SCOPES, ago=timedelta(days=1, seconds=1)).secret
    revoked = make_token(api.database, *SCOPES)
    with session_scope(api.database.engine) as session:
        tokens.revoke_api_token(session, token_id=revoked.id, actor=ADMIN, now=SystemClock().now())
    for secret in (None, expired, revoked.secret, "rk-api-" + "A" * 43, "x" * 5_000):
        with api.client(secret=secret) as client:
            answer = client.request(method, path)
        assert answer.status_code == 401, secret
        assert answer.headers["www-authenticate"] == "Bearer"
        assert error_of(answer)["error"] == "Unauthenticated"
    for other in SCOPES:
        answer = api.call(method, path, other)
        if other == scope:
            assert answer.status_code == status
        else:
            assert answer.status_code == 403
            assert scope in error_of(answer)["message"]


def test_no_call_of_the_description_is_left_out_above(api: Api) -> None:
    described = api.call("GET", "/openapi.json").json()["paths"]
    asked = [(method, path.partition("?")[0]) for method, path, _, _ in CALLS]
    for path, methods in described.items():
        like = re.compile(re.sub(r"\\{[a-z_]+\\}", "[^/]+", re.escape(path)))
        for method in methods.keys() & {"get", "post", "put", "delete", "patch"}:
            known = path in OPEN or any(m == method.upper() and like.fullmatch(p) for m, p in asked)
            assert known, f"{method.upper()} {path} is not tried with other scopes"


@pytest.mark.parametrize("credential", ["", "Bearer", "Basic YTpi", "Bearer\t x", "bearer  ÿ"])
def test_a_malformed_credential_is_401(api: Api, credential: str) -> None:
    answer = api.call("GET", "/api/v1/status", headers=[(b"Authorization", credential.encode("latin-1"))])
    assert answer.status_code == 401


def test_a_token_revoked_between_two_calls_of_one_connection_is_refused(api: Api) -> None:
    made = make_token(api.database, "status:read")
    with api.client(secret=made.secret) as client:
        assert client.get("/api/v1/status").status_code == 200
        with session_scope(api.database.engine) as session:
            tokens.revoke_api_token(session, token_id=made.id, actor=ADMIN, now=SystemClock().now())
        assert client.get("/api/v1/status").status_code == 401


def test_what_needs_no_token_tells_nothing(api: Api) -> None:
    assert api.call("GET", "/healthz").json() == {"status": "up"}
    assert api.call("GET", "/readyz").json() == {"status": "ready"}
    described = api.call("GET", "/openapi.json").text
    assert "acme" not in described
    for header in ("server", "x-powered-by"):
        assert header not in api.call("GET", "/healthz").headers


def test_tokens_are_in_no_log_line(api: Api) -> None:
    api.call("GET", "/api/v1/status", "status:read")
    api.call("GET", f"/{api.secrets['policy:write']}", "policy:read")
    logged = api.log.read_text()
    assert not [scope for scope, secret in api.secrets.items() if secret in logged]


# --- what is described is what is served -----------------------------------------------------------


def test_the_description_names_exactly_the_routes_that_are_served(api: Api) -> None:
    served = {
        (route.path, method)
        for route in build_app(ApiDeps(api.database.engine, SystemClock(), ZoneInfo("UTC"))).routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = api.call("GET", "/openapi.json").json()
    assert described == json.loads(json.dumps(document()))
    assert {(p, m.upper()) for p, ops in described["paths"].items() for m in ops} == served
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            answer = api.call(method.upper(), path.replace("{month}", MONTH))
            assert answer.status_code != 404, (method, path)
            assert (answer.status_code == 401) == ("security" in operation)


def test_every_reference_of_the_description_leads_somewhere() -> None:
    described = document()

    def references(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            for key, value in part.items():
                if key == "$ref":
                    yield value
                else:
                    yield from references(value)
        elif isinstance(part, list):
            for value in part:
                yield from references(value)

    found = set(references(described))
    assert found
    for reference in found:
        target: Any = described
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]
        assert isinstance(target, dict)


def test_the_described_body_of_a_publish_is_the_one_that_is_taken(api: Api) -> None:
    operation = document()["paths"]["/api/v1/policy"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["required"]) == {"document", "parent", "note"}
    for missing in schema["required"]:
        body = {"document": {}, "parent": 0, "note": "x"}
        del body[missing]
        answer = api.call("POST", "/api/v1/policy", "policy:write", json=body)
        assert (answer.status_code, error_of(answer)["field"]) == (422, missing)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/api/v1/status/"),
        ("DELETE", "/api/v1/policy"),
        ("POST", "/api/v1/status"),
        ("GET", "/docs"),
        ("GET", "/api/v1/spend/..%2Fstatus"),
        ("GET", "/" + "x" * 8_000),
        ("GET", "/%00%ff%ed%a0%80"),
    ],
)
def test_a_path_that_is_not_there_is_404_as_json(api: Api, method: str, path: str) -> None:
    answer = api.call(method, path)
    assert answer.status_code == 404
    assert error_of(answer)["hint"] == "See /openapi.json"
    assert len(answer.content) < 1_000


# --- hostile bodies --------------------------------------------------------------------------------

GOOD = {"document": default_policy().as_document(), "parent": 1, "note": "x"}
BODIES: dict[str, tuple[bytes, str | None]] = {
    "empty": (b"", None),
    "no json": (b"{", None),
    "a list": (b"[]", None),
    "a number": (b"1", None),
    "not utf-8": (b"\xff\xfe{}", None),
    "deep": (b"[" * 200_000, None),
    "deep object": (b'{"document":' * 5_000 + b"1" + b"}" * 5_000, None),
    "huge number": (b'{"document": {}, "note": "x", "parent": ' + b"9" * 10_000 + b"}", None),
    "unknown field": (json.dumps(GOOD | {"force": True}).encode(), "force"),
    "half a character": (b'{"document": {}, "parent": 0, "note": "x", "\\ud800": 1}', "\ud800"),
    "half a character in the note": (json.dumps(GOOD | {"note": "\ud800"}).encode(), "note"),
    "nul in the note": (json.dumps(GOOD | {"note": "a\0b"}).encode(), "note"),
    "no note": (json.dumps(GOOD | {"note": "  "}).encode(), "note"),
    "long note": (json.dumps(GOOD | {"note": "x" * 100_000}).encode(), "note"),
    "note is no text": (json.dumps(GOOD | {"note": ["x"]}).encode(), "note"),
    "parent is text": (json.dumps(GOOD | {"parent": "1"}).encode(), "parent"),
    "parent is true": (json.dumps(GOOD | {"parent": True}).encode(), "parent"),
    "parent is negative": (json.dumps(GOOD | {"parent": -1}).encode(), "parent"),
    "parent is large": (json.dumps(GOOD | {"parent": 2**31}).encode(), "parent"),
    "unknown strategy": (json.dumps(GOOD | {"strategy": "now"}).encode(), "strategy"),
    "policy is text": (json.dumps(GOOD | {"document": "[]"}).encode(), ""),
    "policy is a list": (json.dumps(GOOD | {"document": []}).encode(), ""),
    "no number": (
        json.dumps(GOOD | {"document": GOOD["document"] | {"slo": {"ttft_s": float("nan")}}}).encode(),
        "/slo/ttft_s",
    ),
    "unknown part": (json.dumps(GOOD | {"document": GOOD["document"] | {"x~/y": 1}}).encode(), "/x~0~1y"),
    "half a character in the policy": (
        json.dumps(GOOD | {"document": GOOD["document"] | {"\ud800": 1}}).encode(),
        "",
    ),
}


@pytest.mark.parametrize(("body", "where"), BODIES.values(), ids=BODIES.keys())
def test_a_bad_body_is_422_names_the_field_and_changes_nothing(
    api: Api, body: bytes, where: str | None
) -> None:
    before = rows_written(api)
    answer = api.call("POST", "/api/v1/policy", "policy:write", content=body)
    assert answer.status_code == 422
    assert error_of(answer)["field"] == where
    assert len(answer.content) < 5_000
    assert rows_written(api) == before


def test_a_body_without_end_is_cut_off_and_others_are_served(api: Api) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(1_000):
            sent += 64 * 1024
            yield b" " * 64 * 1024

    before = rows_written(api)
    with contextlib.suppress(httpx.TransportError):  # the API may hang up before the body ends
        answer = api.call("POST", "/api/v1/policy", "policy:write", content=endless())
        assert answer.status_code == 422
        assert "2000000 bytes" in error_of(answer)["message"]
    with contextlib.suppress(httpx.TransportError):
        assert api.call("POST", "/api/v1/policy", content=b" " * 3_000_000).status_code == 401
    assert api.call("GET", "/api/v1/status", "status:read").status_code == 200
    assert rows_written(api) == before


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"POST /api/v1/policy HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/v1/policy HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_end_with_an_answer_or_a_closed_socket(api: Api, raw: bytes) -> None:
    port = int(api.base_url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(65_536):
            received += piece
    assert not received.startswith(b"HTTP/1.1 2") or raw.startswith(b"GET / ")
    assert b"Traceback" not in received
    assert api.call("GET", "/healthz").status_code == 200


# --- publishing ------------------------------------------------------------------------------------


def changed(api: Api, ttft_s: float) -> tuple[dict[str, Any], int]:
    """The newest document with another promise, and its number."""
    head = api.head()
    content: dict[str, Any] = head["document"]
    content["slo"]["ttft_s"] = ttft_s
    return content, head["revision"]


def test_a_published_policy_is_the_newest_with_its_author_and_digest(api: Api) -> None:
    content, parent = changed(api, 0.61)
    answer = api.publish(content, parent, "tighter")
    assert answer.status_code == 201
    assert answer.json()["revision"] == parent + 1
    head = api.head()
    assert (head["revision"], head["note"]) == (parent + 1, "tighter")
    assert head["digest"] == answer.json()["digest"] == Policy.model_validate(content).digest()
    assert head["document"] == content
    assert re.fullmatch(r"token at-[0-9a-f]{12} \(policy:write\)", head["author"])


def test_an_overtaken_publish_is_409_with_the_newest_revision_and_what_it_changed(api: Api) -> None:
    content, parent = changed(api, 0.62)
    before = Policy.model_validate(content).slo.ttft_s
    assert before == 0.62
    old = api.head()["document"]["slo"]["ttft_s"]
    first = api.publish(content, parent, "theirs").json()
    content["slo"]["ttft_s"] = 0.63
    answer = api.publish(content, parent, "mine")
    assert answer.status_code == 409
    body = error_of(answer)
    assert body["field"] == "parent"
    assert body["newest"]["revision"] == first["revision"]
    assert body["newest"]["digest"] == first["digest"]
    assert body["newest"]["note"] == "theirs"
    assert body["changes"] == [["/slo/ttft_s", old, 0.62]]
    assert api.head()["revision"] == first["revision"]
    assert api.publish(content, body["newest"]["revision"], "mine").status_code == 201


def test_the_same_key_again_gets_the_first_answer_and_changes_nothing(api: Api) -> None:
    content, parent = changed(api, 0.64)
    first = api.publish(content, parent, "once", **{"Idempotency-Key": "k-64"})
    written = rows_written(api)
    again = api.publish(content, parent, "once", **{"Idempotency-Key": "k-64"})
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert rows_written(api) == written
    content["slo"]["ttft_s"] = 0.65
    other = api.publish(content, parent + 1, "twice", **{"Idempotency-Key": "k-64"})
    assert other.status_code == 409
    assert error_of(other)["field"] == "idempotency_key"
    assert rows_written(api) == written


@pytest.mark.parametrize("key", ["", "a\tb", "x" * 201])
def test_a_key_that_is_none_is_refused(api: Api, key: str) -> None:
    content, parent = changed(api, 0.66)
    answer = api.publish(content, parent, "x", **{"Idempotency-Key": key})
    assert (answer.status_code, error_of(answer)["field"]) == (422, "idempotency_key")


def test_of_calls_sent_at_once_with_one_key_all_get_one_answer(api: Api) -> None:
    content, parent = changed(api, 0.67)

    def send(_: int) -> httpx.Response:
        return api.publish(content, parent, "storm", **{"Idempotency-Key": "k-67"})

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(send, range(6)))
    published = [a.json() for a in answers if a.status_code == 201]
    assert published
    assert {p["revision"] for p in published} == {parent + 1}
    assert {a.status_code for a in answers} <= {201, 409, 503}  # a loser of the race may be told to retry
    assert all(error_of(a)["retryable"] for a in answers if a.status_code != 201)
    assert api.head()["revision"] == parent + 1


def test_of_editors_at_once_exactly_one_wins(api: Api) -> None:
    content, parent = changed(api, 0.7)
    bodies = [content | {"slo": content["slo"] | {"ttft_s": 0.7 + n / 100}} for n in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda body: api.publish(body, parent), bodies))
    assert sorted(a.status_code for a in answers) == [201] + [409] * 5
    assert api.head()["revision"] == parent + 1


def test_a_rollback_brings_the_old_content_as_a_new_revision(api: Api) -> None:
    content, parent = changed(api, 0.81)
    api.publish(content, parent)
    body = {"to": parent, "note": "back"}
    headers = {"Idempotency-Key": "r-81"}
    answers = [
        api.call("POST", "/api/v1/policy/rollback", "policy:write", json=body, headers=headers)
        for _ in range(2)
    ]
    assert [a.status_code for a in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    head = api.head()
    assert head["revision"] == parent + 2 == answers[0].json()["revision"]
    assert head["document"]["slo"]["ttft_s"] != 0.81
    nowhere = {"to": 999_999, "note": "x"}
    answer = api.call("POST", "/api/v1/policy/rollback", "policy:write", json=nowhere)
    assert (answer.status_code, error_of(answer)["field"]) == (404, "to")


# --- spend and status ------------------------------------------------------------------------------


def test_a_month_of_spend_adds_up_to_the_cent_and_can_be_checked(api: Api) -> None:
    answer = api.call("GET", f"/api/v1/spend/{MONTH}.csv", "spend:read")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert len(rows) == int(answer.headers["x-rhodeck-rows"]) == 4
    amounts = {row["tenant"]: Decimal(row["amount_usd"]) for row in rows}
    # 10 node-hours at 12 USD; 4 slots give 144,000 engine-seconds
    assert sum(amounts.values()) == Decimal(answer.headers["x-rhodeck-total-usd"]) == Decimal("120.00")
    assert amounts["acme"] == Decimal("5.83")  # 7,000 / 144,000 of 120
    assert amounts["globex"] == Decimal("10.83")
    assert amounts['\'=HYPERLINK("x")'] == Decimal("0.84")  # 0.8342: its remainder is the second largest
    assert sum(Decimal(row["node_hours"]) for row in rows) == Decimal("10.000000")
    assert {row["status"] for row in rows} == {"complete"}


@pytest.mark.parametrize(
    "month", ["2026-13", "2026-00", "0000-01", "9999-12", "2026", "%00", "x" * 300, "٢٠٢٦-٠٢"]
)
def test_a_month_that_is_none_is_422(api: Api, month: str) -> None:
    answer = api.call("GET", f"/api/v1/spend/{month}.csv", "spend:read")
    assert (answer.status_code, error_of(answer)["field"]) == (422, "month")


def test_a_month_without_anything_says_that_nothing_is_recorded(api: Api) -> None:
    answer = api.call("GET", "/api/v1/spend/2020-01.csv", "spend:read")
    assert (answer.status_code, answer.headers["x-rhodeck-rows"]) == (200, "0")
    assert "x-rhodeck-total-usd" not in answer.headers
    assert answer.headers["x-rhodeck-recorded"] == "false"
    assert len(answer.text.splitlines()) == 1


def test_a_month_with_unpriced_node_time_is_refused_whole(api: Api) -> None:
    with session_scope(api.database.engine) as session:
        session.add(
            NodeQuarterRow(
                node="n9",
                quarter=datetime(2026, 1, 3, tzinfo=UTC),
                pool="a",
                price_class="spot",
                up_s=Decimal(900),
                last_seen_at=datetime(2026, 1, 3, tzinfo=UTC),
            )
        )
    answer = api.call("GET", "/api/v1/spend/2026-01.csv", "spend:read")
    assert answer.status_code == 409
    assert "0.25 node-hours of 2026-01 have no price" in error_of(answer)["message"]


def test_status_says_what_the_command_says(api: Api) -> None:
    answer = api.call("GET", "/api/v1/status", "status:read").json()
    done = subprocess.run(
        [sys.executable, "-m", "control", "status", "--json"],
        cwd=ROOT,
        env=dict(os.environ) | {"DATABASE_URL": api.database.dsn},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1  # no controller runs here
    said = json.loads(done.stdout)
    del said["controller"]  # of the machine the command runs on
    assert {k: v for k, v in said.items() if k != "at"} == {k: v for k, v in answer.items() if k != "at"}
    assert answer["healthy"] is False


def test_calls_of_one_token_do_not_wait_for_each_other(api: Api) -> None:
    """A first use is noted in the token's row; a long call must not hold that row."""
    secret = make_token(api.database, "policy:read", "spend:read").secret
    with session_scope(api.database.engine) as blocker:
        blocker.execute(text("LOCK TABLE policy_revision IN ACCESS EXCLUSIVE MODE"))
        with ThreadPoolExecutor(1) as pool, api.client(secret=secret) as client:
            slow = pool.submit(
                lambda: httpx.get(
                    f"{api.base_url}/api/v1/policy",
                    headers={"Authorization": f"Bearer {secret}"},
                    trust_env=False,
                    timeout=30,
                )
            )
            eventually(lambda: waiting_for_locks(api) > 0)
            answer = client.get("/api/v1/spend/2026-02.csv")
            assert answer.status_code == 200
            assert not slow.done()
            assert slow.result().status_code == 503  # gave up at its lock limit, and said so
            assert error_of(slow.result())["retryable"] is True
    assert api.call("GET", "/api/v1/policy", "policy:read").status_code == 200


def waiting_for_locks(api: Api) -> int:
    with Session(api.database.engine) as session:
        return session.scalars(
            text(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
        ).one()


# --- the process -----------------------------------------------------------------------------------


def test_without_its_schema_it_says_not_ready_and_goes_on(
    database_factory: DatabaseFactory, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with database_factory.fresh() as database, serving(database, log) as api:
        with session_scope(database.engine) as session:
            session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        answer = api.call("GET", "/readyz")
        assert (answer.status_code, api.call("GET", "/healthz").status_code) == (503, 200)
        assert "9999" in error_of(answer)["message"]
        with session_scope(database.engine) as session:
            session.execute(text("DROP TABLE api_token"))
        broken = api.call("GET", "/api/v1/status", "status:read")
        assert broken.status_code == 500
        assert "log" in error_of(broken)["hint"]
        assert api.call("GET", "/healthz").status_code == 200
        api.process.send_signal(signal.SIGTERM)
        assert api.process.wait(30) == -signal.SIGTERM
        assert "Finished server process" in log.read_text()


def test_it_does_not_start_on_an_empty_database(empty_database: FreshDatabase) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "control", "api", "--port", "0"],
        cwd=ROOT,
        env=dict(os.environ) | {"DATABASE_URL": empty_database.dsn},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "rhodeck db upgrade" in done.stderr
    assert "Traceback" not in done.stderr
