"""`rhodeck spend` and `rhodeck prices`: files that are whole or absent, totals that add up."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from control.cli import main
from control.database import session_scope
from control.prices import add_price
from control.roles import Actor, Role
from control.tables import NodeQuarterRow, PoolRow, UsageQuarterRow
from tests.gateway_process import ROOT
from tests.postgres_server import FreshDatabase, open_folder

pytestmark = pytest.mark.postgres

ADMIN = Actor("ada", Role.ADMIN, "cli")
MONTH = "2026-02"
TENANTS = 1_500  # a file of some hundred kilobytes


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: bytes
    stderr: bytes


Run = Callable[..., Done]


@pytest.fixture
def run(
    database: FreshDatabase, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Run:
    """`rhodeck ...` through its entry point, in this process; output as bytes of the descriptors."""
    monkeypatch.setenv("DATABASE_URL", database.dsn)

    def start(*arguments: str) -> Done:
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capfdbinary.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out, err)

    return start


def a_process(dsn: str, *arguments: str) -> Done:
    """`rhodeck ...` as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "control", *arguments],
        cwd=ROOT,
        env=dict(os.environ) | {"DATABASE_URL": dsn},
        capture_output=True,
        timeout=60,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def month(database: FreshDatabase) -> Decimal:
    """February 2026 with many tenants in a pool without known slots; return what it cost."""
    quarter = datetime(2026, 2, 10, 12, 0, tzinfo=UTC)
    with session_scope(database.engine) as session:
        session.add(PoolRow(name="a", models=["m"], created_at=quarter))
        add_price(
            session,
            price_class="on_demand",
            usd_per_node_hour=Decimal("18.8"),
            effective_from=datetime(2026, 2, 1, tzinfo=UTC),
            source="contract of 2026-01",
            actor=ADMIN,
            now=quarter,
        )
        for number in range(8):
            session.add(
                NodeQuarterRow(
                    node=f"n{number % 2}",
                    quarter=quarter + timedelta(minutes=15 * (number // 2)),
                    pool="a",
                    price_class="on_demand",
                    up_s=Decimal(900),
                    last_seen_at=quarter,
                )
            )
        for number in range(TENANTS):
            session.add(
                UsageQuarterRow(
                    quarter=quarter,
                    tenant=f"tenant-{number:04}",
                    tier="batch",
                    model="m",
                    pool="a",
                    requests=1,
                    prompt_tokens=7,
                    output_tokens=3,
                    engine_s=Decimal(1 + number % 7),
                )
            )
    return Decimal("37.60")  # eight quarter-hours are two hours, at 18.80 USD


def fails(done: Done, *said: str) -> None:
    """Exit code 1, an error people can act on, nothing on standard output."""
    text = done.stderr.decode()
    assert done.returncode == 1, text
    assert text.startswith("error: ")
    assert "Traceback" not in text
    for words in said:
        assert words in text
    assert done.stdout == b""


def test_the_same_whole_file_goes_to_standard_output_and_to_a_file(
    run: Run, database: FreshDatabase, month: Decimal, tmp_path: Path
) -> None:
    out = tmp_path / "feb.csv"
    printed = a_process(database.dsn, "spend", "export", MONTH)
    written = run("spend", "export", MONTH, "--out", str(out))
    assert (printed.returncode, written.returncode, written.stdout) == (0, 0, b"")
    assert out.read_bytes() == printed.stdout
    manifest = json.loads(written.stderr)
    assert manifest["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    rows = list(csv.DictReader(io.StringIO(printed.stdout.decode(), newline="")))
    assert len(rows) == manifest["rows"]
    assert len({row["tenant"] for row in rows if row["line"] == "usage"}) == TENANTS
    assert sum(Decimal(row["amount_usd"]) for row in rows) == Decimal(manifest["total_usd"]) == month
    assert sum(int(row["prompt_tokens"]) for row in rows) == 7 * TENANTS
    assert printed.stdout.count(b"\r\n") == len(rows) + 1
    assert printed.stdout.count(b"\n") == len(rows) + 1


def test_an_existing_file_is_replaced_in_one_step(
    run: Run, month: Decimal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "feb.csv"
    out.write_text("of last year")
    with out.open() as reader:  # somebody reads the old file while the new one comes
        assert run("spend", "export", MONTH, "--out", "feb.csv").returncode == 0
        assert reader.read() == "of last year"
    assert out.read_bytes().startswith(b"month,time_zone,")
    assert [path.name for path in tmp_path.iterdir()] == ["feb.csv"]


def test_what_shows_adds_up(run: Run, month: Decimal) -> None:
    shown = json.loads(run("spend", "show", MONTH, "--json").stdout)
    assert Decimal(shown["total_usd"]) == month
    assert sum(map(Decimal, shown["by_tenant_usd"].values())) == month
    assert (shown["estimated"], Decimal(shown["node_hours"])) == (False, Decimal(2))
    lines = run("spend", "show", MONTH).stdout.decode().splitlines()
    assert lines[0] == "2026-02 (UTC), complete"
    assert lines[-1].split()[:2] == ["total", "37.60"]


def test_this_month_is_estimated(run: Run) -> None:
    assert b"estimated, the month is not over" in run("spend", "show").stdout


@pytest.mark.parametrize("name", ["2026-13", "26-1", "9999-12", "feb", "2026-02.csv", ""])
def test_a_bad_month_is_refused_and_no_file_comes_of_it(run: Run, tmp_path: Path, name: str) -> None:
    out = tmp_path / "x.csv"
    fails(run("spend", "export", name, "--out", str(out)), "is not a month", "Write it as 2026-11")
    assert list(tmp_path.iterdir()) == []


def test_node_time_without_a_price_is_refused_and_the_old_file_stays(
    run: Run, database: FreshDatabase, month: Decimal, tmp_path: Path
) -> None:
    out = tmp_path / "feb.csv"
    out.write_text("of last year")
    with session_scope(database.engine) as session:
        session.add(
            NodeQuarterRow(
                node="n9",
                quarter=datetime(2026, 2, 1, tzinfo=UTC),
                pool="a",
                price_class="spot",
                up_s=Decimal(450),
                last_seen_at=datetime(2026, 2, 1, tzinfo=UTC),
            )
        )
    fails(run("spend", "export", MONTH, "--out", str(out)), "0.12 node-hours", "rhodeck prices add")
    assert out.read_text() == "of last year"
    assert "not in the total: 0.12 node-hours" in run("spend", "show", MONTH).stdout.decode()


@pytest.mark.parametrize("place", ["missing/feb.csv", "file/feb.csv", "folder", "x" * 300])
def test_a_place_that_cannot_be_written_is_an_error(
    run: Run, month: Decimal, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    fails(run("spend", "export", MONTH, "--out", str(tmp_path / place)), "cannot be written")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def as_nobody() -> None:
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def test_a_folder_without_write_permission_is_an_error() -> None:
    """In a child process: root may write everywhere, so the child gives root up first."""
    script = (
        "import pathlib, sys\n"
        "from datetime import UTC, datetime\n"
        "from decimal import Decimal\n"
        "from control.export_file import write_whole\n"
        "from control.exports import Export\n"
        "from fleet.errors import InvalidInput\n"
        "import tests.integration.test_cli_spend as here\n"
        "made = Export('a.csv', b'x', '0', 1, Decimal(0), datetime(2026, 1, 1, tzinfo=UTC))\n"
        "here.as_nobody()\n"
        "try:\n"
        "    write_whole(pathlib.Path(sys.argv[1]), made.body)\n"
        "except InvalidInput as problem:\n"
        "    print(problem.message)\n"
    )
    with open_folder() as folder:
        folder.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder / "a.csv")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "cannot be written: Permission denied" in done.stdout, done.stderr
        assert list(folder.iterdir()) == []
        folder.chmod(0o711)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Generator[bool]:
    """A file system of `size` at `folder`; yields False where it cannot be mounted."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    database: FreshDatabase, month: Decimal, tmp_path: Path
) -> None:
    """A tiny file system as root; elsewhere a limit on the size of files says "no" in the same place."""
    folder = tmp_path / "disk"
    with small_disk(folder, "16k") as is_small:
        out = folder / "feb.csv"
        out.write_text("of last year")
        script = (
            "import resource, signal, sys\n"
            "from control.cli import main\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            f"{'' if is_small else 'resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))'}\n"
            "main(sys.argv[1:])\n"
        )
        ended = subprocess.run(
            [sys.executable, "-c", script, "spend", "export", MONTH, "--out", str(out)],
            cwd=ROOT,
            env=dict(os.environ) | {"DATABASE_URL": database.dsn},
            capture_output=True,
            timeout=60,
            check=False,
        )
        done = Done(ended.returncode, ended.stdout, ended.stderr)
        fails(done, "cannot be written: " + ("No space left on device" if is_small else "File too large"))
        assert out.read_text() == "of last year"
        assert [path.name for path in folder.iterdir()] == ["feb.csv"]


def test_a_link_leads_to_the_file_and_modes_stay(run: Run, month: Decimal, tmp_path: Path) -> None:
    real, link = tmp_path / "real.csv", tmp_path / "latest.csv"
    real.write_text("of last year")
    real.chmod(0o640)
    link.symlink_to(real)
    assert run("spend", "export", MONTH, "--out", str(link)).returncode == 0
    assert link.is_symlink()
    assert real.read_bytes().startswith(b"month,time_zone,")
    assert real.stat().st_mode & 0o777 == 0o640


def test_what_is_no_file_is_never_replaced(run: Run, month: Decimal, tmp_path: Path) -> None:
    pipe, circle = tmp_path / "pipe", tmp_path / "circle"
    os.mkfifo(pipe)
    circle.symlink_to(circle)
    fails(run("spend", "export", MONTH, "--out", str(pipe)), "it is not a file")
    fails(run("spend", "export", MONTH, "--out", str(circle)), "cannot be written")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "pipe"]
    assert pipe.is_fifo()


def test_a_reader_that_leaves_early_gets_no_traceback(database: FreshDatabase, month: Decimal) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "control", "spend", "export", MONTH],
        cwd=ROOT,
        env=dict(os.environ) | {"DATABASE_URL": database.dsn},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
        assert process.wait(60) != 0
    assert "Traceback" not in said


# --- prices ----------------------------------------------------------------------------------------


def test_a_price_is_added_and_listed_and_the_past_keeps_its_own(run: Run) -> None:
    added = run("prices", "add", "spot", "16.50", "--source", "quote of 2026-11-02")
    assert added.returncode == 0
    listed = run("prices", "list").stdout.decode()
    assert "spot" in listed
    assert "16.5 USD/node-hour  quote of 2026-11-02" in listed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("spot", "free"), "free"),
        (("spot", "-1"), "-1"),
        (("spot", "NaN"), "NaN"),
        (("spot", "1e9"), "1e9"),
        (("spot", "16", "--from", "tomorrow"), "is not a time"),
        (("spot", "16", "--source", ""), "source"),
        (("spot", "16", "--pool", "nowhere"), "nowhere"),
    ],
)
def test_a_bad_price_is_refused(run: Run, arguments: tuple[str, ...], said: str) -> None:
    command = ["prices", "add", arguments[0], "--source", "x", *arguments[2:], "--", arguments[1]]
    fails(run(*command), said)
    assert run("prices", "list").stdout.decode().startswith("no prices")


def test_an_unknown_class_of_price_is_a_usage_error(run: Run) -> None:
    done = run("prices", "add", "gold", "16", "--source", "x")
    assert done.returncode == 2
    assert b"on_demand" in done.stderr


def test_without_a_database_it_says_so(tmp_path: Path) -> None:
    dsn = "postgresql://u:hidden@127.0.0.1:1/x"
    done = a_process(dsn, "spend", "export", MONTH, "--out", str(tmp_path / "x.csv"))
    fails(done, "cannot be reached")
    assert b"hidden" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fmt", "layout", "schema"),
    [
        ("csv", "focus", "FOCUS 1.4"),
        ("xlsx", "plain", "rhodeck-spend/1"),
        ("parquet", "focus-1.2", "FOCUS 1.2"),
    ],
)
def test_every_format_is_written_whole_with_its_manifest(
    run: Run, month: Decimal, tmp_path: Path, fmt: str, layout: str, schema: str
) -> None:
    target = tmp_path / f"file.{fmt}"
    shape = ("--format", fmt, "--layout", layout)
    done = run("spend", "export", MONTH, *shape, "--out", str(target), "--manifest")
    assert done.returncode == 0
    said = json.loads((tmp_path / f"file.{fmt}.manifest.json").read_text())
    assert said["sha256"] == hashlib.sha256(target.read_bytes()).hexdigest()
    assert (said["schema"], said["total_usd"], said["rows"]) == (schema, str(month), TENANTS + 1)
    assert json.loads(done.stderr)["sha256"] == said["sha256"]


def test_a_manifest_needs_a_file_to_stand_beside(run: Run, month: Decimal) -> None:
    done = run("spend", "export", MONTH, "--manifest")
    assert (done.returncode, done.stdout) == (1, b"")
