"""Every way a request, an engine or the gateway can end: leases come back, usage is booked once."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.gateway_process import (
    ADMIN_TOKEN,
    KEYS,
    PROMPT_TOKENS,
    ROOT,
    FakeEngine,
    GatewayProcess,
    assignment,
    chat,
    events,
    eventually,
)


@pytest.fixture
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1", kv_blocks=100_000).serving() as engine:
        yield engine


@pytest.fixture
def gateway(tmp_path: Path, engine: FakeEngine) -> Generator[GatewayProcess]:
    with GatewayProcess(tmp_path / "gw", "--drain-s", "5").running() as gateway:
        gateway.push_and_open([engine])
        yield gateway


def is_idle(gateway: GatewayProcess) -> bool:
    status = gateway.status()
    return (
        status["in_flight_requests"] == 0
        and status["in_flight_tokens"] == 0
        and all(queue["requests"] == 0 for queue in status["queues"].values())
        and gateway.metric("rhodeck_gateway_in_flight_requests") == 0
        and gateway.metric("rhodeck_gateway_in_flight_tokens") == 0
        and gateway.metric("rhodeck_gateway_queued_requests") == 0
    )


def abort_after(gateway: GatewayProcess, body: dict[str, object], seconds: float) -> None:
    """Send a request and close the connection after `seconds`, whatever came."""
    with (
        contextlib.suppress(httpx.HTTPError),
        gateway.client() as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        until = time.monotonic() + seconds
        for _ in response.iter_raw():
            if time.monotonic() > until:
                return


def abort_raw(gateway: GatewayProcess, body: bytes, seconds: float) -> None:
    """The same on a bare socket: leaves even while nothing has come."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {KEYS['acme']}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall(head.encode() + body)
        time.sleep(seconds)


