"""Exact quotas against a real Valkey: counted once over all gateways, and never open without it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from admission.exact_quota import BUDGET_S, ExactQuotas, Hold
from admission.quota_lease import QuotaLeases
from admission.quota_wire import Script, StoreError, address_of, connect
from admission.waiting import WaitingRoom
from control.assignments import build
from fleet.clock import Clock, SystemClock
from fleet.errors import InvalidInput
from fleet.gate import Gate
from fleet.messages import NodeTarget
from fleet.offers import Dispatch, NodeState, Refused, Request
from fleet.outcomes import Outcome
from fleet.policy import Policy, parse
from tests.gateway_process import MODEL, assignment
from tests.quota_store import QuotaStore

TENANT = "acme"
NAMES = ["gw-1", "gw-2", "gw-3"]
#: A token a second flows back: nothing that a test waits for.
QUOTA = {
    "tokens_per_minute": 60,
    "burst_tokens": 1_000,
    "max_in_flight_tokens": 100_000,
    "max_concurrent_requests": 1_000,
}
DEADLINE_S = 60.0
#: More than the real budget, so that a busy machine is not taken for a dead store.
PATIENCE_S = 1.0


@pytest.fixture
def store(tmp_path: Path) -> Generator[QuotaStore]:
    with QuotaStore(tmp_path / "store").running() as store:
        yield store


ZEROS = ("tokens_per_minute", "max_in_flight_tokens", "max_concurrent_requests")


def policy_of(**quota: int) -> Policy:
    document = assignment([])["policy"]
    tenant = document["tenants"][TENANT] | QUOTA | quota | {"quota_mode": "exact"}
    return parse(document | {"tenants": {TENANT: tenant}})


class SkewedClock(SystemClock):
    """The clocks of a machine whose wall time, and time since its start, are off by so much."""

    def __init__(self, skew_s: float) -> None:
        self._skew_s = skew_s

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self._skew_s)

    def unix_s(self) -> float:
        return super().unix_s() + self._skew_s

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self._skew_s


class Member:
    """A gateway's admission without its HTTP: gate, waiting room, leases, exact quotas."""

    def __init__(
        self, name: str, url: str, folder: Path, policy: Policy, life_s: float, clock: Clock
    ) -> None:
        gate = Gate(random.Random(1), prior_output_tokens=0)
        self.room = WaitingRoom(gate, clock)
        folder.mkdir(exist_ok=True)
        self.leases = QuotaLeases(name, f"boot-{name}", folder, gate.accounts, clock)
        self.exact = ExactQuotas(
            address_of(url), "test", gate, self.leases, clock, random.Random(2), life_s, PATIENCE_S
        )
        self.room.exact = self.exact
        node = NodeTarget(
            name="n1", pool="p", base_url="http://127.0.0.1:9", models=(MODEL,), kv_capacity_tokens=10**9
        )
        self.assignment = build(policy, 1, NAMES, [node], [], ())[name]
        self.leases.rebase(self.assignment, "digest")
        gate.apply(self.assignment, clock.monotonic_s())
        self.exact.take_in(self.assignment)
        gate.observe([NodeState("n1", True, clock.monotonic_s() + 3_600, 10**9, 0.0, 0, 0)], 0.0)
        self.gate = gate
        self.beating: asyncio.Task[None] | None = None

    async def ask(self, tokens: int) -> Any:
        """Offer a request that books exactly `tokens`."""
        request = Request("r", TENANT, None, MODEL, "embeddings", tokens, 0)
        return await self.room.admit(request)

    def end(self, dispatch: Dispatch, used: int) -> None:
        self.room.release(dispatch.lease, prompt_tokens=used, output_tokens=0, outcome=Outcome.COMPLETED)

    def share(self) -> int:
        found = self.gate.accounts.find(TENANT)
        assert found is not None
        return found.share.burst_tokens


