"""How a gateway judges nodes: what closes one, what opens it again, and where requests go meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.engine_endpoints import CUT
from tests.gateway_process import FakeEngine, GatewayProcess, assignment, chat, eventually


@pytest.fixture
def engines() -> Generator[list[FakeEngine]]:
    with FakeEngine("node-1").serving() as first, FakeEngine("node-2").serving() as second:
        yield [first, second]


@pytest.fixture
def gateway(tmp_path: Path, engines: list[FakeEngine]) -> Generator[GatewayProcess]:
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        gateway.push_and_open(engines)
        yield gateway


def usable(gateway: GatewayProcess) -> int:
    return gateway.status()["nodes_usable"]


def serve(gateway: GatewayProcess, count: int, text: str = "tokens=1") -> list[int]:
    with gateway.client() as client:
        return [client.post("/v1/chat/completions", json=chat(text)).status_code for _ in range(count)]


def test_an_unhealthy_node_is_closed_and_opens_again(
    gateway: GatewayProcess, engines: list[FakeEngine]
) -> None:
    engines[0].is_healthy = False
    eventually(lambda: usable(gateway) == 1)
    assert serve(gateway, 5) == [200] * 5
    assert engines[0].served == []
    engines[0].is_healthy = True
    eventually(lambda: usable(gateway) == 2)


def test_a_node_that_hangs_is_closed_and_delays_nobody(
    gateway: GatewayProcess, engines: list[FakeEngine]
) -> None:
    engines[0].freezes_metrics = True
    eventually(lambda: usable(gateway) == 1)
    before = engines[1].polls
    eventually(lambda: engines[1].polls > before + 3)
    assert serve(gateway, 5) == [200] * 5
    assert engines[0].served == []


def test_missing_kv_use_closes_a_node_instead_of_reading_as_idle(
    gateway: GatewayProcess, engines: list[FakeEngine]
) -> None:
    engines[0].hides_kv = True
    before = engines[0].polls
    eventually(lambda: engines[0].polls > before + 2)
    assert serve(gateway, 6) == [200] * 6
    assert len(engines[1].served) == 6
    assert usable(gateway) == 1


def test_a_draining_node_gets_no_new_work_and_finishes_its_own(
    gateway: GatewayProcess, engines: list[FakeEngine]
) -> None:
    codes: list[int] = []
    running = [
        threading.Thread(target=lambda: codes.extend(serve(gateway, 1, "tokens=50 pause=0.02")))
        for _ in range(2)
    ]
    for thread in running:
        thread.start()
    eventually(lambda: [engine.running for engine in engines] == [1, 1])
    document = assignment(engines, generation=2)
    document["nodes"][0]["draining"] = True
    assert gateway.push(document).status_code == 200
    assert serve(gateway, 4) == [200] * 4
    for thread in running:
        thread.join()
    assert codes == [200, 200]
    assert len(engines[0].served) == 1
    assert {record["outcome"] for record in gateway.usage()} == {"completed"}


def test_a_node_that_leaves_is_polled_no_more(gateway: GatewayProcess, engines: list[FakeEngine]) -> None:
    assert gateway.push(assignment(engines[1:], generation=2)).status_code == 200
    assert gateway.status()["nodes_total"] == 1
    left, kept = engines[0].polls, engines[1].polls
    eventually(lambda: engines[1].polls > kept + 4)
    assert engines[0].polls <= left + 1  # one was perhaps on its way
    assert serve(gateway, 2) == [200] * 2


def test_a_node_that_fails_requests_is_ejected_and_let_in_again(
    gateway: GatewayProcess, engines: list[FakeEngine]
) -> None:
    engines[0].is_broken = True
    eventually(lambda: serve(gateway, 1) and gateway.metric("rhodeck_gateway_nodes", state="ejected"))
    assert len(engines[0].served) == 3
    engines[0].is_broken = False
    assert serve(gateway, 3) == [200] * 3
    eventually(lambda: gateway.metric("rhodeck_gateway_nodes", state="ejected") == 0)
    eventually(lambda: usable(gateway) == 2)


def break_one(gateway: GatewayProcess, engines: list[FakeEngine]) -> str:
    """Have a node answer 500 to all it gets until it is out; return its name."""
    engines[0].is_broken = True
    eventually(lambda: serve(gateway, 1) and gateway.status()["nodes_apart"])
    engines[0].is_broken = False
    assert list(gateway.status()["nodes_apart"]) == [engines[0].name]
    return engines[0].name


def test_a_node_that_was_ejected_comes_back_by_a_few_trials(
    gateway: GatewayProcess, engines: list[FakeEngine]
) -> None:
    document = assignment(engines, generation=2)
    document["policy"]["routing"] = {"ejection": {"base_s": 1.0, "trial_requests": 2}}
    assert gateway.push(document).status_code == 200
    name = break_one(gateway, engines)
    ((told, out),) = gateway.status()["nodes_out"].items()
    assert (told, out["because"]) == (name, "consecutive_failures")
    assert out["until_s"] - out["since_s"] == pytest.approx(1.0)  # base_s, the first time
    assert gateway.metric("rhodeck_gateway_node_ejections_total", node=name) >= 1
    eventually(lambda: gateway.status()["nodes_apart"] == {name: "on trial"})
    eventually(lambda: usable(gateway) == 2)
    assert gateway.metric("rhodeck_gateway_node_trial", node=name) == 1
    assert gateway.metric("rhodeck_gateway_nodes", state="trial") == 1
    back = next(engine for engine in engines if engine.name == name)
    before = len(back.served)
    threads = [threading.Thread(target=serve, args=(gateway, 1, "tokens=40 pause=0.25")) for _ in range(12)]
    for thread in threads:
        thread.start()
    eventually(lambda: sum(engine.running for engine in engines) == 12)
    assert len(back.served) - before == 2
    for thread in threads:
        thread.join()
    eventually(lambda: gateway.status()["nodes_apart"] == {})


def test_when_the_last_node_dies_the_ejected_one_is_tried_at_once(
    gateway: GatewayProcess, engines: list[FakeEngine]
) -> None:
    document = assignment(engines, generation=2)
    document["policy"]["routing"] = {"ejection": {"base_s": 3_600.0, "max_s": 3_600.0}}
    assert gateway.push(document).status_code == 200
    name = break_one(gateway, engines)
    assert gateway.metric("rhodeck_gateway_panicking_groups") == 0  # one of two is half
    next(engine for engine in engines if engine.name != name).stop()
    eventually(lambda: serve(gateway, 1) == [200])  # an hour before its time
    assert gateway.metric("rhodeck_gateway_node_panics_total", node=name) == 1
    assert serve(gateway, 8) == [200] * 8
    assert name not in gateway.status()["nodes_apart"]  # its trial was passed


def test_a_node_whose_tokenizing_fails_is_ejected_and_one_that_recovers_is_not_blamed(
    gateway: GatewayProcess, engines: list[FakeEngine]
) -> None:
    def tokenize(count: int) -> list[int]:
        with gateway.client() as client:
            body = {"model": chat()["model"], "prompt": "a"}
            return [client.post("/tokenize", json=body).status_code for _ in range(count)]

    broken = engines[0]
    broken.tokenize_status = 500
    assert tokenize(4) == [200] * 4  # in turn: two of them went on to the other node
    assert gateway.metric("rhodeck_gateway_node_failures_total", node="node-1") == 2
    broken.tokenize_status = 200
    assert tokenize(4) == [200] * 4  # which takes the two back: three in a row eject
    broken.tokenize_status = 500
    assert tokenize(4) == [200] * 4
    assert gateway.metric("rhodeck_gateway_node_ejections_total") == 0
    assert tokenize(2) == [200] * 2
    assert gateway.metric("rhodeck_gateway_node_ejections_total", node="node-1") == 1
    before = len(broken.tokenized)
    assert tokenize(6) == [200] * 6
    assert len(broken.tokenized) == before


@pytest.mark.parametrize("status", [500, CUT])
def test_a_body_that_no_tokenizer_stands_ejects_no_node(
    gateway: GatewayProcess, engines: list[FakeEngine], status: int
) -> None:
    for engine in engines:
        engine.tokenize_status = status
    with gateway.client() as attacker:
        for _ in range(12):  # each is tried at both nodes; three in a row would eject one
            body = {"model": chat()["model"], "prompt": "a"}
            assert attacker.post("/tokenize", json=body).status_code == 502
    assert [len(engine.tokenized) for engine in engines] == [12, 12]
    assert gateway.metric("rhodeck_gateway_node_failures_total") == 0
    assert gateway.metric("rhodeck_gateway_node_ejections_total") == 0
    assert gateway.status()["nodes_apart"] == {}
    assert serve(gateway, 4) == [200] * 4


def test_load_spreads_over_nodes(gateway: GatewayProcess, engines: list[FakeEngine]) -> None:
    threads = [threading.Thread(target=serve, args=(gateway, 1, "tokens=20 pause=0.02")) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert min(len(engine.served) for engine in engines) >= 3


def test_a_full_node_makes_requests_wait_and_a_late_one_is_refused_before_it_starts(
    tmp_path: Path,
) -> None:
    # 100 blocks of 16 at 0.85 are 1,360 tokens; each request books 64 output and some prompt, 18 to 19 fit.
    with (
        FakeEngine("node-1", kv_blocks=100).serving() as engine,
        GatewayProcess(tmp_path / "gw").running() as gateway,
    ):
        gateway.push_and_open([engine])
        codes: list[int] = []
        threads = [
            threading.Thread(target=lambda: codes.extend(serve(gateway, 1, "tokens=60 pause=0.05")))
            for _ in range(30)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(codes) == {200, 429}
        assert len(engine.served) == codes.count(200)  # no refused request reached the engine
        most = 1_360 // 64
        assert codes.count(200) <= most
        outcomes = gateway.metric("rhodeck_gateway_requests_total", outcome="evicted_wait")
        late = gateway.metric("rhodeck_gateway_requests_total", outcome="rejected_too_late")
        assert outcomes + late == codes.count(429)
        assert gateway.status()["in_flight_tokens"] == 0


def test_priorities_no_engine_heeds_are_said_to_be_unsupported_and_not_sent(
    gateway: GatewayProcess, engines: list[FakeEngine]
) -> None:
    assert gateway.status()["unsupported"] == [
        "/tiers/batch/engine_priority",
        "/tiers/best_effort/engine_priority",
    ]
    with gateway.client(**{"X-Rhodeck-Tier": "batch"}) as client:
        assert client.post("/v1/chat/completions", json=chat(priority=-9)).status_code == 200
        document = assignment(engines, generation=2)
        for node in document["nodes"]:
            node["honours_priority"] = True
        assert gateway.push(document).status_code == 200
        assert gateway.status()["unsupported"] == []
        assert client.post("/v1/chat/completions", json=chat(priority=-9)).status_code == 200
        deaf = document["nodes"][0] | {"models": ["deaf"], "honours_priority": False}
        mixed = document | {"generation": 3, "nodes": [deaf, *document["nodes"][1:]]}
        assert gateway.push(mixed).status_code == 200  # of one model nobody heeds them
        assert len(gateway.status()["unsupported"]) == 2
    first, second = sorted(
        (one for engine in engines for one in engine.served), key=lambda one: len(one.body)
    )
    assert "priority" not in first.body
    assert second.body["priority"] == 10  # the tier's, not the client's
