"""Notices on their way to real HTTP servers: signed, in order, again and again, given up in sight."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import random
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from sqlalchemy import select
from sqlalchemy.orm import Session

from control import alerts, lease
from control.alert_delivery import CLAIM_S, MAX_ATTEMPTS, RETRY_AFTER_CAP_S, Courier, backoff_s
from control.alert_observations import Observation
from control.database import session_scope
from control.deps import Deps, Leadership
from control.fetch import open_session
from control.lease import LeaseLost
from control.own_metrics import ControlMetrics
from control.queries_alerts import webhook_views
from control.roles import Actor, Role
from control.secret_files import write_secret
from control.tables import AlertDeliveryRow, AlertNoticeRow, AlertRow, AuditRow, WebhookRow
from control.webhooks import (
    add_webhook,
    make_secret,
    read_secret,
    remove_webhook,
    retry_dead,
    send_test,
    signature,
)
from fleet.clock import ManualClock
from fleet.errors import Conflict, Forbidden, InvalidInput, NotFound, Unavailable
from tests.in_process import closed
from tests.postgres_server import FreshDatabase
from tests.prom_servers import alertmanager

pytestmark = pytest.mark.postgres

T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
ADA = Actor("ada", Role.OPERATOR, "cli")
SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


@dataclass
class Received:
    """One request a receiver got."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def says(self) -> str:
        return f"{json.loads(self.body)['type']} {json.loads(self.body)['data']['rule']}"


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def ok(_: web.Request) -> web.StreamResponse:
    return web.Response(text="thank you")


@dataclass
class Receiver:
    """A real HTTP server that keeps what it got and answers as told."""

    answer: Answer = ok
    got: list[Received] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.got.append(Received(request.path, headers, await request.read()))
        return await self.answer(request)


@asynccontextmanager
async def listening(receiver: Receiver) -> AsyncGenerator[Receiver]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    async with closed(runner):
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield receiver


class House:
    """A database, a clock that moves when told, and controllers that may lead it."""

    def __init__(self, database: FreshDatabase, folder: Path) -> None:
        self.engine = database.engine
        self.clock = ManualClock(T0)
        self.folder = folder
        write_secret(folder / "pager", SECRET + "\n")

    def add(self, name: str, url: str, kind: str = "generic", secret: str | None = "pager") -> None:
        with session_scope(self.engine) as session:
            add_webhook(session, ADA, name=name, url=url, kind=kind, secret_name=secret, now=T0)

    def rounds(self, seconds: float, *seen: Observation) -> None:
        """Apply the same observations every 10 s for `seconds`."""
        for _ in range(round(seconds / 10)):
            self.clock.advance(10)
            with session_scope(self.engine) as session:
                alerts.apply(session, self.clock.now(), 10.0, seen)

    def deliveries(self) -> list[tuple[str, str, int]]:
        """Return (webhook, state, attempts) of every delivery, oldest notice first."""
        d, n = AlertDeliveryRow, AlertNoticeRow
        with session_scope(self.engine) as session:
            rows = session.execute(
                select(d.webhook, d.state, d.attempts).join(n, n.id == d.notice).order_by(n.at, d.webhook)
            )
            return [tuple(row) for row in rows]  # type: ignore[misc]

    @asynccontextmanager
    async def leader(self, owner: str = "a", call_s: float = 20.0) -> AsyncGenerator[Courier]:
        """A controller's courier that leads now; any other one leads no more."""
        with session_scope(self.engine) as session:
            session.connection().exec_driver_sql("UPDATE lease SET expires_at = clock_timestamp()")
            held = lease.take(session, role="controller", owner=owner, ttl_s=3600)
        assert held is not None
        leadership = Leadership(owner, epoch=held.epoch, until_s=1e12)
        async with open_session() as http:
            deps = Deps(self.engine, self.clock, leadership, lambda: http, "unused", rng=random.Random(7))
            yield Courier(deps, http, ControlMetrics(), self.folder, "https://rhodeck.example.org", call_s)


@pytest.fixture
def house(database: FreshDatabase, tmp_path: Path) -> House:
    return House(database, tmp_path)