@contextlib.asynccontextmanager
async def members(
    url: str,
    folder: Path,
    count: int = 3,
    *,
    life_s: float = 30.0,
    trusted: bool = True,
    skews_s: tuple[float, ...] = (0.0, 0.0, 0.0),
    **quota: int,
) -> AsyncIterator[list[Member]]:
    policy = policy_of(**quota)
    made = [
        Member(name, url, folder / name, policy, life_s, SkewedClock(skew_s))
        for name, skew_s in zip(NAMES[:count], skews_s, strict=False)
    ]
    for member in made:
        member.beating = asyncio.create_task(member.exact.run())
    try:
        if trusted:
            await eventually(lambda: all(member.exact.is_trusted for member in made))
        yield made
    finally:
        for member in made:
            assert member.beating is not None
            member.beating.cancel()
            member.room.close()
        await asyncio.gather(*(m.beating for m in made if m.beating), return_exceptions=True)
        await asyncio.sleep(0.01)  # transports close in the loop's next turns


async def eventually(probe: Callable[[], Any]) -> Any:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + DEADLINE_S
    while loop.time() < until_s:
        found = probe()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError("it never became true")


def held_in(store: QuotaStore, field: str) -> float:
    answer = store.ask("HGET", f"{{test:{TENANT}}}:quota", field)
    return 0.0 if answer.startswith(b"$-1") else float(answer.split(b"\r\n")[1])


def test_parallel_requests_at_three_gateways_get_the_burst_once(store: QuotaStore, tmp_path: Path) -> None:
    async def go() -> None:
        async with members(store.url, tmp_path) as three:
            answers = await asyncio.gather(*(three[place % 3].ask(100) for place in range(60)))
            assert sum(isinstance(answer, Dispatch) for answer in answers) == 10  # 1,000 / 100
            refused = [answer for answer in answers if isinstance(answer, Refused)]
            assert {answer.outcome for answer in refused} == {Outcome.REJECTED_QUOTA_RATE}
            assert all(1 <= (answer.retry_after_s or 0) <= 60 for answer in refused)  # the policy's cap
            assert len({answer.retry_after_ms for answer in refused}) > 1
            limit = refused[0].limit
            assert limit is not None
            assert (limit.name, limit.quota, limit.needed) == ("tokens_per_minute", 60, 100)
            assert limit.reset_s is not None
            assert 30 < limit.reset_s <= 100  # one token flows back a second

    asyncio.run(go())


def test_gateways_with_clocks_an_hour_off_mint_and_lose_nothing(store: QuotaStore, tmp_path: Path) -> None:
    """By the clock of one an hour passes between two calls, which is 3,600 tokens at 60 a minute."""

    def server_s() -> float:
        seconds, micros = store.ask("TIME").split(b"\r\n")[2::2][:2]
        return int(seconds) + int(micros) / 1e6

    async def go() -> None:
        began_s = server_s()
        async with members(store.url, tmp_path, skews_s=(3_600.0, -3_600.0, 0.0)) as (fast, slow, right):
            first, second = await fast.ask(500), await slow.ask(300)
            assert isinstance(first, Dispatch)
            assert isinstance(second, Dispatch)
            fast.end(first, used=200)
            slow.end(second, used=300)
            await eventually(lambda: held_in(store, "T") == 0)
            # 1,000 less 500 are left, whoever asks, and what flowed back: a token a second of the server's.
            refused = await fast.ask(600)
            assert isinstance(refused, Refused)
            assert refused.outcome is Outcome.REJECTED_QUOTA_RATE
            flowed = server_s() - began_s  # at most
            assert flowed < 90, "the machine stood still: nothing can be told"
            assert isinstance(await slow.ask(600), Refused)
            third = await right.ask(400)
            assert isinstance(third, Dispatch)
            assert isinstance(await slow.ask(200), Refused)  # 100 are left
            # The level is the sum of what was taken, less what flowed back by the server's time.
            right.end(third, used=400)
            await eventually(lambda: held_in(store, "T") == 0)
            assert 900 - (server_s() - began_s) <= held_in(store, "x") <= 900
            assert all(member.exact.is_trusted for member in (fast, slow, right))

    asyncio.run(go())


def test_what_was_not_used_flows_back_and_refused_requests_burn_nothing(
    store: QuotaStore, tmp_path: Path
) -> None:
    async def go() -> None:
        async with members(store.url, tmp_path, 2) as (one, two):
            whole = await one.ask(1_000)
            assert isinstance(whole, Dispatch)
            for _ in range(5):
                assert isinstance(await two.ask(500), Refused)
            one.end(whole, used=400)
            await eventually(lambda: held_in(store, "T") == 0)
            assert isinstance(await two.ask(600), Dispatch)  # 1,000 - 400, the refused ones left no mark
            assert isinstance(await one.ask(100), Refused)

    asyncio.run(go())


