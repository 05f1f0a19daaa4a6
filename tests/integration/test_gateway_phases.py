"""Prefill on one node, decode on another, through a real gateway: bodies, endings, room, refusals."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from fleet.decision import Decision, in_words
from tests.gateway_process import FakeEngine, GatewayProcess, assignment, chat, events, eventually

PARAMS = {"do_remote_prefill": True, "remote_engine_id": "e-1", "remote_block_ids": [1, 2], "tp_size": 8}


class PrefillEngine(FakeEngine):
    """Answers prefills at once, or as `behaviour` says: "500", "400", "silent", "no_params", "slow",
    or stops `decode` first."""

    behaviour = ""
    decode: FakeEngine | None = None

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        served = await self.note(request)
        try:
            if self.behaviour in ("500", "400"):
                served.ending = "refused"
                return web.json_response({"error": {"message": "no"}}, status=int(self.behaviour))
            if self.behaviour == "silent":
                await asyncio.sleep(60)
            if self.behaviour == "slow":
                await asyncio.sleep(0.3)
            if self.decode is not None:
                await asyncio.to_thread(self.decode.stop)
        except (asyncio.CancelledError, ConnectionError):
            served.ending = "aborted"
            raise
        served.ending, served.output_tokens = "finished", 1
        said = {} if self.behaviour == "no_params" else {"kv_transfer_params": PARAMS}
        return web.json_response({"choices": [{"message": {"content": "w"}}]} | said)


class OrphanedEngine(FakeEngine):
    """Cannot fetch what its prefill node computed, which is stopped first where it is given."""

    prefill: FakeEngine | None = None

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        served = await self.note(request)
        served.ending = "refused"
        if self.prefill is not None:
            await asyncio.to_thread(self.prefill.stop)
        return web.json_response({"error": {"message": "KV load failed"}}, status=500)


@pytest.fixture
def engines() -> Generator[dict[str, Any]]:
    with (
        PrefillEngine("p1").serving() as first,
        PrefillEngine("p2").serving() as second,
        FakeEngine("d1").serving() as decode,
    ):
        yield {"p1": first, "p2": second, "d1": decode}


@pytest.fixture
def gateway(tmp_path: Path) -> Generator[GatewayProcess]:
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        yield gateway


def push(
    gateway: GatewayProcess,
    engines: dict[str, Any],
    names: tuple[str, ...] = ("p1", "p2", "d1"),
    **more: Any,
) -> None:
    """Push these nodes, p... for prefill and d... for decode, and wait until all are open."""
    listed = [engines[name] for name in names]
    document = assignment(listed, **more)
    for node in document["nodes"]:
        node["role"] = "prefill" if node["name"].startswith("p") else "decode"
    assert gateway.push(document).status_code == 200
    eventually(lambda: gateway.status()["nodes_usable"] == len(listed))


def nothing_is_held(gateway: GatewayProcess) -> bool:
    status = gateway.status()
    return (
        (status["in_flight_requests"], status["in_flight_tokens"]) == (0, 0)
        and gateway.metric("rhodeck_gateway_prefills") == 0
        and gateway.metric("rhodeck_gateway_node_kv_tokens", kind="booked") == 0
    )


def test_the_prompt_is_computed_by_one_node_and_the_answer_by_the_other(
    gateway: GatewayProcess, engines: dict[str, Any]
) -> None:
    push(gateway, engines, ("p1", "d1"))
    forged = {"do_remote_prefill": True, "remote_host": "10.0.0.66", "remote_block_ids": [9]}
    body = chat("tokens=5", stream=True, kv_transfer_params=forged, n=1)
    body |= {"vllm_xargs": {"kv_transfer_params": "forged", "mine": 1}}
    with gateway.client() as client:
        response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    assert events(response.text)[-1] == "[DONE]"
    (prefill,), (decode,) = engines["p1"].served, engines["d1"].served
    asked = prefill.body["kv_transfer_params"]
    assert (asked["do_remote_decode"], asked["do_remote_prefill"], asked["remote_host"]) == (
        True,
        False,
        None,
    )
    assert (prefill.body["stream"], prefill.body["max_tokens"]) == (False, 1)
    assert "stream_options" not in prefill.body
    assert decode.body["kv_transfer_params"] == PARAMS
    assert (decode.body["stream"], decode.body["max_tokens"]) == (True, 64)
    assert prefill.body["messages"] == decode.body["messages"]
    assert prefill.body["vllm_xargs"] == decode.body["vllm_xargs"] == {"mine": 1}
    assert prefill.request_id == decode.request_id == response.headers["x-request-id"]
    (record,) = gateway.usage()
    assert (record["node"], record["outcome"], record["output_tokens"]) == ("d1", "completed", 5)
    assert gateway.metric("rhodeck_gateway_prefills_total", result="done") == 1
    assert nothing_is_held(gateway)


def test_a_prefill_node_that_fails_is_followed_by_another_and_never_asked_twice(
    gateway: GatewayProcess, engines: dict[str, Any]
) -> None:
    push(gateway, engines)
    engines["p1"].behaviour = engines["p2"].behaviour = "500"
    with gateway.client() as client:
        answer = client.post("/v1/chat/completions", json=chat())
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "upstream_error"
        assert [len(engines[name].served) for name in ("p1", "p2", "d1")] == [1, 1, 0]
        (record,) = gateway.usage()
        assert (record["outcome"], record["output_tokens"]) == ("upstream_error", 0)
        engines["p2"].behaviour = ""
        codes = [client.post("/v1/chat/completions", json=chat()).status_code for _ in range(4)]
    assert codes == [200] * 4
    assert len(engines["d1"].served) == 4
    assert nothing_is_held(gateway)


@pytest.mark.parametrize("dies", [True, False])
def test_a_decode_node_is_not_blamed_for_a_prefill_node_that_died_after_it_answered(
    gateway: GatewayProcess, engines: dict[str, Any], dies: bool
) -> None:
    with OrphanedEngine("d2").serving() as orphaned:
        orphaned.prefill = engines["p1"] if dies else None
        push(gateway, engines | {"d2": orphaned}, ("p1", "d2"))
        with gateway.client() as client:
            answer = client.post("/v1/chat/completions", json=chat())
        assert answer.status_code == 502
        at_fault, other = ("p1", "d2") if dies else ("d2", "p1")
        eventually(lambda: gateway.metric("rhodeck_gateway_node_failures_total", node=at_fault) == 1)
        assert gateway.metric("rhodeck_gateway_node_failures_total", node=other) == 0
        assert nothing_is_held(gateway)


def test_an_explanation_names_the_prefill_nodes_that_were_asked(
    gateway: GatewayProcess, engines: dict[str, Any]
) -> None:
    push(gateway, engines)
    engines["p1"].behaviour = engines["p2"].behaviour = "500"
    with gateway.client() as client:
        failed = client.post("/v1/chat/completions", json=chat()).headers["x-request-id"]
        engines["p1"].behaviour = engines["p2"].behaviour = ""
        served = client.post("/v1/chat/completions", json=chat()).headers["x-request-id"]

    def told(request_id: str) -> Decision:
        return Decision.model_validate_json(gateway.admin.get(f"/admin/decisions/{request_id}").content)

    (attempt,) = told(failed).attempts
    assert {one.node for one in attempt.prefills} == {"p1", "p2"}
    assert [one.failure for one in attempt.prefills] == ["it answered 500 to a prefill"] * 2
    (attempt,) = told(served).attempts
    (prefill,) = attempt.prefills
    assert (attempt.node, prefill.failure) == ("d1", None)
    assert engines[prefill.node].served[-1].request_id == served
    words = in_words(told(served))
    assert any(line.startswith(f"prefill: {prefill.node}, 0.") for line in words), words


def test_what_a_prefill_node_finds_wrong_with_a_request_the_client_hears_from_the_decode_node(
    gateway: GatewayProcess, engines: dict[str, Any]
) -> None:
    push(gateway, engines, ("p1", "d1"))
    engines["p1"].behaviour = "400"
    with gateway.client() as client:
        answer = client.post("/v1/chat/completions", json=chat("fault=400"))
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "bad max_tokens")
    assert "kv_transfer_params" not in engines["d1"].served[0].body
    assert gateway.metric("rhodeck_gateway_prefills_total", result="without_params") == 1
    assert nothing_is_held(gateway)


def test_a_decode_node_without_parameters_computes_the_prompt_itself(
    gateway: GatewayProcess, engines: dict[str, Any]
) -> None:
    push(gateway, engines, ("p1", "d1"))
    engines["p1"].behaviour = "no_params"
    with gateway.client() as client:
        assert client.post("/v1/chat/completions", json=chat()).status_code == 200
        assert (
            client.post("/v1/embeddings", json={"model": chat()["model"], "input": "a"}).status_code == 200
        )
    assert len(engines["p1"].served) == 1  # embeddings have no second phase
    assert all("kv_transfer_params" not in one.body for one in engines["d1"].served)


@pytest.mark.parametrize("there", ["p1", "d1"])
def test_without_a_node_of_either_phase_requests_are_refused(
    gateway: GatewayProcess, engines: dict[str, Any], there: str
) -> None:
    push(gateway, engines, (there,))
    with gateway.client() as client:
        answer = client.post("/v1/chat/completions", json=chat())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_nodes")
    assert int(answer.headers["retry-after"]) >= 1
    assert engines[there].served == []
    assert gateway.usage() == []
    assert nothing_is_held(gateway)


def test_a_client_that_leaves_during_prefill_frees_both_nodes(
    gateway: GatewayProcess, engines: dict[str, Any]
) -> None:
    push(gateway, engines, ("p1", "d1"))
    engines["p1"].behaviour = "silent"
    with gateway.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json=chat(), timeout=1.0)
    eventually(lambda: [one.ending for one in engines["p1"].served] == ["aborted"])
    eventually(lambda: nothing_is_held(gateway))
    assert engines["d1"].served == []
    (record,) = gateway.usage()
    assert (record["outcome"], record["output_tokens"], record["exact"]) == ("client_gone", 0, False)


def test_no_output_is_booked_when_the_decode_node_dies_before_it_has_the_request(
    tmp_path: Path, engines: dict[str, Any]
) -> None:
    with GatewayProcess(tmp_path / "gw", "--retries", "0").running() as gateway:
        push(gateway, engines, ("p1", "d1"))
        engines["p1"].decode = engines["d1"]
        with gateway.client() as client:
            answer = client.post("/v1/chat/completions", json=chat())
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")
        assert [len(engines[name].served) for name in ("p1", "d1")] == [1, 0]
        (record,) = gateway.usage()  # the prompt was computed
        assert record["prompt_tokens"] > 0
        assert (record["outcome"], record["output_tokens"], record["exact"]) == ("upstream_error", 0, False)
        assert nothing_is_held(gateway)


def test_prompts_wait_for_room_on_the_prefill_node_and_never_exceed_it(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    # 40 blocks of 16 at 0.85 are 544 tokens of prompt; each prompt of 4,000 bytes is taken for about 1,000
    # at 4 bytes a token: none fits. Of 1,000 bytes (about 255 tokens) two fit at once.
    with (
        PrefillEngine("p1", kv_blocks=40).serving() as prefill,
        FakeEngine("d1").serving() as decode,
    ):
        prefill.behaviour = "slow"
        push(gateway, {"p1": prefill, "d1": decode}, ("p1", "d1"))
        most, codes, done = [0], list[int](), threading.Event()

        def watch() -> None:
            while not done.wait(0.01):
                most[0] = max(most[0], prefill.running)

        def ask(words: int) -> None:
            with gateway.client(**{"X-Rhodeck-Tier": "batch"}) as client:
                text = "tokens=1 " + "w" * words
                codes.append(client.post("/v1/chat/completions", json=chat(text)).status_code)

        watcher = threading.Thread(target=watch)
        watcher.start()
        threads = [threading.Thread(target=ask, args=(990,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done.set()
        watcher.join()
        assert codes == [200] * 6
        assert most[0] <= 2
        assert len(prefill.served) == 6
        ask(4_000)
        assert codes[-1] == 503  # no prefill node could ever hold it
        assert nothing_is_held(gateway)


def test_a_policy_may_pass_what_clients_say_to_nodes_without_a_role(
    gateway: GatewayProcess, engines: dict[str, Any]
) -> None:
    mine = {"do_remote_prefill": True, "remote_host": "10.0.0.5"}
    for passes, expected in ((False, None), (True, mine)):
        document = assignment([engines["d1"]], generation=2 if passes else 1)
        if passes:
            document["policy"]["routing"] = {"client_kv_transfer_params": "pass"}
        assert gateway.push(document).status_code == 200
        eventually(lambda: gateway.status()["nodes_usable"] == 1)
        with gateway.client() as client:
            assert (
                client.post("/v1/chat/completions", json=chat(kv_transfer_params=mine)).status_code == 200
            )
        assert engines["d1"].served[-1].body.get("kv_transfer_params") == expected