def frozen(value: float = 1.0) -> Observation:
    return Observation("node_frozen", "node", "n1", value, "n1 stands still", pool="h100")


def high(value: float = 0.95) -> Observation:
    return Observation("rho_high", "fleet", "", value, "rho of the fleet is 0.95")


# ---- the signature --------------------------------------------------------------------------------------


def test_the_signature_is_the_one_the_specification_shows() -> None:
    # the example of the Standard Webhooks reference libraries
    made = signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1_614_265_330,
        b'{"test": 2432232314}',
    )
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("secret", ["whsec_é0123456789abcdef", "whsec_no base64 at all"])
def test_a_secret_that_cannot_sign_is_a_failure_with_a_reason_that_hides_it(secret: str) -> None:
    with pytest.raises(Unavailable) as refused:
        signature(secret, "msg_1", 1, b"{}")
    assert secret.removeprefix("whsec_") not in str(refused.value)


def test_a_notice_arrives_signed_with_links_and_once(house: House) -> None:
    async def run() -> None:
        async with listening(Receiver()) as pager, house.leader() as courier:
            house.add("pager", f"{pager.url}/hook")
            house.rounds(60, frozen())
            assert await courier.tick() == "1 notices delivered"
            assert await courier.tick() == ""
            (got,) = pager.got
            number, stamp = got.headers["webhook-id"], got.headers["webhook-timestamp"]
            signed = f"{number}.{stamp}.".encode() + got.body
            expected = base64.b64encode(hmac.new(b"k" * 32, signed, hashlib.sha256).digest()).decode()
            assert got.headers["webhook-signature"] == f"v1,{expected}"
            assert int(stamp) == int(house.clock.now().timestamp())
            assert got.headers["content-type"] == "application/json"
            said = json.loads(got.body)
            assert (said["type"], got.path) == ("alert.open", "/hook")
            (alert,) = said["data"]["alerts"]
            assert alert["subject"] == "n1"
            assert alert["page"] == f"https://rhodeck.example.org/alerts?alert={alert['id']}"
            assert said["data"]["runbook"] == "https://rhodeck.example.org/alerts?runbook=node_frozen"

    asyncio.run(run())
    assert house.deliveries() == [("pager", "delivered", 1)]


# ---- receivers that misbehave ---------------------------------------------------------------------------


def test_a_receiver_that_is_down_gets_it_when_it_is_back_under_the_same_id(house: House) -> None:
    broken = True

    async def moody(_: web.Request) -> web.StreamResponse:
        return web.Response(status=503, text="later\x07 <b>") if broken else web.Response()

    async def run() -> None:
        nonlocal broken
        async with listening(Receiver(moody)) as pager, house.leader() as courier:
            house.add("pager", pager.url)
            house.rounds(60, frozen())
            assert await courier.tick() == "0 notices delivered, 1 failed: status 503: later <b>"
            assert await courier.tick() == ""  # it waits
            broken = False
            house.clock.advance(5)
            await courier.tick()
            assert [one.path for one in pager.got] == ["/", "/"]
            assert len({one.headers["webhook-id"] for one in pager.got}) == 1
            assert len({one.body for one in pager.got}) == 1

    asyncio.run(run())
    assert house.deliveries() == [("pager", "delivered", 2)]


@pytest.mark.parametrize(
    ("status", "header", "after_s"),
    [
        (429, "120", 120.0),
        (503, "Mon, 02 Mar 2026 12:05:00 GMT", 240.0),  # asked at 12:01:00
        (503, "1", 5.0),  # never sooner than the back-off
        (429, "86400", RETRY_AFTER_CAP_S),
        (429, "soon", 5.0),
        (400, "120", 5.0),  # the answer is no busy one
    ],
)
def test_a_busy_receiver_is_left_alone_for_as_long_as_it_asks_but_not_for_ever(
    house: House, status: int, header: str, after_s: float
) -> None:
    async def busy(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers={"Retry-After": header})

    async def run() -> None:
        async with listening(Receiver(busy)) as pager, house.leader() as courier:
            house.add("pager", pager.url)
            house.rounds(60, frozen())
            assert house.clock.now() == T0 + timedelta(seconds=60)
            await courier.tick()

    asyncio.run(run())
    with session_scope(house.engine) as session:
        (next_at,) = session.scalars(select(AlertDeliveryRow.next_at))
    pause_s = (next_at - T0).total_seconds() - 60
    assert 0.75 * after_s <= pause_s <= after_s  # a back-off has up to a quarter of jitter