def test_more_used_than_reserved_is_owed(store: QuotaStore, tmp_path: Path) -> None:
    async def go() -> None:
        async with members(store.url, tmp_path, 1) as (one,):
            first = await one.ask(100)
            assert isinstance(first, Dispatch)
            one.end(first, used=1_500)
            await eventually(lambda: held_in(store, "x") > 1_400)
            refused = await one.ask(1)
            assert isinstance(refused, Refused)
            assert refused.limit is not None
            assert refused.limit.used > 1_400
            assert refused.limit.left is not None
            assert refused.limit.left < -400  # the burst is 1,000

    asyncio.run(go())


@pytest.mark.parametrize(
    ("quota", "outcome"),
    [
        ({"max_in_flight_tokens": 300}, Outcome.REJECTED_QUOTA_TOKENS),
        ({"max_concurrent_requests": 3}, Outcome.REJECTED_QUOTA_REQUESTS),
        ({"tokens_per_minute": 0}, Outcome.REJECTED_QUOTA_RATE),
        (dict.fromkeys(ZEROS, 0), Outcome.REJECTED_QUOTA_RATE),  # of several of 0, the one that shuts all
    ],
)
def test_each_limit_holds_over_all_gateways(
    store: QuotaStore, tmp_path: Path, quota: dict[str, Any], outcome: Outcome
) -> None:
    async def go() -> None:
        async with members(store.url, tmp_path, **quota) as three:
            answers = [await three[place % 3].ask(100) for place in range(5)]
            served = [answer for answer in answers if isinstance(answer, Dispatch)]
            assert len(served) == (0 if "tokens_per_minute" in quota else 3)
            assert {answer.outcome for answer in answers if isinstance(answer, Refused)} == {outcome}
            if served:
                three[0].end(served[0], used=100)
                await eventually(lambda: held_in(store, "R") == 2)
                assert isinstance(await three[1].ask(100), Dispatch)

    asyncio.run(go())


def test_a_killed_gateways_reservations_come_back(store: QuotaStore, tmp_path: Path) -> None:
    async def go() -> None:
        async with members(store.url, tmp_path, 2, life_s=1.5, max_in_flight_tokens=500) as (one, two):
            assert isinstance(await one.ask(300), Dispatch)
            assert isinstance(await two.ask(200), Dispatch)
            assert isinstance(await two.ask(100), Refused)
            assert one.beating is not None
            one.beating.cancel()  # no beat, no settlement: as if killed

            async def is_admitted() -> bool:
                return isinstance(await two.ask(300), Dispatch)

            await eventually(is_admitted)
            assert isinstance(await two.ask(100), Refused)  # its own 500 are held: it lives

    asyncio.run(go())


def test_a_long_request_outlives_any_life_while_its_gateway_beats(
    store: QuotaStore, tmp_path: Path
) -> None:
    async def go() -> None:
        async with members(store.url, tmp_path, 2, life_s=0.6, max_in_flight_tokens=300) as (one, two):
            assert isinstance(await one.ask(300), Dispatch)
            await asyncio.sleep(2.0)  # more than three lives; however late, the beats are later still
            assert isinstance(await two.ask(100), Refused) or not two.exact.is_trusted

    asyncio.run(go())


def test_a_frozen_store_costs_one_request_its_budget_and_the_lease_decides(
    store: QuotaStore, tmp_path: Path
) -> None:
    async def go() -> None:
        async with members(store.url, tmp_path) as three:
            assert [member.share() for member in three] == [1_000] * 3
            with store.frozen():
                for member in three:
                    await member.ask(10)
                assert [member.exact.is_trusted for member in three] == [False] * 3
                # The parts of 1,000 sum to 1,000: not N times wide. Each already served 10 of its own.
                assert sum(member.share() for member in three) == 1_000
                answers = await asyncio.gather(*(three[n % 3].ask(50) for n in range(60)))
                served = sum(isinstance(answer, Dispatch) for answer in answers)
                assert 1 <= served * 50 + 30 <= 1_000
            await eventually(lambda: all(member.exact.is_trusted for member in three))
            # What the leases admitted is charged: the store hands out no second burst.
            answers = await asyncio.gather(*(three[n % 3].ask(50) for n in range(60)))
            again = sum(isinstance(answer, Dispatch) for answer in answers)
            assert (served + again) * 50 + 30 <= 1_000 + 60  # and a minute's flow at most

    asyncio.run(go())


