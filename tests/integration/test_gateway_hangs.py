"""A process of a gateway that hangs: noticed, stood in for, replaced; a short stop harms nobody."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from fleet.budget import STALE_AFTER_S
from tests.gateway_group import Callers, GatewayGroup
from tests.gateway_process import FakeEngine, GatewayProcess, assignment, chat, eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


@contextlib.contextmanager
def group_of_three(folder: Path, engine: FakeEngine, hang_s: str) -> Generator[GatewayGroup]:
    flags = ("--hang-s", hang_s, "--poll-timeout-s", "1.5")
    with GatewayGroup(folder / "gw", 3, *flags).running() as group:
        group.push_and_open([engine])
        yield group


def lost_none(callers: Callers, group: GatewayGroup) -> bool:
    """Say whether each call was served.

    Only where the engine, a thread of this process, left two polls in a row without an answer for 1.5 s it
    is a node that takes no work, and 503 the answer; then the gateway has said so.
    """
    is_silent = any(entry["because"] == "timeout" for entry in group.entries("node closed"))
    return set(callers.seen) <= ({"200", "503"} if is_silent else {"200"})


def test_a_process_that_hangs_is_stood_in_for_and_then_replaced(tmp_path: Path, engine: FakeEngine) -> None:
    with group_of_three(tmp_path, engine, "6") as group:
        hung = group.members[1]
        boot = hung.status()["boot_id"]
        os.kill(group.pid(hung), signal.SIGSTOP)
        # Who connects from now on and is dealt to it waits for a neighbour, and is answered.
        callers = Callers(group, fresh=4, kept=0)
        try:
            eventually(lambda: any("gw-2 is silent" in state for state in group.states()))
            eventually(lambda: group.entries("process hangs"))
            eventually(lambda: group.states()[-1] == "3 of 3 serve", within_s=120)
        finally:
            callers.end()
        assert lost_none(callers, group), (callers.seen, callers.refusals[:3])
        assert hung.status()["boot_id"] != boot
        states = group.states()
        assert any("gw-2 was silent for 6 s and was killed; starts again" in state for state in states)
        for member in group.members:  # each says it of all
            eventually(
                lambda member=member: member.metric("rhodeck_gateway_processes", state="serving") == 3
            )
            assert member.metric("rhodeck_gateway_process_ends_total", because="hung") == 1
            assert member.metric("rhodeck_gateway_process_ends_total", because="died") == 0
        ready = httpx.get(f"{group.base_url}/readyz", trust_env=False)
        assert (ready.status_code, ready.json()["processes"]) == (200, {"serving": 3, "of": 3})


def test_who_asked_while_a_process_stood_still_is_served_when_it_goes_on(
    tmp_path: Path, engine: FakeEngine
) -> None:
    """What it knows of its nodes is older then than the five seconds after which they take no work."""
    patient = GatewayProcess(tmp_path / "gw", "--poll-timeout-s", "1.5")
    with patient.running() as gateway, ThreadPoolExecutor(8) as threads:
        gateway.push_and_open([engine])

        def ask() -> int:
            with gateway.client() as client:
                return client.post("/v1/chat/completions", json=chat()).status_code

        os.kill(gateway.process.pid, signal.SIGSTOP)
        asked = [threads.submit(ask) for _ in range(8)]
        time.sleep(STALE_AFTER_S + 1.5)
        os.kill(gateway.process.pid, signal.SIGCONT)
        assert [one.result(60) for one in asked] == [200] * 8


def test_who_waited_when_a_process_stood_still_beyond_their_timeout_is_sent_on(
    tmp_path: Path, engine: FakeEngine
) -> None:
    """Their time was up and no node was known as open when it went on; neither was the node's fault."""
    batch = {"X-Rhodeck-Tier": "batch"}
    patient = GatewayProcess(tmp_path / "gw", "--poll-timeout-s", "1.5")
    with patient.running() as gateway, ThreadPoolExecutor(4) as threads:
        document = assignment([engine])
        document["nodes"][0]["max_num_seqs"] = 1
        document["policy"]["tiers"]["batch"]["queue_timeout_s"] = STALE_AFTER_S
        assert gateway.push(document).status_code == 200
        eventually(lambda: gateway.status()["nodes_usable"] == 1)

        def ask(text: str) -> int:
            with gateway.client(**batch) as client:
                return client.post("/v1/chat/completions", json=chat(text)).status_code

        asked = [threads.submit(ask, "tokens=20 pause=0.2")]
        eventually(lambda: gateway.status()["in_flight_requests"] == 1)
        asked += [threads.submit(ask, "tokens=1") for _ in range(3)]
        eventually(lambda: gateway.status()["queues"]["batch"]["requests"] == 3)
        os.kill(gateway.process.pid, signal.SIGSTOP)
        eventually(lambda: engine.running == 0)
        time.sleep(STALE_AFTER_S + 1.5)
        os.kill(gateway.process.pid, signal.SIGCONT)
        assert [one.result(60) for one in asked] == [200] * 4


