"""Controllers and gateways as processes: killed, stopped, restarted, pushed to by hand."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from control import audit, lease, queries_policy
from control.commands_policy import ensure_first_revision, publish, rollback
from control.gateway_registry import add_gateway
from control.roles import Actor, Role
from fleet.clock import SystemClock
from fleet.policy import default_policy
from tests.gateway_process import ADMIN_TOKEN, GatewayProcess, eventually
from tests.oracles import history as h
from tests.oracles.invariants import judge
from tests.postgres_server import FreshDatabase

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

OPERATOR = Actor("ada", Role.OPERATOR, "cli")
SCRIPT = Path(__file__).parents[1] / "controller_process.py"
TTL_S = 2.0


def document(interactive: int) -> dict[str, Any]:
    made = default_policy().as_document()
    made["tiers"]["interactive"]["weight"] = interactive
    made["tiers"]["batch"]["weight"] = 95 - interactive
    return made


class ControllerProcess:
    """One controller as a child process."""

    def __init__(self, database: FreshDatabase, owner: str, folder: Path) -> None:
        self.owner = owner
        self.log_path = folder / f"{owner}.log"
        command = [sys.executable, str(SCRIPT), database.dsn, owner, str(TTL_S), ADMIN_TOKEN]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def lines(self, message: str) -> list[dict[str, Any]]:
        """Return its log lines of this message."""
        lines = [json.loads(line) for line in self.log_path.read_text().splitlines()]
        return [line for line in lines if line["message"] == message]

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(10)


class Fleet:
    """Two real gateways, registered, and what the database says of them."""

    def __init__(self, database: FreshDatabase, folder: Path) -> None:
        self.database = database
        self.gateways = {name: GatewayProcess(folder / name, name=name) for name in ("gw-1", "gw-2")}
        self.seen = h.History("processes")

    def register(self, urls: dict[str, str]) -> None:
        with Session(self.database.engine) as session, session.begin():
            ensure_first_revision(session, author=OPERATOR, now=datetime.now(UTC))
            for name, url in urls.items():
                add_gateway(session, name=name, url=url, actor=OPERATOR, now=datetime.now(UTC))

    def states(self) -> dict[str, queries_policy.GatewayState]:
        with Session(self.database.engine) as session:
            found = queries_policy.gateway_states(session, SystemClock().now())
        return {state.name: state for state in found}

    def running(self, name: str) -> h.Running | None:
        """Return what a gateway says it runs; None when nobody answers."""
        try:
            said = self.gateways[name].status()
        except httpx.HTTPError:
            return None
        return h.Running(*(said[key] for key in ("boot_id", "epoch", "generation", "digest", "revision")))

    def look(self) -> None:
        """Write down what every gateway runs now."""
        for name in self.gateways:
            running = self.running(name)
            if running is not None:
                self.seen.add(h.Heard(name, running))

    def run_revision(self, number: int) -> bool:
        self.look()
        return all(
            (state.condition, state.revision_observed) == ("converged", number)
            for state in self.states().values()
        )

    def publish(self, parent: int, made: dict[str, Any], **more: Any) -> int:
        with Session(self.database.engine) as session, session.begin():
            return publish(
                session,
                document=made,
                parent=parent,
                author=OPERATOR,
                note="why",
                now=datetime.now(UTC),
                **more,
            ).number

    def leader(self) -> lease.Leader:
        with Session(self.database.engine) as session:
            found = lease.leader(session)
        assert found is not None
        return found


@pytest.fixture
def fleet(database: FreshDatabase, tmp_path: Path) -> Generator[Fleet]:
    fleet = Fleet(database, tmp_path)
    with contextlib.ExitStack() as stack:
        for gateway in fleet.gateways.values():
            stack.enter_context(gateway.running())
        yield fleet


@pytest.fixture
def start(database: FreshDatabase, tmp_path: Path) -> Generator[Callable[[str], ControllerProcess]]:
    with contextlib.ExitStack() as stack:

        def begin(owner: str) -> ControllerProcess:
            controller = ControllerProcess(database, owner, tmp_path)
            stack.callback(controller.end)
            return controller

        yield begin


class SlowWire:
    """A TCP relay that can hold back what a client sends. `url` is its address."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.is_open = threading.Event()
        self.is_open.set()
        self.holds_push = threading.Event()  # a PUT waits in the relay
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listening.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
                threading.Thread(target=self._up, args=(client, server), daemon=True).start()
                threading.Thread(target=self._copy, args=(server, client), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                if data.startswith(b"PUT") and not self.is_open.is_set():
                    self.holds_push.set()
                    self.is_open.wait(60)
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def test_publish_kill_restart_and_a_push_by_hand_all_end_converged(
    fleet: Fleet, start: Callable[[str], ControllerProcess], tmp_path: Path
) -> None:
    fleet.register({name: gateway.base_url for name, gateway in fleet.gateways.items()})
    start("only")
    eventually(lambda: fleet.run_revision(1), within_s=60)
    fleet.publish(1, document(60), bake_s=1.0)
    eventually(lambda: fleet.run_revision(2), within_s=60)
    digests = {name: gateway.status()["digest"] for name, gateway in fleet.gateways.items()}

    killed = fleet.gateways["gw-1"]
    boot_id = killed.status()["boot_id"]
    killed.kill()
    eventually(lambda: fleet.states()["gw-1"].condition == "unreachable", within_s=60)
    killed.flags = ("--port", str(killed.port))
    for path in killed.state_dir.rglob("*assignment*"):  # its disk is lost too
        path.unlink()
    killed.start()
    empty = h.Running("", 0, 0, None)
    fleet.seen.add(h.Booted("gw-1", empty, empty))
    eventually(lambda: fleet.run_revision(2), within_s=60)
    status = killed.status()
    assert status["digest"] == digests["gw-1"]
    assert status["boot_id"] != boot_id
    assert fleet.states()["gw-1"].boot_id == status["boot_id"]

    with fleet.database.engine.connect() as connection:
        stored = connection.scalar(text("SELECT document FROM assignment WHERE gateway = 'gw-2'"))
    epoch = fleet.gateways["gw-2"].status()["epoch"]  # a leader that was too slow leads under a higher one
    by_hand = stored | {"kv_share_ratio": 0.9, "epoch": epoch, "generation": status["generation"] + 50}
    assert fleet.gateways["gw-2"].push(by_hand).status_code == 200
    eventually(lambda: fleet.gateways["gw-2"].status()["digest"] == digests["gw-2"], within_s=60)
    eventually(lambda: fleet.run_revision(2), within_s=60)
    assert fleet.gateways["gw-2"].status()["generation"] > status["generation"] + 50

    with Session(fleet.database.engine) as session, session.begin():
        rollback(session, to=1, author=OPERATOR, note="back", now=datetime.now(UTC))
    eventually(lambda: fleet.run_revision(3), within_s=60)
    with Session(fleet.database.engine) as session:
        assert audit.verify(session) is None
    judge(fleet.seen)


def test_an_invalid_document_forced_past_the_commands_changes_nothing_and_says_why(
    fleet: Fleet, start: Callable[[str], ControllerProcess]
) -> None:
    fleet.register({name: gateway.base_url for name, gateway in fleet.gateways.items()})
    start("only")
    eventually(lambda: fleet.run_revision(1), within_s=60)
    before = {name: fleet.running(name) for name in fleet.gateways}
    with fleet.database.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO policy_revision (number, parent, digest, document, author, note, created_at) "
                "SELECT 2, 1, 'x', jsonb_set(document, '{tiers,batch,weight}', '20'), 'eve', 'x', now() "
                "FROM policy_revision WHERE number = 1"
            )
        )
        connection.execute(
            text(
                "INSERT INTO rollout "
                "(revision, base_revision, state, strategy, bake_s, started_at, updated_at) "
                "VALUES (2, 1, 'all', 'all_at_once', 0, now(), now())"
            )
        )
    eventually(lambda: {s.condition for s in fleet.states().values()} == {"rejected"}, within_s=60)
    for state in fleet.states().values():
        assert state.pointer == "/tiers"
        assert "tier weights sum to 95" in state.message
    for name, running in before.items():
        now = fleet.running(name)
        assert running is not None
        assert now is not None
        fleet.seen.add(h.Arrived(name, "only", 0, 0, None, "invalid", running, now))
    judge(fleet.seen)