async def served(three: list[Member], tokens: int, count: int = 60, first: int = 0) -> int:
    """Ask everywhere at once, in turns from the `first`; return the tokens that were let through."""
    asked = (three[place % 3].ask(tokens) for place in range(first, first + count))
    answers = await asyncio.gather(*asked)
    return tokens * sum(isinstance(answer, Dispatch) for answer in answers)


def test_a_burst_that_was_used_is_not_had_again_when_the_store_goes(
    store: QuotaStore, tmp_path: Path
) -> None:
    async def go() -> None:
        loop = asyncio.get_running_loop()
        async with members(store.url, tmp_path, tokens_per_minute=30_000) as three:
            began_s, total, turn = loop.time(), 0, 0

            async def are_full() -> bool:  # parts of 333, though the store has let all there is be used
                nonlocal total, turn
                turn += 1
                total += await served(three, 50, 30, turn)
                buckets = [member.gate.accounts.find(TENANT).bucket for member in three]  # type: ignore[union-attr]
                return min(bucket.left_tokens(loop.time()) for bucket in buckets) >= 333

            await eventually(are_full)
            store.kill()
            await eventually(lambda: not any(member.exact.is_trusted for member in three))
            total += await served(three, 10, 300)
            assert total <= 1_000 + 500 * (loop.time() - began_s)

    asyncio.run(go())


def test_what_the_store_had_left_is_had_by_leases(store: QuotaStore, tmp_path: Path) -> None:
    async def go() -> None:
        async with members(store.url, tmp_path) as three:
            for member in three:
                assert isinstance(await member.ask(100), Dispatch)
            store.kill()
            await eventually(lambda: not any(member.exact.is_trusted for member in three))
            # Each has used 100 of its part of 333; they heard of 900, 800 and 700 left, a third of it each.
            assert 3 * 233 <= await served(three, 1, 1_200) <= 299 + 266 + 233 + 60

    asyncio.run(go())


def test_a_store_that_is_late_now_and_then_mints_and_loses_nothing(
    store: QuotaStore, tmp_path: Path
) -> None:
    async def go() -> None:
        async with members(store.url, tmp_path) as three:
            total = await served(three, 100, 6)
            assert total == 600
            for _ in range(4):
                with store.frozen():
                    total += await served(three, 1, 3)
                    assert not any(member.exact.is_trusted for member in three)
                await eventually(lambda: all(member.exact.is_trusted for member in three))
            # Nothing is told to the store that was not used; what was is.
            total += await served(three, 10)
            assert 900 <= total <= 1_000 + 60

    asyncio.run(go())


def test_a_reservation_nobody_waited_for_is_given_back(store: QuotaStore, tmp_path: Path) -> None:
    async def go() -> None:
        async with members(store.url, tmp_path, 1) as (one,):
            with store.frozen():
                asked = await one.ask(700)  # more than its part of the burst: passes from a full bucket
            assert isinstance(asked, Dispatch)
            one.end(asked, used=0)
            await eventually(lambda: one.exact.is_trusted)
            await eventually(lambda: held_in(store, "T") == 0)
            await eventually(lambda: held_in(store, "x") < 10)

    asyncio.run(go())


def test_a_killed_store_is_replaced_by_leases_and_trusted_again(store: QuotaStore, tmp_path: Path) -> None:
    async def go() -> None:
        async with members(store.url, tmp_path) as three:
            first = await three[0].ask(300)
            assert isinstance(first, Dispatch)
            store.kill()
            await eventually(lambda: not any(member.exact.is_trusted for member in three))
            assert sum(member.share() for member in three) == 1_000
            store.start()
            await eventually(lambda: all(member.exact.is_trusted for member in three))
            # It came back empty; what is held was told to it.
            await eventually(lambda: held_in(store, "T") == 300)
            three[0].end(first, used=300)
            await eventually(lambda: held_in(store, "T") == 0)

    asyncio.run(go())


