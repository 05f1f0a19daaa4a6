"""A real Postgres of our own on one machine, from the programs of a wheel.

Owns the life of one server in one folder: first initialisation, start, readiness, stop, and every way
these can be interrupted. Times are seconds. Single machine, not highly available: for that, set
DATABASE_URL to a server of your own.

Prevents: two owners of one data folder, a folder bricked by a kill during initdb, a server left behind
by a killed owner, a lock file with a recycled process id that blocks the start for ever, a database
listening on the network with no password.

Layout of the folder: `owner.lock` (held by flock while we live), `data/` (the cluster, with `log/`),
`data.new-*` (an initdb under way or interrupted), `socket/` (0700), `pg_hba.conf`, `startup.log`,
`password` (0600, only after TCP was asked for), `programs-*` (only if the wheel is out of reach).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from control.embedded_binaries import Binaries, binaries_for
from control.embedded_folder import (
    make_folder,
    newest_log,
    owner_of,
    password_of,
    refuse_other_major,
    sync_folder,
    tail,
    take_ownership,
)
from control.embedded_process import (
    Account,
    choose_account,
    holders,
    spawn,
    watch_owner,
)
from control.embedded_socket import (
    free_tcp_port,
    make_socket_folder,
    remove_outside_folder,
    server_port,
    socket_folder,
)
from control.parent_death import has_death_signal
from fleet.clock import Clock, SystemClock
from fleet.errors import Conflict, InvalidInput, Unavailable

SUPERUSER = "rhodeck"
DATABASE = "rhodeck"

_POLL_S = 0.05
_REPORT_EVERY_S = 5.0
_HBA = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
#: What Postgres says when processes of a server killed a moment ago still hold its memory.
_HELD = ("is still in use", "already exists", "Is another postmaster")
#: What a taken TCP port says.
_PORT_TAKEN = "could not bind IPv4 address"


class EmbeddedPostgres:
    """One server in one folder, owned by this process while it is started.

    >>> with EmbeddedPostgres(Path("state"), progress=print) as server:   # doctest: +SKIP
    ...     engine = make_engine(server.dsn)

    Start it from the main thread: the kernel ties the server's life to the *thread* that started it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        progress: Callable[[str], None] | None = None,
        pg_user: str | None = None,
        tcp_port: int | None = None,
        options: Mapping[str, str] | None = None,
        start_timeout_s: float = 120.0,
        clock: Clock | None = None,
    ) -> None:
        """Prepare; nothing is touched before `start`.

        `tcp_port` opens 127.0.0.1 with a password as well (0 picks a free port); None means the socket
        only. `options` are extra server settings, for tests that want a throw-away server.
        """
        self.folder = folder.absolute()
        self._progress = progress or _say_nothing
        self._pg_user = pg_user
        self._tcp_port = tcp_port
        self._options = dict(options or {})
        self._start_timeout_s = start_timeout_s
        self._clock = clock or SystemClock()
        self._port = 5432
        self._lock_fd: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def data(self) -> Path:
        """The cluster's own folder."""
        return self.folder / "data"

    @property
    def dsn(self) -> str:
        """URL over the socket, for SQLAlchemy and libpq alike. No secret in it."""
        return socket_dsn(self.folder, self._port)

    @property
    def tcp_dsn(self) -> str:
        """URL over 127.0.0.1, password included. Raises InvalidInput unless TCP was asked for."""
        if self._tcp_port is None:
            raise InvalidInput("this server does not listen on TCP", hint="Start it with a TCP port")
        password = password_of(self.folder)
        return f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{self._port}/{DATABASE}"

    @property
    def pid(self) -> int | None:
        """Process id of the postmaster while it lives."""
        return self._process.pid if self._process is not None and self.is_running() else None

    def is_running(self) -> bool:
        """Return whether our server lives. Reaps it if it died."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server, creating it first if the folder is new, and wait until it answers.

        After the server died under a living owner, calling it again starts it anew. Raises Conflict if
        another process owns the folder or the data is of another major version, InvalidInput if the
        folder or account cannot be used, Unavailable if the server does not come up in time.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "start EmbeddedPostgres from the main thread: the server dies with its thread"
            )
        if self.is_running():
            return
        try:
            account, binaries = self._prepare()
            self._run_until_ready(account, binaries)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server (a fast shutdown, then an immediate one) and give up the folder."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)
            remove_outside_folder(self.folder)
        self._drop_watchdog()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _prepare(self) -> tuple[Account, Binaries]:
        account = choose_account(self._pg_user, owner_of(self.data))
        make_folder(self.folder, account)
        if self._lock_fd is None:
            self._lock_fd = take_ownership(self.folder)
        binaries = binaries_for(account, self.folder)
        refuse_other_major(self.data, binaries)
        for leftover in self.folder.glob("data.new-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if not self.data.exists():
            self._initialise(account, binaries)
        (self.folder / "pg_hba.conf").write_text(_HBA)
        (self.folder / "pg_hba.conf").chmod(0o644)
        return account, binaries

    def _initialise(self, account: Account, binaries: Binaries) -> None:
        """Create the cluster beside its place, then rename: a killed initdb leaves only a leftover."""
        self._progress(
            f"creating a Postgres {binaries.version} database in {self.folder} (first start only)"
        )
        beside = Path(tempfile.mkdtemp(prefix="data.new-", dir=self.folder))
        if not account.is_ours:
            os.chown(beside, account.uid, account.gid)
        argv = [
            *(str(binaries.path("initdb")), "-D", str(beside), "--username", SUPERUSER),
            *("--auth=trust", "--encoding=UTF8", "--locale=C", "--data-checksums", "--no-instructions"),
            *("--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
        ]
        with (self.folder / "startup.log").open("wb") as log:
            process = spawn(argv, account, on_death=signal.SIGKILL, output=log)
            try:
                code = process.wait(self._start_timeout_s)
            except BaseException:
                process.kill()
                process.wait()
                raise
        if code != 0:
            shutil.rmtree(beside, ignore_errors=True)
            raise Unavailable(
                f"initdb failed with exit code {code}: {tail(self.folder / 'startup.log')}",
                hint=f"Check free space and permissions of {self.folder}",
                retryable=False,
            )
        os.rename(beside, self.data)
        sync_folder(self.folder)

    def _run_until_ready(self, account: Account, binaries: Binaries) -> None:
        self._progress(f"starting Postgres {binaries.version}")
        begun = self._clock.monotonic_s()
        deadline = begun + self._start_timeout_s
        while True:
            self._clear_stale_locks(deadline)
            self._launch(account, binaries)
            if self._is_ready_before(deadline):
                self._progress(f"Postgres is ready after {self._clock.monotonic_s() - begun:.1f} s")
                return
            said = tail(self.folder / "startup.log") + newest_log(self.data)
            retry = any(word in said for word in _HELD) or (self._tcp_port == 0 and _PORT_TAKEN in said)
            if not retry or self._clock.monotonic_s() >= deadline:
                raise Unavailable(
                    f"Postgres in {self.folder} did not start: {said[-600:] or 'it said nothing'}",
                    hint=f"Read {self.folder / 'startup.log'} and {self.data / 'log'}",
                    retryable=False,
                )
            threading.Event().wait(_POLL_S * 4)

    def _clear_stale_locks(self, deadline: float) -> None:
        """Wait for the last remains of a former server, then remove its lock files.

        We hold the folder's lock, so a lock file without a living postgres in the folder is stale,
        whatever process has its number now.
        """
        begun = self._clock.monotonic_s()
        while remaining := holders(self.data):
            waited = self._clock.monotonic_s() - begun
            if self._clock.monotonic_s() >= deadline:
                raise Conflict(
                    f"a server without an owner still runs in {self.data} (process {remaining[0]})",
                    hint=f"Stop it: kill -QUIT {remaining[0]}",
                )
            _signal(remaining[0], signal.SIGINT if waited < _REPORT_EVERY_S else signal.SIGQUIT)
            threading.Event().wait(_POLL_S * 4)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _launch(self, account: Account, binaries: Binaries) -> None:
        sockets = make_socket_folder(self.folder, account.uid, account.gid)
        self._port = 5432 if self._tcp_port is None else (self._tcp_port or free_tcp_port())
        settings = {
            "listen_addresses": "" if self._tcp_port is None else "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": str(sockets),
            "unix_socket_permissions": "0700",
            "hba_file": str(self.folder / "pg_hba.conf"),
            "fsync": "on",
            "password_encryption": "scram-sha-256",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "logging_collector": "on",
            "log_filename": "server-%a.log",
            "log_truncate_on_rotation": "on",
            "log_rotation_age": "1d",
            "log_rotation_size": "0",
            "log_file_mode": "0600",
            **self._options,
        }
        argv = [str(binaries.path("postgres")), "-D", str(self.data)]
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        with (self.folder / "startup.log").open("wb") as log:
            self._process = spawn(argv, account, on_death=signal.SIGINT, output=log)
        if not has_death_signal():
            self._drop_watchdog()
            self._watchdog = watch_owner(self._process.pid, signal.SIGINT)

    def _is_ready_before(self, deadline: float) -> bool:
        """Wait until a connection works. False if the server ended first; raises after the deadline."""
        next_report = self._clock.monotonic_s() + _REPORT_EVERY_S
        begun = self._clock.monotonic_s()
        while self.is_running():
            try:
                self._settle()
            except psycopg.OperationalError as exc:
                if self._clock.monotonic_s() >= deadline:
                    raise Unavailable(
                        f"Postgres in {self.folder} does not answer after {self._start_timeout_s:.0f} s: "
                        f"{str(exc).strip()}; it said: {tail(self.folder / 'startup.log', 300)}",
                        hint=f"Read the newest file in {self.data / 'log'}",
                    ) from exc
            else:
                return True
            if self._clock.monotonic_s() >= next_report:
                self._progress(f"still starting after {self._clock.monotonic_s() - begun:.0f} s")
                next_report += _REPORT_EVERY_S
            threading.Event().wait(_POLL_S)
        return False

    def _settle(self) -> None:
        """Create our database and, for TCP, the password, if they are missing."""
        maintenance = socket_dsn(self.folder, self._port, database="postgres")
        with psycopg.connect(maintenance, autocommit=True, connect_timeout=5) as connection:
            if not connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]
            ).fetchone():
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
            if self._tcp_port is not None:
                secret = connection.pgconn.encrypt_password(
                    password_of(self.folder).encode(), SUPERUSER.encode(), b"scram-sha-256"
                )
                connection.execute(
                    sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(SUPERUSER), secret.decode())
                )

    def _drop_watchdog(self) -> None:
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.kill()
            watchdog.communicate()


def socket_dsn(folder: Path, port: int = 5432, *, database: str = DATABASE) -> str:
    """Return the URL over the socket of the instance in `folder`, running or not."""
    return f"postgresql://{SUPERUSER}@/{database}?host={socket_folder(folder.absolute())}&port={port}"


def find_running(folder: Path) -> str | None:
    """Return the socket URL of a server another process runs in `folder`; None if none answers."""
    port = server_port(folder.absolute())
    if port is None:
        return None
    dsn = socket_dsn(folder, port)
    try:
        psycopg.connect(dsn, connect_timeout=3).close()
    except psycopg.OperationalError:
        return None
    return dsn


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, patience_s in ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, None)):
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
        return


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _say_nothing(_line: str) -> None:
    """Progress for callers who do not show it."""