@pytest.mark.slow
def test_two_hundred_random_aborts_leave_nothing_and_every_request_one_record(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    rng = random.Random(7)
    plans = [(rng.random() < 0.7, rng.uniform(0, 0.25), rng.randint(1, 12)) for _ in range(200)]

    def run(share: list[tuple[bool, float, int]]) -> None:
        for number, (is_stream, seconds, tokens) in enumerate(share):
            body = chat(f"tokens={tokens} pause=0.02", stream=is_stream)
            if number % 5:
                abort_raw(gateway, json.dumps(body).encode(), seconds)
                continue
            with gateway.client() as client:  # stays to the end, however slow the machine is
                assert client.post("/v1/chat/completions", json=body).status_code == 200

    threads = [threading.Thread(target=run, args=(plans[i::10],)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: is_idle(gateway))
    eventually(lambda: engine.running == 0)
    truth = {served.request_id: served for served in engine.served}
    records = {record["request_id"]: record for record in gateway.usage()}
    assert len(records) == len(gateway.usage())
    # A request whose client left while it was on its way counts as received, though the engine may
    # have dropped the connection unread; none the engine knows may be missing.
    assert truth.keys() <= records.keys()
    unread = [records[request_id] for request_id in records.keys() - truth.keys()]
    assert not any(record["exact"] for record in unread)
    assert {record["outcome"] for record in unread} <= {"client_gone"}
    for request_id, served in truth.items():
        record = records[request_id]
        if record["exact"]:
            assert record["outcome"] == "completed"
            assert (record["prompt_tokens"], record["output_tokens"]) == (
                PROMPT_TOKENS,
                served.output_tokens,
            )
        else:
            assert record["outcome"] == "client_gone"
        if served.body.get("stream"):
            assert record["output_tokens"] <= served.output_tokens
    outcomes = [record["outcome"] for record in records.values()]
    assert outcomes.count("client_gone") > 20
    assert outcomes.count("completed") >= 40
    offered = gateway.metric("rhodeck_gateway_offered_total")
    assert gateway.metric("rhodeck_gateway_requests_total") == offered == 200


def test_a_client_that_leaves_aborts_the_engine(gateway: GatewayProcess, engine: FakeEngine) -> None:
    abort_after(gateway, chat("tokens=1000 pause=0.02", stream=True), 0.1)
    eventually(lambda: [served.ending for served in engine.served] == ["aborted"])
    eventually(lambda: is_idle(gateway))
    [record] = gateway.usage()
    assert record["outcome"] == "client_gone"
    assert record["exact"] is False
    assert 0 < record["output_tokens"] <= engine.served[0].output_tokens


@pytest.mark.parametrize(
    ("fault", "outcome", "exact", "output_tokens"),
    [
        ("no_usage", "completed", False, 6),
        ("malformed", "upstream_error", True, 6),
        ("in_stream", "upstream_error", True, 6),
        ("cut", "upstream_error", False, 3),
    ],
)
def test_bad_streams_are_booked_once_by_what_is_known(
    gateway: GatewayProcess, fault: str, outcome: str, exact: bool, output_tokens: int
) -> None:
    with gateway.client() as client:
        response = client.post("/v1/chat/completions", json=chat(f"tokens=6 fault={fault}", stream=True))
    assert response.status_code == 200
    [record] = gateway.usage()
    assert (record["outcome"], record["exact"]) == (outcome, exact)
    assert record["output_tokens"] == output_tokens
    assert is_idle(gateway)


def test_an_engine_error_is_502_and_keeps_its_words_to_itself(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        response = client.post("/v1/chat/completions", json=chat("fault=500"))
    assert response.status_code == 502
    assert "10.0.0.7" not in response.text
    [record] = gateway.usage()
    assert record["outcome"] == "upstream_error"
    assert is_idle(gateway)


def test_the_engines_verdict_on_a_bad_request_passes_through_and_costs_nothing(
    gateway: GatewayProcess,
) -> None:
    with gateway.client() as client:
        response = client.post("/v1/chat/completions", json=chat("fault=400"))
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "bad max_tokens"
    [record] = gateway.usage()
    assert (record["prompt_tokens"], record["output_tokens"]) == (0, 0)


def test_a_dead_node_is_passed_over_before_the_first_byte(tmp_path: Path) -> None:
    with (
        FakeEngine("node-1").serving() as first,
        FakeEngine("node-2").serving() as second,
        GatewayProcess(tmp_path / "gw").running() as gateway,
    ):
        gateway.push_and_open([first, second])
        first.stop()
        with gateway.client() as client:
            codes = [client.post("/v1/chat/completions", json=chat()).status_code for _ in range(6)]
        assert codes == [200] * 6
        assert len(second.served) == 6
        eventually(lambda: gateway.status()["nodes_usable"] == 1)
        assert {record["node"] for record in gateway.usage()} == {"node-2"}


def test_a_reset_before_the_first_byte_goes_to_another_node(tmp_path: Path) -> None:
    with (
        FakeEngine("node-1").serving() as first,
        FakeEngine("node-2").serving() as second,
        GatewayProcess(tmp_path / "gw").running() as gateway,
    ):
        gateway.push_and_open([first, second])
        with gateway.client() as client:
            response = client.post("/v1/chat/completions", json=chat("fault=reset"))
        assert response.status_code == 502  # every node resets this one: the budget ends
        assert len(first.served) >= 1
        assert len(second.served) >= 1
        assert len(gateway.usage()) == 1
        assert gateway.metric("rhodeck_gateway_requests_total") == 1


@pytest.mark.parametrize("fault", ["reset", "500"])
def test_an_engine_that_had_a_request_does_not_get_it_again(
    gateway: GatewayProcess, engine: FakeEngine, fault: str
) -> None:
    with gateway.client() as client:
        response = client.post("/v1/chat/completions", json=chat(f"fault={fault}"))
    assert response.status_code == 502
    assert len(engine.served) == 1  # it is the only node, and there were retries left
    assert is_idle(gateway)
    [record] = gateway.usage()
    assert record["outcome"] == "upstream_error"
    assert gateway.metric("rhodeck_gateway_retries_total") == 0


def test_all_nodes_gone_is_503(gateway: GatewayProcess, engine: FakeEngine) -> None:
    engine.stop()
    eventually(lambda: gateway.status()["nodes_usable"] == 0)
    with gateway.client() as client:
        response = client.post("/v1/chat/completions", json=chat())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_nodes"


# -- the end of the gateway itself ------------------------------------------------------------------


def test_kill_9_loses_no_record_and_numbers_go_on(gateway: GatewayProcess, engine: FakeEngine) -> None:
    with gateway.client() as client:
        for _ in range(20):
            client.post("/v1/chat/completions", json=chat())
        gateway.kill()  # not asked for the usage before: what is on disk was put there by itself
    gateway.start()
    eventually(lambda: gateway.status()["nodes_usable"] == 1)
    records = gateway.usage()
    assert [record["seq"] for record in records] == list(range(1, 21))
    assert {record["request_id"] for record in records} == {served.request_id for served in engine.served}
    with gateway.client() as client:
        client.post("/v1/chat/completions", json=chat())
    assert [record["seq"] for record in gateway.usage(after=20)] == [21]


def test_a_request_that_runs_when_the_gateway_is_killed_has_its_record(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    with contextlib.suppress(httpx.HTTPError), gateway.client() as client:
        client.post("/v1/chat/completions", json=chat("tokens=1"))
        body = chat("tokens=1000 pause=0.02", stream=True)
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            chunks = response.iter_raw()
            next(chunks)
            gateway.kill()
    gateway.start()
    first, second = gateway.usage()
    assert (first["outcome"], first["exact"]) == ("completed", True)
    assert (second["outcome"], second["exact"]) == ("upstream_error", False)
    assert [first["request_id"], second["request_id"]] == [served.request_id for served in engine.served]
    gateway.kill()
    gateway.start()
    assert gateway.usage() == [first, second]  # once, however often it is restarted


@pytest.mark.slow
def test_kills_under_load_never_take_back_what_was_served(tmp_path: Path, engine: FakeEngine) -> None:
    gateway = GatewayProcess(tmp_path / "gw")
    gateway.start()
    gateway.push_and_open([engine])
    seen: dict[int, str] = {}
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            with contextlib.suppress(httpx.HTTPError), gateway.client() as client:
                client.post("/v1/chat/completions", json=chat("tokens=2 pause=0.005", stream=True))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    spool = gateway.status()["usage_spool"]
    try:
        for _ in range(4):
            eventually(lambda: gateway.status()["usage_last_seq"] >= len(seen) + 15)
            page = gateway.usage()
            for record in page:
                assert seen.setdefault(record["seq"], record["request_id"]) == record["request_id"]
            assert [record["seq"] for record in page] == list(range(1, len(page) + 1))
            gateway.kill()
            gateway.start()
            eventually(lambda: gateway.status()["nodes_usable"] == 1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    eventually(lambda: is_idle(gateway))
    records = gateway.usage()
    assert gateway.status()["usage_spool"] == spool
    assert all(seen.get(record["seq"], record["request_id"]) == record["request_id"] for record in records)
    assert len({record["request_id"] for record in records}) == len(records)
    known = {served.request_id for served in engine.served}
    assert known <= {record["request_id"] for record in records}  # those running at a kill included
    gateway.kill()


def test_acknowledged_usage_may_go_and_wrong_acknowledgements_change_nothing(
    gateway: GatewayProcess,
) -> None:
    with gateway.client() as client:
        client.post("/v1/chat/completions", json=chat())
    [record] = gateway.usage()
    spool = gateway.status()["usage_spool"]
    ack = gateway.admin.post
    assert ack("/admin/usage/ack", json={"spool": "0" * 16, "seq": 1}).status_code == 400
    assert ack("/admin/usage/ack", json={"spool": spool, "seq": 2}).status_code == 400
    assert ack("/admin/usage/ack", json={"spool": spool}).status_code == 400
    assert gateway.usage() == [record]
    assert ack("/admin/usage/ack", json={"spool": spool, "seq": 1}).json() == {}
    assert gateway.usage(after=1) == []
    for query in ("after=-1", "after=x", "limit=0", "limit=99999999", "after=1&after=2"):
        assert gateway.admin.get(f"/admin/usage?{query}").status_code == 400


def test_sigterm_refuses_new_finishes_running_and_exits_0(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    with gateway.client() as client, gateway.client() as other:
        body = chat("tokens=40 pause=0.03", stream=True)
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            chunks = response.iter_text()
            text = next(chunks)
            gateway.terminate()
            eventually(lambda: httpx.get(f"{gateway.base_url}/readyz").status_code == 503)
            refused = other.post("/v1/chat/completions", json=chat())
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "draining"
            text += "".join(chunks)
    assert events(text)[-1] == "[DONE]"
    assert gateway.process.wait(20) == 0
    gateway.start()
    [record] = gateway.usage()
    assert (record["outcome"], record["output_tokens"]) == ("completed", 40)


def test_what_outlasts_the_drain_is_cut_off_told_and_booked(tmp_path: Path, engine: FakeEngine) -> None:
    gateway = GatewayProcess(tmp_path / "gw", "--drain-s", "0.2")
    with gateway.running():
        gateway.push_and_open([engine])
        body = chat("tokens=5000 pause=0.02", stream=True)
        with (
            gateway.client() as client,
            client.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            chunks = response.iter_text()
            text = next(chunks)
            gateway.terminate()
            text += "".join(chunks)
        assert events(text)[-1]["error"]["code"] == "draining"
        assert gateway.process.wait(20) == 0
        gateway.start()
        [record] = gateway.usage()
        assert record["outcome"] == "draining"
        assert record["exact"] is False
        eventually(lambda: engine.running == 0)


def test_two_gateways_cannot_share_a_folder(gateway: GatewayProcess) -> None:
    command = [sys.executable, "-m", "admission", "--name", "gw-test", "--port", "0"]
    second = subprocess.run(
        [*command, "--state-dir", str(gateway.state_dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode == 2
    assert "another gateway runs in" in second.stderr
    assert gateway.status()["ready"] is True


def test_drain_by_the_admin_api(gateway: GatewayProcess, engine: FakeEngine) -> None:
    response = gateway.admin.post("/admin/drain")
    assert response.status_code == 200
    assert (response.json()["draining"], response.json()["ready"]) == (True, False)
    with gateway.client() as client:
        assert client.post("/v1/chat/completions", json=chat()).json()["error"]["code"] == "draining"
    assert gateway.push(assignment([engine], generation=2)).status_code == 200  # still takes orders


def test_secrets_and_prompts_are_in_no_log(gateway: GatewayProcess, engine: FakeEngine) -> None:
    canary = "canary-7f3a9"
    with gateway.client() as client:
        client.post("/v1/chat/completions", json=chat(canary))
        client.post("/v1/chat/completions", json=chat(f"{canary} fault=500"))
        client.post("/v1/chat/completions", content=canary.encode())
        for value in (f"Bearer rk-key-{canary}", f"Basic {canary}", f"{canary}"):
            client.post("/v1/chat/completions", json=chat(), headers={"Authorization": value})
            httpx.get(f"{gateway.base_url}/admin/status", headers={"Authorization": value})
    engine.stop()
    eventually(lambda: gateway.status()["nodes_usable"] == 0)
    gateway.terminate()
    assert gateway.process.wait(20) == 0
    log = gateway.log_path.read_text()
    assert "node closed" in log  # it does log
    assert canary not in log
    assert ADMIN_TOKEN not in log
    assert KEYS["acme"] not in log
    for path in gateway.state_dir.rglob("*"):
        if path.is_file():
            assert canary.encode() not in path.read_bytes()
            assert KEYS["acme"].encode() not in path.read_bytes()
