"""`rhodeck db` as an operator types it: one process a command, real server, real files."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import make_url

from control.backup import backup
from control.embedded_process import holders
from tests.postgres_server import FreshDatabase, open_folder

pytestmark = pytest.mark.postgres

REPOSITORY = Path(__file__).parents[2]


def environment(**settings: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RHODECK_") and k != "DATABASE_URL"}
    return {**kept, "PYTHONPATH": str(REPOSITORY), **settings}


def rhodeck_db(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "control", "db", *arguments],
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def state() -> Generator[Path]:
    with open_folder() as folder:
        yield folder / "state"


@pytest.fixture
def backup_file(database: FreshDatabase, tmp_path: Path) -> Path:
    """A backup of a migrated database with one pool."""
    with psycopg.connect(database.dsn) as connection:
        connection.execute("INSERT INTO pool (name, models, created_at) VALUES ('h100', '{}', now())")
    file = tmp_path / "rhodeck.dump"
    done = rhodeck_db("backup", str(file), DATABASE_URL=database.dsn)
    assert done.returncode == 0, done.stderr
    return file


def tables_in(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
    assert row is not None
    return row[0]


def test_up_serves_restarts_a_killed_server_and_stops_on_sigterm(state: Path) -> None:
    up = subprocess.Popen(
        [sys.executable, "-m", "control", "db", "up"],
        env=environment(RHODECK_STATE_DIR=str(state)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert up.stdout is not None
    assert up.stderr is not None
    try:
        dsn = up.stdout.readline().strip()
        told = rhodeck_db("url", RHODECK_STATE_DIR=str(state))
        assert (told.returncode, conninfo_to_dict(told.stdout.strip())) == (
            0,
            conninfo_to_dict(dsn),
        )
        checked = rhodeck_db("check", RHODECK_STATE_DIR=str(state))
        assert checked.returncode == 0, checked.stderr

        os.kill(holders(state / "data")[0], signal.SIGKILL)
        for line in up.stderr:
            if "starting it again" in line:
                break
        for line in up.stderr:
            if "ready" in line:
                break
        psycopg.connect(dsn).close()

        up.send_signal(signal.SIGTERM)
        _, rest = up.communicate(timeout=60)
        assert up.returncode == 0, rest
    finally:
        up.kill()
        up.communicate()
    assert holders(state / "data") == []
    gone = rhodeck_db("url", RHODECK_STATE_DIR=str(state))
    assert gone.returncode == 1
    assert "rhodeck db up" in gone.stderr


def test_a_backup_is_private_and_restores_to_the_same_data(
    backup_file: Path, empty_database: FreshDatabase
) -> None:
    assert stat.S_IMODE(backup_file.stat().st_mode) == 0o600
    done = rhodeck_db("restore", str(backup_file), DATABASE_URL=empty_database.dsn)
    assert done.returncode == 0, done.stderr
    with psycopg.connect(empty_database.dsn) as connection:
        assert connection.execute("SELECT name FROM pool").fetchall() == [("h100",)]
    checked = rhodeck_db("check", DATABASE_URL=empty_database.dsn)
    assert checked.returncode == 0, checked.stderr


def test_a_backup_replaces_a_file_only_when_told(backup_file: Path, database: FreshDatabase) -> None:
    backup_file.write_bytes(b"precious")
    refused = rhodeck_db("backup", str(backup_file), DATABASE_URL=database.dsn)
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert backup_file.read_bytes() == b"precious"
    assert rhodeck_db("backup", "--force", str(backup_file), DATABASE_URL=database.dsn).returncode == 0
    assert backup_file.read_bytes().startswith(b"PGDMP")
    assert [entry.name for entry in backup_file.parent.iterdir()] == [backup_file.name]


def test_a_failed_backup_leaves_no_file(tmp_path: Path) -> None:
    file = tmp_path / "rhodeck.dump"
    done = rhodeck_db("backup", str(file), DATABASE_URL="postgresql://u:canary-81f@127.0.0.1:1/rhodeck")
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
    assert "canary" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_password_is_not_in_the_list_of_processes(
    database: FreshDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = tmp_path / "pg_dump"
    spy.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/arguments\n[ "$PGPASSWORD" = "canary 9%" ]\n'
    )
    spy.chmod(0o755)
    monkeypatch.setattr("control.backup.client_program", lambda _name, _major: spy)
    dsn = make_url(database.dsn).set(password="canary 9%").render_as_string(hide_password=False)
    backup(dsn, tmp_path / "file")
    arguments = (tmp_path / "arguments").read_text()
    assert "canary" not in arguments
    assert make_url(database.dsn).database in arguments


def test_a_restore_over_data_is_refused(backup_file: Path, database: FreshDatabase) -> None:
    done = rhodeck_db("restore", str(backup_file), DATABASE_URL=database.dsn)
    assert done.returncode == 1
    assert "tables already" in done.stderr
    with psycopg.connect(database.dsn) as connection:
        assert connection.execute("SELECT name FROM pool").fetchall() == [("h100",)]


@pytest.mark.parametrize("damage", ["cut in the data", "cut in the contents", "another file", "absent"])
def test_a_damaged_backup_restores_nothing(
    backup_file: Path, empty_database: FreshDatabase, damage: str
) -> None:
    whole = backup_file.read_bytes()
    if damage == "absent":
        backup_file.unlink()
    else:
        cuts = {"cut in the data": whole[:-200], "cut in the contents": whole[:300]}
        backup_file.write_bytes(cuts.get(damage, b"SELECT 1;"))
    done = rhodeck_db("restore", str(backup_file), DATABASE_URL=empty_database.dsn)
    assert done.returncode == 1
    assert str(backup_file) in done.stderr or "pg_restore failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert tables_in(empty_database.dsn) == 0


def test_upgrade_brings_an_empty_database_to_the_declared_schema(empty_database: FreshDatabase) -> None:
    before = rhodeck_db("check", DATABASE_URL=empty_database.dsn)
    assert before.returncode == 1
    assert "rhodeck db upgrade" in before.stderr
    assert rhodeck_db("upgrade", DATABASE_URL=empty_database.dsn).returncode == 0
    assert rhodeck_db("check", DATABASE_URL=empty_database.dsn).returncode == 0


def test_up_refuses_beside_another_database(state: Path) -> None:
    done = rhodeck_db("up", RHODECK_STATE_DIR=str(state), DATABASE_URL="postgresql://u:canary@db/rhodeck")
    assert done.returncode == 1
    assert "DATABASE_URL" in done.stderr
    assert "canary" not in done.stderr
    assert not state.exists()


def test_url_shows_the_password_only_when_asked() -> None:
    dsn = "postgresql://u:canary@db/rhodeck"
    assert "canary" not in rhodeck_db("url", DATABASE_URL=dsn).stdout
    assert rhodeck_db("url", "--show-password", DATABASE_URL=dsn).stdout.strip() == dsn