def test_a_prompt_that_waited_for_a_prefill_node_when_a_process_stood_still_is_computed(
    tmp_path: Path, engine: FakeEngine
) -> None:
    patient = GatewayProcess(tmp_path / "gw", "--poll-timeout-s", "1.5")
    with (
        FakeEngine("prefill-1").serving() as prefill,
        patient.running() as gateway,
        ThreadPoolExecutor(2) as threads,
    ):
        document = assignment([prefill, engine])
        document["nodes"][0] |= {"role": "prefill", "max_num_seqs": 1}
        document["nodes"][1] |= {"role": "decode"}
        document["policy"]["tiers"]["batch"]["queue_timeout_s"] = 600
        assert gateway.push(document).status_code == 200
        eventually(lambda: gateway.status()["nodes_usable"] == 2)

        def ask(text: str) -> int:
            with gateway.client(**{"X-Rhodeck-Tier": "batch"}) as client:
                return client.post("/v1/chat/completions", json=chat(text)).status_code

        asked = [threads.submit(ask, "tokens=20 pause=0.2")]
        eventually(lambda: prefill.running == 1)
        asked.append(threads.submit(ask, "tokens=1"))
        eventually(lambda: gateway.status()["in_flight_requests"] == 2)
        os.kill(gateway.process.pid, signal.SIGSTOP)
        time.sleep(STALE_AFTER_S + 1.5)
        os.kill(gateway.process.pid, signal.SIGCONT)
        assert [one.result(60) for one in asked] == [200, 200]


def test_who_asks_before_a_process_has_looked_at_its_nodes_is_served(
    tmp_path: Path, engine: FakeEngine
) -> None:
    """One that starts again takes clients at once; that it knows no node yet is not the nodes' fault."""
    with GatewayProcess(tmp_path / "gw").running() as gateway, gateway.client() as before:
        gateway.push_and_open([engine])
        assert before.post("/v1/chat/completions", json=chat()).status_code == 200
        for pauses in ([0.7], [1.3, 0.3]):  # the second loses its first look: a poll has a second
            gateway.kill()
            engine.metrics_pauses_s = pauses
            gateway.start()
            with gateway.client() as client:
                assert client.post("/v1/chat/completions", json=chat()).status_code == 200
        added = FakeEngine("node-2")
        with added.serving():
            added.metrics_pauses_s = [0.7]
            assert gateway.push(assignment([added], generation=2)).status_code == 200
            with gateway.client() as client:
                assert client.post("/v1/chat/completions", json=chat()).status_code == 200


def test_who_asks_when_all_nodes_are_gone_is_told_so(tmp_path: Path) -> None:
    with (
        FakeEngine("node-1").serving() as gone,
        FakeEngine("node-2").serving() as silent,
        GatewayProcess(tmp_path / "gw").running() as gateway,
    ):
        gateway.push_and_open([gone, silent])
        silent.metrics_pauses_s = [60.0] * 60
        gone.stop()
        eventually(lambda: gateway.status()["nodes_usable"] == 0)
        with gateway.client() as client:
            assert client.post("/v1/chat/completions", json=chat()).status_code == 503
        gateway.kill()
        gateway.start()
        with gateway.client() as client:
            assert client.post("/v1/chat/completions", json=chat()).status_code == 503


def test_who_asked_while_a_process_stood_still_is_served_though_its_first_look_is_lost(
    tmp_path: Path, engine: FakeEngine
) -> None:
    with GatewayProcess(tmp_path / "gw").running() as gateway, ThreadPoolExecutor(4) as threads:
        gateway.push_and_open([engine])

        def ask() -> int:
            with gateway.client() as client:
                return client.post("/v1/chat/completions", json=chat()).status_code

        os.kill(gateway.process.pid, signal.SIGSTOP)
        asked = [threads.submit(ask) for _ in range(4)]
        time.sleep(STALE_AFTER_S + 1.5)
        engine.metrics_pauses_s = [1.3]  # a poll has a second
        os.kill(gateway.process.pid, signal.SIGCONT)
        assert [one.result(60) for one in asked] == [200] * 4


def test_a_process_that_stops_for_a_while_goes_on_as_it_was(tmp_path: Path, engine: FakeEngine) -> None:
    with group_of_three(tmp_path, engine, "24") as group:
        stopped = group.members[0]
        boots = [member.status()["boot_id"] for member in group.members]
        callers = Callers(group, fresh=2, kept=4)  # some are with it, and wait
        try:
            eventually(lambda: callers.answered() >= 40)
            os.kill(group.pid(stopped), signal.SIGSTOP)
            eventually(lambda: group.states()[-1] == "2 of 3 serve; gw-1 is silent")
            os.kill(group.pid(stopped), signal.SIGCONT)
            eventually(lambda: group.states()[-1] == "3 of 3 serve")
            before = callers.answered()
            eventually(lambda: callers.answered() >= before + 40)
        finally:
            callers.end()
        assert lost_none(callers, group), (callers.seen, callers.refusals[:3])
        assert [member.status()["boot_id"] for member in group.members] == boots
        assert not group.entries("process hangs")
