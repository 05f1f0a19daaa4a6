"""Sign-in, the door in front of every page, and finance's download, over HTTP with a real Postgres."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
import uvicorn
from sqlalchemy import select
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from control import accounts
from control.database import Role as Connection
from control.database import make_engine, session_scope
from control.roles import Role
from control.tables import AuditRow
from dashboard import access, door
from dashboard import routes as dashboard_routes
from dashboard.deps import Deps, deps
from dashboard.door import Door, token_in
from dashboard.outage import SEEN
from dashboard.routes import routes
from dashboard.sign_in_page import safe_next, sign_in_page
from fleet.clock import ManualClock, SystemClock
from tests.pages.conftest import NOWHERE, forget
from tests.pages.fleet_rows import PASSWORD, add_accounts, fill
from tests.postgres_server import FreshDatabase

HTML = {"accept": "text/html"}
pytestmark = pytest.mark.postgres


async def page(_request: object) -> PlainTextResponse:
    return PlainTextResponse("the page")


async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("hello")
    await websocket.close()


@pytest.fixture
def client(dashboard_on: FreshDatabase, monkeypatch: pytest.MonkeyPatch) -> Generator[httpx.Client]:
    monkeypatch.setenv("RHODECK_SIGN_IN", "local")
    forget()
    now = SystemClock().now()
    with session_scope(dashboard_on.engine) as session:
        fill(session, now)
        add_accounts(session, now)
    app = Starlette(
        routes=[*routes(), WebSocketRoute("/_stcore/stream", socket), Route("/{path:path}", page)],
        middleware=[Middleware(Door)],
    )
    config = uvicorn.Config(app, port=0, log_level="warning", ws="websockets-sansio", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        threading.Event().wait(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as opened:
            yield opened
    finally:
        server.should_exit = True
        thread.join(30)


def sign_in(client: httpx.Client, name: str, password: str = PASSWORD, next_path: str = "/"):
    return client.post("/sign-in", data={"name": name, "password": password, "next": next_path})


def open_socket(client: httpx.Client):
    """Open the page's websocket with the cookies of `client`."""
    cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    url = str(client.base_url.join("/_stcore/stream")).replace("http", "ws", 1)
    return connect(url, additional_headers={"Cookie": cookies} if cookies else {}, proxy=None)


def test_a_deep_link_leads_to_the_form_and_back(client: httpx.Client) -> None:
    away = client.get("/policy?range=15m&tz=local", headers=HTML)
    assert (away.status_code, away.headers["location"]) == (
        303,
        "/sign-in?next=/policy%3Frange%3D15m%26tz%3Dlocal",
    )
    form = client.get(away.headers["location"])
    assert 'value="/policy?range=15m&amp;tz=local"' in form.text
    back = sign_in(client, "viewer", next_path="/policy?range=15m&tz=local")
    assert (back.status_code, back.headers["location"]) == (303, "/policy?range=15m&tz=local")
    cookie = back.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert client.get("/policy", headers=HTML).text == "the page"


