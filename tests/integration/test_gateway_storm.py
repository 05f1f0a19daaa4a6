"""A retry storm over real sockets: clients that ignore what they are told, at a gateway of six places."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.gateway_process import FakeEngine, GatewayProcess, assignment, chat, eventually

SLOTS, WAITING = 6, 8
CLIENTS = 5 * SLOTS
ORIGINALS, TRIES = 4, 5  # each client's, and of each original at most


@pytest.fixture
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1", kv_blocks=100_000).serving() as engine:
        yield engine


@pytest.fixture
def gateway(tmp_path: Path, engine: FakeEngine) -> Generator[GatewayProcess]:
    document = assignment([engine])
    document["nodes"][0]["max_num_seqs"] = SLOTS
    document["policy"]["tiers"]["interactive"]["max_queued_requests"] = WAITING
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        assert gateway.push(document).status_code == 200
        eventually(lambda: gateway.status()["nodes_usable"] == 1)
        yield gateway


class Crowd:
    """What the clients did and were told: the truth the gateway's meters are held against."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.lock = threading.Lock()
        self.statuses: list[int] = []
        self.told: list[tuple[str, str]] = []  # Retry-After and retry-after-ms

    def client(self, number: int) -> None:
        """Ask for one thing after the other; a refusal is answered by asking again at once, nearly."""
        with self.gateway.client() as http:
            for original in range(ORIGINALS):
                body = chat(f"client {number} original {original} tokens=10 pause=0.03")
                for _ in range(TRIES):
                    answer = http.post("/v1/chat/completions", json=body)
                    with self.lock:
                        self.statuses.append(answer.status_code)
                        if answer.status_code == 429:
                            headers = answer.headers
                            self.told.append((headers["retry-after"], headers["retry-after-ms"]))
                    if answer.status_code == 200:
                        break
                    time.sleep(0.1)  # whatever it said


@pytest.mark.slow
def test_a_storm_wastes_no_work_of_engines_and_is_metered_as_it_is(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    crowd = Crowd(gateway)
    threads = [threading.Thread(target=crowd.client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    most_waiting = most_running = 0
    while any(thread.is_alive() for thread in threads):
        status = gateway.status()
        most_waiting = max(most_waiting, sum(queue["requests"] for queue in status["queues"].values()))
        most_running = max(most_running, status["in_flight_requests"])
        time.sleep(0.05)
    for thread in threads:
        thread.join()

    attempts, originals = len(crowd.statuses), CLIENTS * ORIGINALS
    served = crowd.statuses.count(200)
    assert set(crowd.statuses) == {200, 429}
    assert attempts > originals  # it was a storm
    assert most_waiting <= WAITING
    assert 0 < most_running <= SLOTS

    # all that the engine did was answered to somebody who still waited for it
    assert [one.ending for one in engine.served] == ["finished"] * served
    assert served >= 0.9 * len(engine.served)

    offered = gateway.metric("rhodeck_gateway_offered_total")
    repeated = gateway.metric("rhodeck_gateway_repeated_total")
    assert (offered, repeated) == (attempts, attempts - originals)
    assert all(int(whole) >= 1 and int(ms) >= 1 for whole, ms in crowd.told)
    assert len({ms for _, ms in crowd.told}) > len(crowd.told) / 4