def test_a_standby_takes_over_and_the_stopped_leaders_late_push_is_refused(
    fleet: Fleet, start: Callable[[str], ControllerProcess]
) -> None:
    # The old leader's push to gw-1 waits on the wire while the leader is stopped and another takes over.
    held_wire = SlowWire(fleet.gateways["gw-1"].port)
    fleet.register({"gw-1": held_wire.url, "gw-2": fleet.gateways["gw-2"].base_url})
    old = start("old")
    eventually(lambda: fleet.run_revision(1), within_s=60)
    first = fleet.leader()
    held_wire.is_open.clear()
    fleet.publish(1, document(60), strategy="all_at_once")
    assert held_wire.holds_push.wait(30)
    os.kill(old.process.pid, signal.SIGSTOP)

    # The standby reaches gw-1 by another way, and may lead no later than TTL + its tick after the stop.
    with fleet.database.engine.begin() as connection:
        direct = fleet.gateways["gw-1"].base_url
        connection.execute(text("UPDATE gateway SET base_url = :url WHERE name = 'gw-1'"), {"url": direct})
    new = start("new")
    eventually(lambda: fleet.leader().owner == "new", within_s=60)
    assert fleet.leader().epoch == first.epoch + 1
    fleet.publish(2, document(50), strategy="all_at_once")
    eventually(lambda: fleet.run_revision(3), within_s=60)
    before = fleet.gateways["gw-1"].status()
    assert before["epoch"] == first.epoch + 1

    held_wire.is_open.set()  # the late push arrives now
    os.kill(old.process.pid, signal.SIGCONT)
    eventually(lambda: old.lines("push refused as stale"), within_s=60)
    eventually(lambda: old.lines("stepped down"), within_s=60)
    after = fleet.gateways["gw-1"].status()
    assert [after[key] for key in ("epoch", "generation", "digest", "revision")] == [
        before[key] for key in ("epoch", "generation", "digest", "revision")
    ]
    assert fleet.leader().owner == "new"
    assert fleet.run_revision(3)
    refused = [line["gateway"] for line in old.lines("push refused as stale")]
    assert refused.count("gw-1") == 1  # not sent again
    assert {line["epoch"] for line in old.lines("push refused as stale")} == {first.epoch}
    new.process.kill()
    eventually(lambda: fleet.leader().owner == "old", within_s=60)
    assert fleet.leader().epoch == first.epoch + 2
    fleet.look()
    judge(fleet.seen)