def test_while_the_database_is_away_strangers_learn_that_and_no_address(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, away = deps(), make_engine(NOWHERE, role=Connection.CONTROL)
    lost = Deps(known.settings, away, away, known.clock)
    monkeypatch.setattr(SEEN, "answered_at", datetime(2026, 11, 30, 3, 20, 55, tzinfo=UTC))
    monkeypatch.setattr(SEEN, "noticed_at", datetime(2026, 11, 30, 3, 21, 5, tzinfo=UTC))
    monkeypatch.setattr(dashboard_routes, "deps", lambda: lost)
    monkeypatch.setattr(door, "deps", lambda: lost)
    ready, form = client.get("/readyz"), sign_in(client, "viewer")
    file = client.get("/exports/spend/2026-11.csv", headers={"cookie": f"{access.COOKIE}=x"})
    for answer in (ready, form, file):
        assert answer.status_code == 503
        assert "he database does not answer" in answer.text
        assert "noticed at 03:21:05 UTC; its last answer was at 03:20:55 UTC" in answer.text
        assert not any(word in answer.text for word in ("127.0.0.1", "port 1", "connection", "psycopg"))
    away.dispose()


def test_nothing_but_the_form_is_served_to_strangers(client: httpx.Client) -> None:
    assert client.get("/media/file", headers={"accept": "*/*"}).status_code == 401
    assert client.get("/_stcore/metrics").status_code == 401
    assert client.get("/exports/spend/2026-11.csv").status_code == 401
    with pytest.raises(InvalidStatus) as refused, open_socket(client):
        pass
    assert refused.value.response.status_code == 403
    assert client.get("/healthz").text == "ok"
    script = client.get("/vendor/plotly.min.js")
    assert script.status_code == 200
    assert len(script.content) > 1_000_000
    assert script.headers["content-encoding"] == "gzip"


def test_a_signed_in_browser_gets_its_socket_and_the_headers(client: httpx.Client) -> None:
    sign_in(client, "viewer")
    with open_socket(client) as opened:
        assert opened.recv() == "hello"
    headers = client.get("/").headers
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"


def test_wrong_passwords_are_refused_and_then_the_account_is_locked(client: httpx.Client) -> None:
    for _ in range(accounts.MAX_FAILURES):
        refused = sign_in(client, "operator", "not the password")
        assert refused.status_code == 401
        assert "set-cookie" not in refused.headers
        assert "Name or password is wrong" in refused.text
    locked = sign_in(client, "operator")
    assert locked.status_code == 403
    assert "Too many failed sign-ins" in locked.text
    assert sign_in(client, "viewer").status_code == 303


def test_an_ended_sign_in_opens_nothing(client: httpx.Client, dashboard_on: FreshDatabase) -> None:
    sign_in(client, "viewer")
    with session_scope(dashboard_on.engine) as session:
        accounts.sign_out(session, client.cookies[access.COOKIE], SystemClock().now())
    assert client.get("/", headers=HTML).status_code == 303


def test_a_form_of_another_site_is_refused(client: httpx.Client) -> None:
    sent = client.post(
        "/sign-in",
        data={"name": "viewer", "password": PASSWORD},
        headers={"sec-fetch-site": "cross-site"},
    )
    assert sent.status_code == 403
    assert "set-cookie" not in sent.headers


@pytest.mark.parametrize(
    "body", [b"x" * 9_000, b"\xff\xfe", b"&".join(b"a%d=1" % i for i in range(20)), b""]
)
def test_forms_that_cannot_be_read_are_refused(client: httpx.Client, body: bytes) -> None:
    sent = client.post(
        "/sign-in", content=body, headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert sent.status_code in (401, 422)
    assert "set-cookie" not in sent.headers


def test_finance_gets_the_file_others_do_not_and_it_is_on_the_record(
    client: httpx.Client, dashboard_on: FreshDatabase
) -> None:
    month = SystemClock().now().strftime("%Y-%m")
    sign_in(client, "operator")
    refused = client.get(f"/exports/spend/{month}.csv")
    assert refused.status_code == 403
    assert "may not export spend" in refused.text
    assert client.get(f"/exports/usage/{month}.csv").status_code == 403
    sign_in(client, "finance")
    sent = client.get(f"/exports/spend/{month}.csv")
    assert sent.status_code == 200
    assert sent.headers["etag"] == f'"{hashlib.sha256(sent.content).hexdigest()}"'
    assert sent.headers["x-rhodeck-total-usd"] == "7.00"
    assert client.get("/exports/spend/2026-13.csv").status_code == 422
    assert client.get(f"/exports/spend/{month}.pdf").status_code == 422
    for path in (f"spend/{month}.xlsx", f"spend/{month}.parquet?layout=focus", f"usage/{month}.csv"):
        other = client.get(f"/exports/{path}")
        assert other.status_code == 200, path
        assert other.headers["etag"] == f'"{hashlib.sha256(other.content).hexdigest()}"'
    with session_scope(dashboard_on.engine) as session:
        rows = session.scalars(select(AuditRow).where(AuditRow.action == "spend.export")).all()
    assert {row.actor for row in rows} == {"finance"}
    assert len(rows) == 3  # none of what was refused
    assert rows[0].detail["sha256"] == hashlib.sha256(sent.content).hexdigest()


def test_a_page_that_only_ticks_is_signed_out_after_eight_hours(
    client: httpx.Client, dashboard_on: FreshDatabase
) -> None:
    clock = ManualClock(SystemClock().now())
    known = deps()
    of = Deps(known.settings, known.reader, known.writer, clock)
    with session_scope(dashboard_on.engine) as session:
        token = accounts.sign_in(session, name="viewer", password=PASSWORD, now=clock.now())
    clock.advance(timedelta(hours=7).total_seconds())
    assert access.person_of(token, of, is_active=False) is not None  # a tick: no sign of a person
    clock.advance(timedelta(hours=1).total_seconds())
    assert access.person_of(token, of, is_active=False) is None

    with session_scope(dashboard_on.engine) as session:
        token = accounts.sign_in(session, name="viewer", password=PASSWORD, now=clock.now())
    clock.advance(timedelta(hours=7).total_seconds())
    assert access.person_of(token, of, is_active=True) is not None  # a click
    clock.advance(timedelta(hours=7).total_seconds())
    assert access.person_of(token, of, is_active=False) is not None


def test_a_role_that_was_taken_away_is_gone_at_the_next_look(
    client: httpx.Client, dashboard_on: FreshDatabase
) -> None:
    sign_in(client, "operator")
    token = client.cookies[access.COOKIE]
    person = access.person_of(token, deps(), is_active=False)
    assert person is not None
    assert person.role is Role.OPERATOR
    with session_scope(dashboard_on.engine) as session:
        accounts.set_role(
            session,
            name="operator",
            role=Role.VIEWER,
            actor=access.Person("ana", Role.ADMIN, signed_in=True).actor,
            now=SystemClock().now(),
        )
    person = access.person_of(token, deps(), is_active=False)
    assert person is not None
    assert person.role is Role.VIEWER


@pytest.mark.parametrize(
    "asked",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "",
        "/a\nb",
        "/" + "x" * 3_000,
    ],
)
def test_the_form_never_leads_to_another_site(asked: str) -> None:
    assert safe_next(asked) == "/"


def test_the_form_shows_names_as_text() -> None:
    shown = sign_in_page('/"><script>', name='"><script>alert(1)</script>', problem="<b>")
    assert "<script>" not in shown
    assert "<b>" not in shown


@pytest.mark.parametrize("header", ["", "a=b", "rhodeck_sign_in", "\x00=;;;"])
def test_cookie_headers_without_a_token_hold_none(header: str) -> None:
    assert token_in(header) is None


def test_the_token_is_found_among_other_cookies() -> None:
    assert token_in("a=b; rhodeck_sign_in=xyz; c=d") == "xyz"