def test_scripts_that_the_store_forgot_are_sent_again_and_it_goes_on_deciding(
    store: QuotaStore, tmp_path: Path
) -> None:
    async def go() -> None:
        async with members(store.url, tmp_path, 1) as (one,):
            kept = await one.ask(100)
            assert isinstance(kept, Dispatch)
            assert store.ask("SCRIPT", "FLUSH").startswith(b"+OK")
            # All at once: each is decided by the store, none by the lease.
            answers = await asyncio.gather(*(one.ask(10) for _ in range(20)))
            assert all(isinstance(answer, Dispatch) for answer in answers)
            assert (one.exact.counts.reserved, one.exact.counts.by_lease) == (21, 0)
            assert store.ask("SCRIPT", "FLUSH").startswith(b"+OK")
            one.end(kept, used=100)
            await eventually(lambda: held_in(store, "T") == 20 * 10)
            assert (one.exact.is_trusted, one.exact.counts.failures) == (True, 0)

    asyncio.run(go())


def test_a_store_that_never_keeps_scripts_is_sent_each_once_a_call(tmp_path: Path) -> None:
    """A server behind a proxy that says NOSCRIPT to everything: no call repeats without end."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                words: list[bytes] = []
                for _ in range(int((await reader.readline())[1:] or b"0")):
                    length = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(length + 2))[:-2])
                if not words:
                    break
                seen.append(words[0])
                writer.write(b"-NOSCRIPT no matching script\r\n")
        writer.close()

    async def go() -> None:
        server = await asyncio.start_unix_server(serve, str(tmp_path / "sock"))
        lost: list[bool] = []
        wire = await connect(address_of(f"unix://{tmp_path}/sock"), [], lambda: lost.append(True))
        reply = await wire.run(Script("return 1"), b"0")
        assert isinstance(reply, StoreError)
        assert seen == [b"EVALSHA", b"EVAL"]
        wire.close()
        await eventually(lambda: bool(lost))
        server.close()
        await server.wait_closed()

    asyncio.run(go())


def test_without_a_store_from_the_start_the_lease_decides(tmp_path: Path) -> None:
    async def go() -> None:
        nowhere = f"unix://{tmp_path}/none.sock"
        async with members(nowhere, tmp_path, trusted=False) as three:
            answers = await asyncio.gather(*(three[n % 3].ask(50) for n in range(60)))
            served = sum(isinstance(answer, Dispatch) for answer in answers)
            assert served == 18  # 333, 333 and 334 of 1,000 hold six requests of 50 each

    asyncio.run(go())


def test_a_password_is_asked_for_and_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = "hunter2-canary"
    with QuotaStore(tmp_path / "store", "--requirepass", secret).running() as store:
        right = store.url.replace("redis://", f"redis://:{secret}@")
        wrong = store.url.replace("redis://", "redis://:canary-wrong@")

        async def go(url: str, trusted: bool) -> None:
            async with members(url, tmp_path, 1, trusted=trusted) as (one,):
                if not trusted:
                    await asyncio.sleep(0.3)
                assert one.exact.is_trusted is trusted
                assert "canary" not in repr(one.exact.address)

        with caplog.at_level(logging.DEBUG):
            asyncio.run(go(right, True))
            asyncio.run(go(wrong, False))
        assert "canary" not in caplog.text


@pytest.mark.parametrize(
    "url",
    ["http://h:1", "redis://:canary@h:notaport", "redis://:canary@", "redis://:canary@h/x", "unix://"],
)
def test_a_url_that_cannot_be_used_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        address_of(url)
    assert "canary" not in str(refused.value) + refused.value.hint


def test_a_tls_store_is_asked_only_where_its_certificate_is_trusted(
    store: QuotaStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"],
            *["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
            *["-keyout", str(key), "-out", str(cert)],
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def front(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes between a client's TLS and the server, which speaks none."""
        behind, onward = await asyncio.open_connection("127.0.0.1", store.port)

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, ssl.SSLError):
                while data := await source.read(65_536):
                    sink.write(data)
            sink.close()

        await asyncio.gather(copy(reader, onward), copy(behind, writer))

    async def go(trusted: bool) -> None:
        async with await asyncio.start_server(front, "127.0.0.1", 0, ssl=context) as server:
            url = f"rediss://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with members(url, tmp_path, 1, trusted=trusted) as (one,):
                if not trusted:
                    await asyncio.sleep(0.5)
                assert one.exact.is_trusted is trusted

    asyncio.run(go(False))
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    asyncio.run(go(True))


def test_the_budget_is_that_of_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()
    assert f"{BUDGET_S * 1000:g} ms" in text
    assert Hold(TENANT, 1).is_open
