"""Several gateway processes on one port: what clients see of reloads, deaths and ends, which is nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from admission import doors
from fleet.errors import InvalidInput
from tests.gateway_group import Callers, GatewayGroup
from tests.gateway_process import KEYS, ROOT, FakeEngine, chat, eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


@pytest.fixture
def group(tmp_path: Path, engine: FakeEngine) -> Generator[GatewayGroup]:
    with GatewayGroup(tmp_path / "gw", 3).running() as group:
        group.push_and_open([engine])
        yield group


def test_a_reload_and_a_death_lose_no_connection_and_start_every_process_anew(group: GatewayGroup) -> None:
    callers = Callers(group)
    try:
        boots = [member.status()["boot_id"] for member in group.members]
        os.kill(group.process.pid, signal.SIGHUP)
        eventually(lambda: group.entries("processes reloaded"), within_s=120)
        anew = [member.status()["boot_id"] for member in group.members]
        assert not set(boots) & set(anew)
        # One after the other: two of three always served.
        served = [int(state.split()[0]) for state in group.states()]
        assert min(served[served.index(3) :]) == 2
    finally:
        callers.end()
    assert set(callers.seen) == {"200"}, callers.seen

    # A killed process takes its running requests along. Who connects afterwards is not dealt to nobody.
    dead = group.members[1]
    os.kill(group.pid(dead), signal.SIGKILL)
    callers = Callers(group, fresh=4, kept=0)
    try:
        eventually(lambda: callers.answered() >= 60)
        eventually(lambda: group.states()[-1] == "3 of 3 serve")
        eventually(lambda: dead.status()["boot_id"] not in anew)
    finally:
        callers.end()
    assert set(callers.seen) == {"200"}, callers.seen
    assert any("gw-2 ended by signal 9; starts again in" in state for state in group.states())


def test_a_reload_with_a_faulty_file_is_refused_and_ends_nobody(tmp_path: Path, engine: FakeEngine) -> None:
    key = tmp_path / "node_key"
    key.write_text("the-first-key\n")
    with GatewayGroup(tmp_path / "gw", 2, "--node-api-key-file", str(key)).running() as group:
        group.push_and_open([engine])
        boots = [member.status()["boot_id"] for member in group.members]
        states = group.states()
        for content, words in (("", "must hold one token on one line"), (None, "cannot be read")):
            seen = len(group.entries("reload refused"))
            key.unlink() if content is None else key.write_text(content)
            os.kill(group.process.pid, signal.SIGHUP)
            eventually(lambda: len(group.entries("reload refused")) > seen)  # noqa: B023
            said = group.entries("reload refused")[-1]["reason"]
            assert said.startswith("--node-api-key-file: ")
            assert words in said
        assert [member.status()["boot_id"] for member in group.members] == boots
        assert group.states() == states  # both served all the time
        key.write_text("the-second-key\n")
        os.kill(group.process.pid, signal.SIGHUP)
        eventually(lambda: group.entries("processes reloaded"))
        engine.served.clear()
        with httpx.Client(trust_env=False, timeout=60) as client:
            assert group.ask(client, chat()).status_code == 200
        assert engine.served[-1].headers["Authorization"] == "Bearer the-second-key"


def test_each_process_has_its_admin_port_and_the_shared_port_has_no_admin(
    group: GatewayGroup, engine: FakeEngine
) -> None:
    assert [member.status()["gateway"] for member in group.members] == ["gw-1", "gw-2", "gw-3"]
    for member in group.members:
        assert member.metric("rhodeck_gateway_info", gateway=member.name) == 1
    for path in ("/metrics", "/admin/status"):  # it would be that of whichever process answers
        assert httpx.get(group.base_url + path, trust_env=False).status_code == 404
    assert httpx.get(f"{group.base_url}/readyz", trust_env=False).status_code == 200
    before = len(engine.served)
    with httpx.Client(transport=httpx.HTTPTransport(limits=httpx.Limits(max_keepalive_connections=0))) as c:
        assert {group.ask(c, chat()).status_code for _ in range(40)} == {200}
    dealt = [member.metric("rhodeck_gateway_requests_total", tenant="acme") for member in group.members]
    assert sum(dealt) == len(engine.served) - before == 40
    # With 40 connections dealt evenly at random, all to two of three: 3 * (2/3)^40 < 1e-6.
    assert all(dealt)
    assert sorted(path.name for path in group.state_dir.iterdir()) == ["1", "2", "3", "lock"]


class Streams:
    """Six streams of two seconds through a group, begun at their engine when this returns."""

    def __init__(self, group: GatewayGroup, engine: FakeEngine) -> None:
        self.ends: list[str] = []
        before = len(engine.served)
        self._threads = [threading.Thread(target=self._stream, args=(group,)) for _ in range(6)]
        for thread in self._threads:
            thread.start()
        eventually(lambda: len(engine.served) == before + 6)

    def _stream(self, group: GatewayGroup) -> None:
        with httpx.Client(trust_env=False, timeout=60) as client:
            self.ends.append(group.ask(client, chat("tokens=40 pause=0.05", stream=True)).text)

    def are_whole(self) -> bool:
        """Wait for them; say whether each ended as a finished one does."""
        for thread in self._threads:
            thread.join(60)
        return [end.rstrip().endswith("data: [DONE]") for end in self.ends] == [True] * 6


def test_sigterm_drains_all_processes_and_running_streams_end_whole(
    group: GatewayGroup, engine: FakeEngine
) -> None:
    streams = Streams(group, engine)
    group.process.send_signal(signal.SIGTERM)
    assert streams.are_whole()
    assert group.process.wait(60) == 0
    assert len(group.entries("gateway stopped")) == 3


def test_a_hangup_of_the_whole_terminal_and_an_end_amid_reloads_cut_no_stream(
    group: GatewayGroup, engine: FakeEngine
) -> None:
    streams = Streams(group, engine)
    pids = [group.pid(member) for member in group.members]
    for _ in range(20):
        for pid in (*pids, group.process.pid):
            os.kill(pid, signal.SIGHUP)
    eventually(lambda: any("makes room" in state for state in group.states()))
    group.process.send_signal(signal.SIGTERM)
    assert streams.are_whole()
    assert group.process.wait(60) == 0
    assert not any("ended by signal" in state for state in group.states())
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_while_one_process_drains_who_comes_is_told_so_though_the_others_have_ended(
    group: GatewayGroup,
) -> None:
    headers = {"Authorization": f"Bearer {KEYS['acme']}"}
    with httpx.Client(base_url=group.base_url, headers=headers, trust_env=False, timeout=60) as client:
        stalled = chat("tokens=4 fault=stall", stream=True)
        with client.stream("POST", "/v1/chat/completions", json=stalled) as stream:
            lines = stream.iter_lines()  # which ends the stream when it is let go
            assert next(lines).startswith("data: {")
            group.process.send_signal(signal.SIGTERM)
            eventually(lambda: len(group.entries("gateway stopped")) == 2)
            for _ in range(12):  # three sockets had the port
                with httpx.Client(trust_env=False, timeout=60) as other:
                    answer = group.ask(other, chat())
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
                assert answer.headers["connection"] == "close"  # the next call may be taken elsewhere
    assert group.process.wait(60) == 0


def test_a_gateway_on_its_own_drains_at_a_hangup(tmp_path: Path, engine: FakeEngine) -> None:
    with GatewayGroup(tmp_path / "alone", 1).running() as alone:
        alone.push_and_open([engine])
        streams = Streams(alone, engine)
        alone.process.send_signal(signal.SIGHUP)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # the tests run under nohup, so it does too
            alone.process.terminate()
        assert streams.are_whole()
        assert alone.process.wait(60) == 0


def test_processes_end_when_their_supervisor_is_killed(group: GatewayGroup) -> None:
    group.process.kill()
    eventually(lambda: len(group.entries("gateway stopped")) == 3)

    def is_closed() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", group.port), 5):
            return False
        return True

    eventually(is_closed)


def start(*flags: str) -> subprocess.CompletedProcess[str]:
    """Start a gateway that is to refuse its settings."""
    command = [sys.executable, "-m", "admission", "--name", "other", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_a_second_start_on_a_port_or_in_a_folder_in_use_is_refused(
    tmp_path: Path, group: GatewayGroup
) -> None:
    port = ("--port", str(group.port))
    second = start(*port, "--processes", "2", "--state-dir", str(tmp_path / "other"))
    assert (second.returncode, "--port" in second.stderr) == (2, True), second.stderr
    second = start("--port", "0", "--processes", "2", "--state-dir", str(group.state_dir))
    assert second.returncode == 2
    assert "another gateway runs in" in second.stderr
    flags = ("--port", "8400", "--admin-port", "8399", "--processes", "2", "--state-dir", str(tmp_path))
    assert "admin API" in start(*flags).stderr


def test_settings_that_only_the_processes_can_check_end_the_start_too(tmp_path: Path) -> None:
    folder = ("--state-dir", str(tmp_path / "gw"), "--tokenizers-dir", str(tmp_path / "nowhere"))
    done = start("--port", "0", "--processes", "2", *folder)
    assert (done.returncode, "--tokenizers-dir" in done.stderr) == (2, True), done.stderr


def test_a_kernel_that_cannot_share_a_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(InvalidInput, match="cannot share a port between processes") as caught:
        doors.bind("127.0.0.1", 0, is_shared=True)
    assert caught.value.field == "--processes"
