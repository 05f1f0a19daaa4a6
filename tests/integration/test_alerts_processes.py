"""A node falls silent, its leading controller is killed before anybody was told: people hear it once.

Real processes: two controllers, one Postgres, one receiver. The wait of a group (30 s) is real time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from control.alert_rule_store import change_rule
from control.commands_fleet import add_pool, rest_node
from control.roles import Actor, Role
from control.secret_files import write_secret
from control.tables import AlertNoticeRow, AlertRow, LeaseRow, NodeRow
from control.webhooks import add_webhook
from tests.postgres_server import FreshDatabase

ADA = Actor("ada", Role.OPERATOR, "cli")
NOW = datetime(2026, 3, 2, tzinfo=UTC)
DEADLINE_S = 150.0


class Receiver:
    """Keeps the (id, type) of every notice. One request a connection, one at a time."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                got.append((self.headers["webhook-id"], body["type"]))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)

    @property
    def types(self) -> list[str]:
        return [kind for _, kind in self.got]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, kwargs={"poll_interval": 0.1})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        thread.join()
        receiver.server.server_close()


@contextmanager
def controller(dsn: str, folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {
        "DATABASE_URL": dsn,
        "RHODECK_ADMIN_TOKEN": "a-token-of-the-tests",
        "RHODECK_SCRAPE_PERIOD_S": "1",
        "RHODECK_LEASE_TTL_S": "4",
        "RHODECK_CONTROL_PORT": "0",
        "RHODECK_WEBHOOK_SECRETS_DIR": str(folder / "webhooks"),
    }
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "control", "control"], env=environment, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool], folder: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            logs = {path.name: path.read_text(errors="replace")[-2000:] for path in folder.glob("*.log")}
            pytest.fail(f"not within {DEADLINE_S:g} s: {logs}")
        time.sleep(0.2)


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_change_of_leader_between_alert_and_notice_neither_loses_nor_repeats_it(
    database: FreshDatabase, tmp_path: Path
) -> None:
    def states() -> list[str]:
        with Session(database.engine) as session:
            return list(session.scalars(select(AlertRow.state)))

    def owner() -> str | None:
        with Session(database.engine) as session:
            return session.scalar(select(LeaseRow.owner))

    with receiving() as receiver:
        write_secret(tmp_path / "webhooks" / "pager", "a-secret-of-the-tests\n")
        with Session(database.engine) as session, session.begin():
            add_pool(session, ADA, name="p", models=["m"], now=NOW)
            session.add(
                NodeRow(
                    name="n1", pool="p", base_url="http://127.0.0.1:1", metrics_path="/metrics",
                    price_class="spot", state="active", created_at=NOW,
                )
            )  # fmt: skip
            change_rule(session, ADA, name="node_silent", values={"open_after_s": 0}, now=NOW)
            url = f"http://127.0.0.1:{receiver.server.server_port}/"
            add_webhook(session, ADA, name="pager", url=url, secret_name="pager", now=NOW)
        with controller(database.dsn, tmp_path, "first") as first:
            wait_for(lambda: states() == ["open"], tmp_path)
            leader = owner()
            with controller(database.dsn, tmp_path, "second") as second:
                first.kill()  # no goodbye, and 30 s before anybody is told
                first.wait()
                wait_for(lambda: receiver.types == ["alert.open"], tmp_path)
                assert owner() != leader
                with Session(database.engine) as session, session.begin():
                    rest_node(session, ADA, name="n1", now=NOW)
                wait_for(lambda: len(receiver.got) >= 2, tmp_path)
                second.send_signal(signal.SIGTERM)
                assert second.wait(60) == 0
    assert receiver.types == ["alert.open", "alert.resolved"]
    with Session(database.engine) as session:
        told = list(session.scalars(select(AlertNoticeRow.id).order_by(AlertNoticeRow.at)))
    assert [number for number, _ in receiver.got] == told
