"""A body that is handed on as it comes is the body that is read, however it is cut or broken off."""

from __future__ import annotations

import asyncio
import random

import pytest

from admission.upstream import NodeFailed, Overdue, Upstream
from tests.unit.admission.test_wire import (
    ANSWERS,
    CLOSE,
    CLOSED,
    OK,
    SSE,
    Node,
    Seen,
    as_ours,
    packets,
    run,
    until,
)


async def as_piped(upstream: Upstream, url: str, rng: random.Random) -> Seen:
    """Read through a sink that wants no more at random times, until it is asked again."""
    got: list[bytes] = []

    def sink(data: bytes) -> bool:
        got.append(data)
        return rng.random() < 0.7

    try:
        exchange = await upstream.post(url, b"{}", "r1")
        try:
            while not await exchange.pipe(sink):
                await asyncio.sleep(0)
            return exchange.status, exchange.content_type, b"".join(got)
        finally:
            exchange.close()
    except NodeFailed:
        return None


@pytest.mark.parametrize("name", [*ANSWERS, *CLOSED])
def test_a_body_handed_on_is_the_body_read(name: str) -> None:
    rng = random.Random(5)
    answer = {**ANSWERS, **CLOSED}[name]

    async def story(_node: Node, upstream: Upstream, url: str) -> None:
        read = {await as_ours(upstream, url) for _ in range(8)}
        assert len(read) == 1
        assert {await as_piped(upstream, url, rng) for _ in range(16)} == read

    run(story, Node(lambda _: packets(answer, rng) + ([CLOSE] if name in CLOSED else [])))


def test_nothing_comes_to_a_sink_that_wants_no_more() -> None:
    parts = [b"1\r\n%d\r\n" % number for number in range(10)]

    async def story(_node: Node, upstream: Upstream, url: str) -> None:
        exchange, got = await upstream.post(url, b"{}", "r"), list[bytes]()

        def sink(data: bytes) -> bool:
            got.append(data)
            return False

        while not await exchange.pipe(sink):
            count = len(got)
            await asyncio.sleep(0.02)  # more comes meanwhile, and waits
            assert len(got) == count
        assert b"".join(got) == b"0123456789"
        exchange.close()

    run(story, Node(lambda _: [OK + SSE, *parts, b"0\r\n\r\n"]))


def test_a_stream_that_falls_silent_while_it_is_handed_on_is_given_up() -> None:
    async def story(node: Node, upstream: Upstream, url: str) -> None:
        exchange = await upstream.post(url, b"{}", "r")
        with pytest.raises(NodeFailed) as caught:
            await exchange.pipe(lambda _: True)
        assert caught.value.is_timeout
        assert not isinstance(caught.value, Overdue)
        exchange.close()
        await until(lambda: node.left == 1)

    run(story, Node(lambda _: [OK + SSE, b"4\r\nabcd\r\n"]), idle_s=0.2)


@pytest.mark.parametrize("is_piped", [True, False])
def test_an_answer_that_never_ends_is_overdue_though_something_always_comes(is_piped: bool) -> None:
    endless = [OK + SSE] + [b"4\r\nabcd\r\n"] * 200_000

    async def story(node: Node, upstream: Upstream, url: str) -> None:
        exchange = await upstream.post(url, b"{}", "r")
        exchange.ends_within(0.3)
        with pytest.raises(Overdue) as caught:
            await (exchange.pipe(lambda _: True) if is_piped else exchange.body(10**9))
        assert caught.value.is_timeout
        exchange.close()
        await until(lambda: node.left == 1)

    run(story, Node(lambda _: endless))


def test_a_bound_set_while_a_body_is_handed_on_holds_at_once() -> None:
    async def story(node: Node, upstream: Upstream, url: str) -> None:
        exchange = await upstream.post(url, b"{}", "r")

        def sink(data: bytes) -> bool:
            if b"last" in data:
                exchange.ends_within(0.1)
            return True

        with pytest.raises(Overdue):  # and not after the 60 s of silence that an answer may have
            async with asyncio.timeout(30):
                await exchange.pipe(sink)
        exchange.close()
        await until(lambda: node.left == 1)

    run(story, Node(lambda _: [OK + SSE, b"5\r\nfirst\r\n", b"4\r\nlast\r\n"]))


def test_a_connection_is_used_again_after_an_exchange_with_a_bound() -> None:
    async def story(node: Node, upstream: Upstream, url: str) -> None:
        exchange = await upstream.post(url, b"{}", "r")
        exchange.ends_within(0.05)
        await exchange.body(100)
        exchange.close()
        await asyncio.sleep(0.1)  # past the bound of the exchange before
        again = await upstream.post(url, b"{}", "r")
        assert await again.body(100) == b'{"a": "bc"}'
        again.close()
        assert node.connections == 1

    run(story, Node(lambda _: [ANSWERS["length"]]))


def test_a_cancelled_reader_leaves_no_sink_behind() -> None:
    async def story(node: Node, upstream: Upstream, url: str) -> None:
        exchange, got = await upstream.post(url, b"{}", "r"), list[bytes]()

        def sink(data: bytes) -> bool:
            got.append(data)
            return True

        async def relay() -> bool:
            return await exchange.pipe(sink)

        task = asyncio.create_task(relay())
        await until(lambda: bool(got))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        exchange.close()
        count = len(got)
        await until(lambda: node.left == 1)
        assert len(got) == count

    run(story, Node(lambda _: [OK + SSE] + [b"4\r\nabcd\r\n"] * 100_000))