def test_waits_double_to_a_cap_and_last_about_an_hour() -> None:
    waits = [backoff_s(attempt, 0.0) for attempt in range(1, MAX_ATTEMPTS)]
    assert waits == [5, 10, 20, 40, 80, 160, 320, 640, 900, 900, 900]
    assert 3000 < sum(waits) < 4500
    assert backoff_s(3, 0.999) == pytest.approx(15, rel=0.01)  # at most a quarter less


def test_what_is_never_taken_is_given_up_shown_and_can_be_tried_again(house: House) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=400, text="no such route")

    async def run() -> None:
        async with listening(Receiver(refuse)) as pager, house.leader() as courier:
            house.add("pager", pager.url)
            house.rounds(60, frozen())
            for _ in range(MAX_ATTEMPTS + 3):
                await courier.tick()
                house.clock.advance(901)
            assert len(pager.got) == MAX_ATTEMPTS
            await courier.tick()
            gauge = courier.metrics.registry.get_sample_value
            assert gauge("rhodeck_control_notices", {"state": "dead"}) == 1
            with session_scope(house.engine) as session:
                (view,) = webhook_views(session)
                assert (view.dead, view.pending, view.last_error) == (1, 0, "status 400: no such route")
                assert retry_dead(session, ADA, name="pager", now=house.clock.now()) == 1
            pager.answer = ok
            await courier.tick()

    asyncio.run(run())
    assert house.deliveries() == [("pager", "delivered", 1)]


def test_a_receiver_that_says_gone_is_not_asked_again(house: House) -> None:
    async def gone(_: web.Request) -> web.StreamResponse:
        return web.Response(status=410)

    async def run() -> None:
        async with listening(Receiver(gone)) as pager, house.leader() as courier:
            house.add("pager", pager.url)
            house.rounds(60, frozen())
            await courier.tick()
            house.clock.advance(1000)
            await courier.tick()
            assert len(pager.got) == 1

    asyncio.run(run())
    assert house.deliveries() == [("pager", "dead", 1)]


def test_redirects_are_not_followed(house: House) -> None:
    async def run() -> None:
        async with listening(Receiver()) as other:

            async def elsewhere(_: web.Request) -> web.StreamResponse:
                return web.Response(status=307, headers={"Location": f"{other.url}/stolen"})

            async with listening(Receiver(elsewhere)) as pager, house.leader() as courier:
                house.add("pager", pager.url)
                house.rounds(60, frozen())
                assert "redirects are not followed" in await courier.tick()
                assert len(pager.got) == 1
                assert other.got == []

    asyncio.run(run())


def test_one_that_hangs_delays_no_other_and_an_endless_answer_is_no_trouble(house: House) -> None:
    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * 65536)

    async def run() -> None:
        async with (
            listening(Receiver(hang)) as stuck,
            listening(Receiver(endless)) as chatty,
            listening(Receiver()) as pager,
            house.leader(call_s=20.0) as courier,
        ):
            for name, where in (("stuck", stuck), ("chatty", chatty), ("pager", pager)):
                house.add(name, where.url)
            house.rounds(60, frozen())
            said = await courier.tick()
            assert said == "2 notices delivered, 1 failed: timeout: no complete answer within 20 s"

    asyncio.run(run())
    assert house.deliveries() == [
        ("chatty", "delivered", 1),
        ("pager", "delivered", 1),
        ("stuck", "pending", 1),
    ]


