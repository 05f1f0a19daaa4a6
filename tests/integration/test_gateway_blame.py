"""Whose fault a failed request is: a body that every engine fails ejects nobody, a node that fails goes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from tests.gateway_process import (
    MODEL,
    FakeEngine,
    GatewayProcess,
    Served,
    assignment,
    chat,
    eventually,
)

CHAT = "/v1/chat/completions"


@contextlib.contextmanager
def serving(folder: Path, engines: list[FakeEngine], *flags: str) -> Generator[GatewayProcess]:
    with contextlib.ExitStack() as stack:
        for engine in engines:
            stack.enter_context(engine.serving())
        gateway = stack.enter_context(GatewayProcess(folder / "gw", *flags).running())
        document = assignment(engines)
        document["policy"]["routing"] = {"ejection": {"interval_s": 600.0}}  # however long a test takes
        assert gateway.push(document).status_code == 200
        eventually(lambda: gateway.status()["nodes_usable"] == len(engines))
        yield gateway


def post(client: httpx.Client, text: str, **extra: object) -> int:
    return client.post(CHAT, json=chat(text, **extra)).status_code


def ejections(gateway: GatewayProcess) -> float:
    return gateway.metric("rhodeck_gateway_node_ejections_total")


@pytest.mark.parametrize("flags", [(), ("--retries", "0")])
def test_one_body_that_every_engine_answers_with_500_ejects_no_node(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    engines = [FakeEngine("n1"), FakeEngine("n2")]
    with serving(tmp_path, engines, *flags) as gateway, gateway.client() as client:
        with gateway.client("globex") as other:
            for number in range(50):  # five at a time, without a good answer between: three would do
                if number % 5 == 0:
                    assert [post(other, f"tokens=1 {number}-{one}") for one in range(4)] == [200] * 4
                assert post(client, "fault=500") == 502
        assert ejections(gateway) == 0
        assert gateway.status()["nodes_usable"] == 2
        assert gateway.metric("rhodeck_gateway_ejections_withheld_total") == 0
        assert gateway.metric("rhodeck_gateway_node_failures_excused_total") >= 45


@pytest.mark.parametrize("fault", ["500", "reset"])
def test_a_client_that_changes_its_body_each_time_ejects_no_node_either(tmp_path: Path, fault: str) -> None:
    engines = [FakeEngine(f"n{number}") for number in range(3)]
    with serving(tmp_path, engines) as gateway, gateway.client() as client:
        with gateway.client("globex") as other:
            for number in range(50):
                if number % 10 == 0:
                    assert [post(other, f"tokens=1 {number}-{one}") for one in range(6)] == [200] * 6
                assert post(client, f"fault={fault} number {number}") == 502
        assert ejections(gateway) == 0
        assert gateway.status()["nodes_usable"] == 3


def test_a_body_that_fails_inside_the_stream_ejects_no_node(tmp_path: Path) -> None:
    engines = [FakeEngine("n1"), FakeEngine("n2")]
    with serving(tmp_path, engines) as gateway, gateway.client() as client:
        assert [post(client, f"tokens=1 {one}") for one in range(8)] == [200] * 8
        for _ in range(20):  # nobody can retry it: the client has its first bytes
            assert post(client, "fault=in_stream", stream=True) == 200
        assert ejections(gateway) == 0


@pytest.mark.parametrize("flags", [(), ("--retries", "0")])
def test_a_client_whose_every_request_fails_once_it_is_answered_ejects_no_node(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """Different bodies, five at a time: nobody can retry them, and no body fails twice."""
    engines = [FakeEngine(f"n{number}") for number in range(3)]
    with serving(tmp_path, engines, *flags) as gateway, gateway.client() as client:
        with gateway.client("globex") as other:
            for number in range(60):
                if number % 20 == 0:
                    assert [post(other, f"tokens=1 {number}-{one}") for one in range(6)] == [200] * 6
                assert post(client, f"fault=in_stream number {number}", stream=True) == 200
                if flags:
                    assert post(client, f"fault=500 number {number}") == 502
        assert ejections(gateway) == 0
        assert gateway.status()["nodes_usable"] == 3


def test_a_client_that_asks_for_more_than_can_be_answered_in_time_ejects_no_node(tmp_path: Path) -> None:
    """Eight long answers at a time that are not streamed: none begins in time, the nodes are well."""
    engines = [FakeEngine("n1"), FakeEngine("n2")]
    flags = ("--first-byte-timeout-s", "6")
    with serving(tmp_path, engines, *flags) as gateway, gateway.client() as client:
        with gateway.client("globex") as other, ThreadPoolExecutor(8) as crowd:
            for _ in range(2):
                good = [f"tokens=1 pause=0.5 number {number}" for number in range(8)]  # some at each node
                assert list(crowd.map(lambda text: post(other, text), good)) == [200] * 8
                long = [f"tokens=2 pause=60 number {number}" for number in range(8)]
                assert list(crowd.map(lambda text: post(client, text), long)) == [504] * 8
        assert all(engine.served for engine in engines)
        assert ejections(gateway) == 0
        assert gateway.metric("rhodeck_gateway_node_failures_excused_total") >= 16 - len(engines)


@pytest.mark.parametrize("texts", ["alike", "different"])
def test_a_node_that_answers_500_to_good_bodies_is_out_after_three(tmp_path: Path, texts: str) -> None:
    broken = FakeEngine("n1", is_broken=True)
    engines = [broken, FakeEngine("n2"), FakeEngine("n3")]
    with serving(tmp_path, engines) as gateway, gateway.client() as client:
        for number in range(40):
            assert post(client, "tokens=1" if texts == "alike" else f"tokens=1 number {number}") == 200
        assert len(broken.served) == 3  # each was answered by another: it is the node's fault
        because = gateway.metric(
            "rhodeck_gateway_node_ejections_total", node="n1", because="consecutive_failures"
        )
        assert because == 1


def test_a_node_that_fails_is_out_though_no_client_waits_for_what_another_says(tmp_path: Path) -> None:
    """Who leaves while another node works on it had its request failed all the same."""
    broken = FakeEngine("n1", is_broken=True)
    engines = [broken, FakeEngine("n2")]
    with serving(tmp_path, engines) as gateway, gateway.client() as client:
        for number in range(60):
            with contextlib.suppress(httpx.TimeoutException):
                body = chat(f"tokens=3 pause=60 number {number}")
                client.post(CHAT, json=body, timeout=httpx.Timeout(60, read=3))
            if ejections(gateway):
                break
        assert ejections(gateway) == 1
        assert len(broken.served) < 10  # so often the budget lets a request be tried again


def test_a_node_that_breaks_is_out_though_a_client_used_up_the_retries(tmp_path: Path) -> None:
    broken = FakeEngine("n1")
    engines = [broken, FakeEngine("n2"), FakeEngine("n3")]
    with serving(tmp_path, engines) as gateway, gateway.client() as client:
        with gateway.client("globex") as other:
            assert [post(other, f"tokens=1 {number}") for number in range(12)] == [200] * 12
            for _ in range(60):
                assert post(client, "fault=500") == 502
            assert ejections(gateway) == 0
            broken.is_broken = True
            broken.served.clear()
            answers = [post(other, f"tokens=1 good {number}") for number in range(60)]
        assert len(broken.served) == 3  # different bodies of another client: no proof is needed
        assert answers.count(502) <= 3
        assert ejections(gateway) == 1


def test_a_node_that_answers_nothing_any_more_is_out_though_nothing_is_retried_and_all_is_alike(
    tmp_path: Path,
) -> None:
    """Within the interval in which it answered a body counts once; then each time."""
    broken = FakeEngine("n1")
    engines = [broken, FakeEngine("n2"), FakeEngine("n3")]
    with serving(tmp_path, engines, "--retries", "0") as gateway, gateway.client() as client:
        document = assignment(engines, generation=2)
        document["policy"]["routing"] = {"ejection": {"interval_s": 1.0}}
        assert gateway.push(document).status_code == 200
        assert [post(client, "tokens=1") for _ in range(12)] == [200] * 12
        broken.is_broken = True
        eventually(lambda: post(client, "tokens=1") and ejections(gateway) == 1)
        status = [post(client, "tokens=1") for _ in range(10)]
        assert status == [200] * 10


def test_a_body_that_one_node_fails_and_another_refuses_counts_against_nobody(tmp_path: Path) -> None:
    @dataclass
    class Strict(FakeEngine):
        async def note(self, request: web.Request) -> Served:
            served = await super().note(request)
            if "odd" in str(served.body):
                raise web.HTTPBadRequest(text='{"error":{"message":"bad"}}')
            return served

    @dataclass
    class Old(FakeEngine):
        async def note(self, request: web.Request) -> Served:
            served = await super().note(request)
            if "odd" in str(served.body):
                raise web.HTTPInternalServerError(text="boom")
            return served

    engines: list[FakeEngine] = [Old("n1"), Strict("n2")]
    with serving(tmp_path, engines) as gateway, gateway.client() as client:
        codes = {post(client, f"tokens=1 odd {number % 3}") for number in range(20)}
        assert codes <= {400, 502}
        assert ejections(gateway) == 0
        assert gateway.status()["nodes_usable"] == 2


def test_prefill_nodes_are_judged_alike(tmp_path: Path) -> None:
    engines = [FakeEngine("p1"), FakeEngine("p2"), FakeEngine("d1")]
    with serving(tmp_path, engines) as gateway, gateway.client() as client:
        document = assignment(engines, generation=2)
        for node, role in zip(document["nodes"], ("prefill", "prefill", "decode"), strict=True):
            node["role"] = role
        assert gateway.push(document).status_code == 200
        for number, text in itertools.product(range(6), ("tokens=1", "fault=500")):
            asked = [post(client, f"{text} {number}" if text == "tokens=1" else text) for _ in range(4)]
            assert asked == ([200] * 4 if text == "tokens=1" else [502] * 4)
        assert ejections(gateway) == 0


def test_models_that_one_node_serves_count_its_failures(tmp_path: Path) -> None:
    """Without another node nothing can be compared, and nothing would be won by ejection."""
    engines = [FakeEngine("n1", is_broken=True)]
    with serving(tmp_path, [*engines]) as gateway, gateway.client() as client:
        for number in range(5):
            assert post(client, f"tokens=1 {number}") == 502
        assert gateway.metric("rhodeck_gateway_node_failures_total", node="n1") == 5
        assert gateway.status()["nodes_usable"] == 1
        assert MODEL in client.get("/v1/models").text