def test_what_falls_due_while_one_receiver_hangs_goes_to_the_others_meanwhile(house: House) -> None:
    async def run() -> None:
        second, pager = asyncio.Event(), Receiver()

        async def until_the_other_has_the_second(_: web.Request) -> web.StreamResponse:
            await second.wait()
            return web.Response()

        async def count(_: web.Request) -> web.StreamResponse:
            if len(pager.got) == 2:
                second.set()
            return web.Response()

        pager.answer = count
        async with (
            listening(Receiver(until_the_other_has_the_second)) as stuck,
            listening(pager),
            house.leader(call_s=90.0) as courier,
        ):
            house.add("stuck", stuck.url)
            house.add("pager", pager.url)
            house.rounds(60, frozen())
            pass_ = asyncio.create_task(courier.tick())
            while not pager.got:
                await asyncio.sleep(0.05)
            other = Observation("node_frozen", "node", "n2", 1.0, "n2 stands still", pool="a100")
            await asyncio.to_thread(house.rounds, 60, frozen(), other)
            # the pass ends well only if the pager had the second notice while the stuck one still hung
            assert await pass_ == "3 notices delivered"

    asyncio.run(run())
    assert house.deliveries() == [
        ("pager", "delivered", 1),
        ("stuck", "delivered", 1),
        ("pager", "delivered", 1),
        ("stuck", "pending", 0),
    ]


def test_a_closed_port_and_a_missing_secret_are_failures_with_a_reason(house: House) -> None:
    async def run() -> None:
        async with listening(Receiver()) as pager, house.leader() as courier:
            house.add("nobody", "http://127.0.0.1:1/")
            house.add("pager", pager.url, secret="lost")
            house.rounds(60, frozen())
            await courier.tick()
            assert pager.got == []  # never unsigned
            with session_scope(house.engine) as session:
                errors = {view.name: view.last_error or "" for view in webhook_views(session)}
            assert errors["nobody"].startswith("refused:")
            assert "lost cannot be read" in errors["pager"]

    asyncio.run(run())


def test_a_receiver_that_repeats_what_it_was_sent_puts_no_token_on_record(house: House) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        return web.Response(status=401, text=f"refused {request.headers['Authorization']}")

    async def run() -> None:
        async with listening(Receiver(echo)) as receiver, house.leader() as courier:
            house.add("am", receiver.url, kind="alertmanager")
            house.rounds(60, frozen())
            await courier.tick()
        with session_scope(house.engine) as session:
            (view,) = webhook_views(session)
        assert view.last_error == "status 401: refused Bearer ***"

    asyncio.run(run())


def test_a_successor_whose_clock_is_behind_renews_what_is_open_all_the_same(house: House) -> None:
    """Else an Alertmanager takes the alert for over after a quarter of an hour without word."""

    async def run() -> None:
        async with listening(Receiver()) as receiver:
            house.add("am", receiver.url, kind="alertmanager")
            house.rounds(60, frozen())
            async with house.leader() as courier:
                await courier.tick()
            told = len(receiver.got)
            assert told > 0
            house.clock = ManualClock(house.clock.now() - timedelta(minutes=50))
            async with house.leader("b") as courier:
                await courier.tick()
                assert len(receiver.got) == told + 1
                await courier.tick()
                assert len(receiver.got) == told + 1  # and by its own clock not more often than before

    asyncio.run(run())


def test_a_name_that_stands_for_a_metadata_address_is_not_called(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        asked: list[str] = []

        async def rebound(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
            asked.append(host)
            return [(2, 1, 6, "", ("169.254.169.254", port))]

        async with house.leader() as courier:
            house.add("pager", "https://pager.example.org/")
            house.rounds(60, frozen())
            monkeypatch.setattr(loop, "getaddrinfo", rebound)
            said = await courier.tick()
        assert asked == ["pager.example.org"]
        assert "blocked: pager.example.org is 169.254.169.254" in said

    asyncio.run(run())


# ---- order, crashes, leaders ----------------------------------------------------------------------------


def test_the_end_of_an_alert_does_not_overtake_its_beginning_and_others_go_past(house: House) -> None:
    broken = True

    async def picky(request: web.Request) -> web.StreamResponse:
        is_frozen = b'"rule":"node_frozen"' in await request.read()
        return web.Response(status=500) if broken and is_frozen else web.Response()

    async def run() -> None:
        nonlocal broken
        async with listening(Receiver(picky)) as pager, house.leader() as courier:
            house.add("pager", pager.url)
            house.rounds(60, frozen(), high())
            await courier.tick()
            house.rounds(100, frozen(0.0), high())  # over; meanwhile rho passes its two minutes
            await courier.tick()
            assert [one.says for one in pager.got].count("alert.resolved node_frozen") == 0
            assert "alert.open rho_high" in [one.says for one in pager.got]
            broken = False
            for _ in range(3):
                house.clock.advance(900)
                await courier.tick()
            taken = [one.says for one in pager.got if "node_frozen" in one.says]
            assert taken[-2:] == ["alert.open node_frozen", "alert.resolved node_frozen"]
            assert taken.count("alert.resolved node_frozen") == 1

    asyncio.run(run())


def test_a_leader_that_dies_between_call_and_record_is_followed_by_one_that_repeats_the_id(
    house: House,
) -> None:
    async def run() -> None:
        async with listening(Receiver()) as pager:
            house.add("pager", pager.url)
            house.rounds(60, frozen())

            async def killed(_: web.Request) -> web.StreamResponse:
                task.cancel()  # the process ends when the receiver already has it
                return web.Response()

            pager.answer = killed
            async with house.leader("a") as old:
                task = asyncio.create_task(old.tick())
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert house.deliveries() == [("pager", "pending", 1)]
            pager.answer = ok
            async with house.leader("b") as new:
                assert await new.tick() == ""  # still claimed
                house.clock.advance(CLAIM_S)
                await new.tick()
            first, second = pager.got
            assert first.headers["webhook-id"] == second.headers["webhook-id"]

    asyncio.run(run())
    assert house.deliveries() == [("pager", "delivered", 2)]


def test_who_leads_no_more_neither_claims_nor_records(house: House) -> None:
    async def run() -> None:
        async with listening(Receiver()) as pager, house.leader("a") as old:
            house.add("pager", pager.url)
            house.rounds(60, frozen())
            async with house.leader("b") as new:
                with pytest.raises(LeaseLost):
                    await old.tick()
                assert pager.got == []
                assert await new.tick() == "1 notices delivered"
            assert await old.tick() == ""  # it stepped down

    asyncio.run(run())


# ---- commands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "ftp://pager.example.org/",
        "http://169.254.169.254/latest",
        "http://[fd00:ec2::254]/",
        "http://0x7f.1/",
        "http://2130706433/",
        "https://user:secret@pager.example.org/",
        "https://pager.example.org/?token=secret",
        "https://pager.example.org/?",
        "https://pager.example.org/#x",
        "https://pager.example.org/\nHost: evil",
        "https:///nohost",
        "https://pager.example.org/" + "x" * 500,
        "",
    ],
)
def test_hostile_addresses_are_refused_when_added(session: Session, url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        add_webhook(session, ADA, name="pager", url=url, secret_name="pager", now=T0)
    assert caught.value.field == "url"
    assert session.scalars(select(WebhookRow)).all() == []


@pytest.mark.parametrize("name", ["../admin_token", "a/b", "", ".hidden", "A", "x" * 64])
def test_a_secret_is_named_within_its_folder(session: Session, tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        add_webhook(session, ADA, name="pager", url="https://p.example.org/", secret_name=name, now=T0)
    assert caught.value.field == "secret_name"
    with pytest.raises(InvalidInput):
        read_secret(tmp_path, name)


def test_secrets_are_files_of_their_owner_and_never_in_the_database(
    session: Session, tmp_path: Path
) -> None:
    secret, is_new = make_secret(tmp_path / "s", "pager")
    assert is_new
    assert make_secret(tmp_path / "s", "pager") == (secret, False)
    assert (tmp_path / "s" / "pager").stat().st_mode & 0o777 == 0o600
    assert len(base64.b64decode(secret.removeprefix("whsec_"))) == 32
    add_webhook(session, ADA, name="pager", url="https://p.example.org/", secret_name="pager", now=T0)
    session.flush()
    kept = [str(vars(row)) for table in (WebhookRow, AuditRow) for row in session.scalars(select(table))]
    assert secret not in "".join(kept)
    (tmp_path / "short").write_text("tooshort\n")
    with pytest.raises(Unavailable) as caught:
        read_secret(tmp_path, "short")
    assert "tooshort" not in caught.value.message + caught.value.hint


def test_a_removed_webhook_gets_nothing_more_and_its_name_is_free(session: Session) -> None:
    add_webhook(session, ADA, name="pager", url="https://p.example.org/", secret_name="p", now=T0)
    with pytest.raises(Conflict):
        add_webhook(session, ADA, name="pager", url="https://q.example.org/", secret_name="p", now=T0)
    send_test(session, ADA, name="pager", now=T0)
    remove_webhook(session, ADA, name="pager", now=T0 + timedelta(seconds=1))
    session.flush()
    assert session.scalars(select(AlertDeliveryRow.state)).all() == ["dead"]
    with pytest.raises(NotFound):
        send_test(session, ADA, name="pager", now=T0)
    add_webhook(session, ADA, name="pager", url="https://q.example.org/", secret_name="p", now=T0)
    assert [view.url for view in webhook_views(session)] == ["https://q.example.org/"]
    eve = Actor("eve", Role.VIEWER, "page")
    with pytest.raises(Forbidden):
        remove_webhook(session, eve, name="pager", now=T0)


def test_a_test_notice_reaches_the_one_it_is_for_and_is_no_alert(house: House) -> None:
    async def run() -> None:
        async with listening(Receiver()) as pager, listening(Receiver()) as chat, house.leader() as courier:
            house.add("pager", pager.url)
            house.add("chat", chat.url)
            with session_scope(house.engine) as session:
                send_test(session, ADA, name="pager", now=house.clock.now())
            await courier.tick()
            assert [one.says for one in pager.got] == ["alert.test test"]
            assert chat.got == []
            with session_scope(house.engine) as session:
                assert session.scalars(select(AlertRow)).all() == []

    asyncio.run(run())


# ---- a real Alertmanager --------------------------------------------------------------------------------


def listed(url: str) -> list[dict[str, Any]]:
    """Return what an Alertmanager holds as active, by its own API."""
    with urllib.request.urlopen(f"{url}/api/v2/alerts?active=true", timeout=60) as answer:
        return json.load(answer)


def ends(alert: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(alert["endsAt"])


def test_a_real_alertmanager_shows_what_is_open_and_forgets_what_is_over(
    house: House, tmp_path: Path
) -> None:
    house.clock = ManualClock(datetime.now(UTC) - timedelta(seconds=300))

    async def run(url: str) -> None:
        async with house.leader() as courier:
            house.add("am", url, "alertmanager", secret=None)
            house.rounds(60, frozen())
            assert "failed" not in await courier.tick()
            (alert,) = await asyncio.to_thread(listed, url)
            assert alert["labels"] == {
                "alertname": "node_frozen",
                "service": "rhodeck",
                "severity": "critical",
                "scope": "node",
                "subject": "n1",
                "pool": "h100",
            }
            assert alert["status"]["state"] == "active"
            assert alert["annotations"]["summary"] == "n1 stands still"
            runbook = "https://rhodeck.example.org/alerts?runbook=node_frozen"
            assert alert["annotations"]["runbook_url"] == runbook
            assert alert["generatorURL"].startswith("https://rhodeck.example.org/alerts?alert=")
            house.rounds(60, frozen())  # it is told again each minute, and ends later each time
            assert await courier.tick() == "1 notices delivered"
            (again,) = await asyncio.to_thread(listed, url)
            assert again["fingerprint"] == alert["fingerprint"]
            assert ends(again) > ends(alert)
            house.rounds(100, frozen(0.0))
            assert "failed" not in await courier.tick()
            assert await asyncio.to_thread(listed, url) == []
            with session_scope(house.engine) as session:
                send_test(session, ADA, name="am", now=house.clock.now())
            assert await courier.tick() == "1 notices delivered"

    with alertmanager(tmp_path) as server:
        asyncio.run(run(server.url))
