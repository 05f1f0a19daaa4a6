"""Months' files dropped into folders and buckets: each once, whole, under one name, whatever goes wrong."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from sqlalchemy import select, text

from control import export_destinations, lease, month_close
from control.alert_signals import export_observations
from control.cli import main
from control.database import session_scope
from control.deps import Deps, Leadership
from control.export_delivery import CLAIM_S, Dropper
from control.own_metrics import ControlMetrics
from control.prices import add_price
from control.roles import Actor, Role
from control.tables import AuditRow, ExportDeliveryRow, NodeQuarterRow, PoolRow
from fleet.alert_rules import EXPORT_FAILING, RULES
from fleet.clock import ManualClock
from fleet.errors import Forbidden, InvalidInput
from fleet.focus import Issuer
from tests.postgres_server import FreshDatabase
from tests.s3_server import S3, s3_server

pytestmark = pytest.mark.postgres

ADMIN = Actor("ada", Role.ADMIN, "cli")
UTC_ZONE = ZoneInfo("UTC")
FEBRUARY = datetime(2026, 2, 1, tzinfo=UTC)
MARCH = datetime(2026, 3, 1, tzinfo=UTC)
SECRET = "a-secret-nobody-may-see"
NAME = "spend_2026-02_closed.csv"


@dataclass
class House:
    """A database with node time in February and March 2026, and a controller that drops files."""

    database: FreshDatabase
    clock: ManualClock
    key_file: Path
    dropper: Dropper

    def tick(self, after_s: float = 0.0) -> str:
        """Pass `after_s`, then run the step as the leader."""
        self.clock.advance(after_s)

        async def turn() -> str:
            await lease.tick(self.dropper.deps)
            return await self.dropper.tick()

        return asyncio.run(turn())

    def close(self) -> None:
        now = self.clock.now()
        with session_scope(self.database.engine) as session:
            month_close.start_closing(session, "2026-02", zone=UTC_ZONE, actor=ADMIN, now=now)
        with session_scope(self.database.engine) as session:
            month_close.close_month(
                session, "2026-02", zone=UTC_ZONE, actor=ADMIN, now=now, key_file=self.key_file, accept=True
            )

    def folder(self, path: Path, *files: str, daily: bool = False, name: str = "finance") -> None:
        with session_scope(self.database.engine) as session:
            export_destinations.add_folder(
                session,
                ADMIN,
                name=name,
                path=str(path),
                files=files or ("csv",),
                from_month="2026-02",
                is_daily=daily,
                now=self.clock.now(),
            )

    def bucket(self, service: S3, *files: str, **changes: Any) -> None:
        given = {
            "name": "bucket",
            "endpoint": service.url,
            "bucket": "finance",
            "access_key": service.access,
            "secret": "env:RHODECK_TEST_S3",
            "region": service.region,
            "prefix": "rhodeck/",
            "files": files or ("csv",),
            "from_month": "2026-02",
            "is_daily": False,
        }
        with session_scope(self.database.engine) as session:
            export_destinations.add_bucket(session, ADMIN, now=self.clock.now(), **(given | changes))

    def rows(self) -> dict[str, ExportDeliveryRow]:
        with session_scope(self.database.engine) as session:
            found = session.scalars(select(ExportDeliveryRow)).all()
            session.expunge_all()
            return {row.what: row for row in found}


@pytest.fixture
def house(database: FreshDatabase, tmp_path: Path) -> House:
    with session_scope(database.engine) as session:
        session.add(PoolRow(name="a", models=["m"], max_num_seqs=4, created_at=FEBRUARY))
        add_price(
            session,
            price_class="on_demand",
            usd_per_node_hour="28",
            effective_from=FEBRUARY,
            source="contract of the tests",
            actor=ADMIN,
            now=FEBRUARY,
        )
        for start, quarters in ((FEBRUARY, 40), (MARCH, 4)):
            for number in range(quarters):
                quarter = start + timedelta(minutes=15 * number)
                session.add(
                    NodeQuarterRow(
                        node="n",
                        quarter=quarter,
                        pool="a",
                        price_class="on_demand",
                        up_s=Decimal(900),
                        last_seen_at=quarter + timedelta(minutes=15),
                    )
                )
    clock = ManualClock(MARCH + timedelta(hours=3))

    def no_http() -> Any:
        raise AssertionError("nothing is asked over the controller's own session")

    deps = Deps(
        engine=database.engine,
        clock=clock,
        leadership=Leadership("here"),
        http=no_http,
        admin_token="t" * 16,
    )
    return House(database, clock, tmp_path / "finance.key", Dropper(deps, UTC_ZONE, Issuer()))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "drop"
    folder.mkdir()
    return folder


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Generator[S3]:
    monkeypatch.setenv("RHODECK_TEST_S3", SECRET)
    with s3_server(secret=SECRET) as running:
        yield running


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_whole(read: Callable[[str], bytes], name: str) -> None:
    """The file is what its manifest says, and February's 10 hours at 28 USD."""
    said = json.loads(read(f"{name}.manifest.json"))
    body = read(name)
    assert (said["file"], said["sha256"]) == (name, hashlib.sha256(body).hexdigest())
    assert said["total_usd"] == "280.00"
    if name == NAME:
        amounts = [Decimal(row["amount_usd"]) for row in csv.DictReader(io.StringIO(body.decode()))]
        assert (len(amounts), sum(amounts)) == (said["rows"], Decimal("280.00"))


# --- a folder -------------------------------------------------------------------------------------------


def test_a_month_is_dropped_once_when_it_has_closed(house: House, place: Path) -> None:
    house.folder(place, "csv", "focus.xlsx", "parquet", "usage.csv")
    assert house.tick() == ""
    assert names(place) == []  # February is open
    house.close()
    said = house.tick()
    files = [
        NAME,
        "spend_2026-02_closed.focus-1.4.xlsx",
        "spend_2026-02_closed.parquet",
        "usage_2026-02.csv",
    ]
    assert names(place) == sorted(files + [f"{file}.manifest.json" for file in files])
    assert all(file in said for file in files)
    for file in files[:3]:
        assert_whole(lambda name: (place / name).read_bytes(), file)
    assert {(place / name).stat().st_mode & 0o777 for name in names(place)} == {0o640}
    before = {name: (place / name).stat().st_mtime_ns for name in names(place)}
    assert house.tick(after_s=3_600) == ""
    assert {name: (place / name).stat().st_mtime_ns for name in names(place)} == before


def test_the_dropped_csv_is_the_sealed_file(house: House, place: Path) -> None:
    house.folder(place)
    house.close()
    house.tick()
    with session_scope(house.database.engine) as session:
        sealed = session.execute(text("SELECT body, sha256 FROM month_close")).one()
    assert (place / NAME).read_bytes() == bytes(sealed.body)
    assert house.rows()["2026-02/csv"].sha256 == sealed.sha256


def test_a_folder_that_is_not_there_is_tried_again_until_it_is(house: House, tmp_path: Path) -> None:
    place = tmp_path / "mount"
    house.folder(place)
    house.close()
    assert f"there is no folder {place}" in house.tick()
    row = house.rows()["2026-02/csv"]
    assert (row.state, row.attempts) == ("pending", 1)
    assert "no folder" in str(row.error)
    assert house.tick(after_s=1) == ""  # not yet
    place.mkdir()
    assert NAME in house.tick(after_s=60)
    assert house.rows()["2026-02/csv"].error is None
    assert_whole(lambda name: (place / name).read_bytes(), NAME)


def test_waits_grow_and_never_end(house: House, tmp_path: Path) -> None:
    house.folder(tmp_path / "never")
    house.close()
    waits: list[float] = []
    for _ in range(10):
        house.tick()
        wait = house.rows()["2026-02/csv"].next_at - house.clock.now()
        waits.append(wait.total_seconds())
        house.clock.advance(waits[-1])
    # 30 s doubled each time, at most an hour
    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_a_crash_between_file_and_record_changes_nothing(house: House, place: Path) -> None:
    house.folder(place)
    house.close()
    house.tick()
    stamp = (place / NAME).stat().st_mtime_ns
    with session_scope(house.database.engine) as session:
        session.execute(text("UPDATE export_delivery SET state = 'pending', delivered_at = NULL"))
    house.tick(after_s=CLAIM_S + 1)
    assert house.rows()["2026-02/csv"].state == "delivered"
    assert (place / NAME).stat().st_mtime_ns == stamp


def test_a_file_without_its_manifest_was_never_whole_and_is_written_again(
    house: House, place: Path
) -> None:
    house.folder(place)
    house.close()
    (place / NAME).write_text("half a fi")
    house.tick()
    assert_whole(lambda name: (place / name).read_bytes(), NAME)


def test_a_name_that_holds_other_lines_is_never_overwritten(house: House, place: Path) -> None:
    house.folder(place)
    house.close()
    (place / NAME).write_text("of another house")
    (place / f"{NAME}.manifest.json").write_text('{"sha256": "0", "canonical_sha256": "feed"}')
    assert "is there of other lines" in house.tick()
    assert (place / NAME).read_text() == "of another house"
    assert house.rows()["2026-02/csv"].state == "pending"


def test_records_of_another_house_under_the_name_are_not_taken_for_ours(house: House, place: Path) -> None:
    house.folder(place, "usage.csv")
    house.close()
    (place / "usage_2026-02.csv").write_text("of another house")
    (place / "usage_2026-02.csv.manifest.json").write_text('{"sha256": "feed", "rows": 7}')
    assert "is there of other lines" in house.tick()
    assert house.rows()["2026-02/usage.csv"].state == "pending"


def test_a_link_under_the_name_is_refused_and_what_it_names_stays(
    house: House, place: Path, tmp_path: Path
) -> None:
    (tmp_path / "crontab").write_text("untouched")
    (place / NAME).symlink_to(tmp_path / "crontab")
    house.folder(place)
    house.close()
    assert "it is not a file" in house.tick()
    assert (tmp_path / "crontab").read_text() == "untouched"
    assert house.rows()["2026-02/csv"].state == "pending"


def test_a_pipe_in_the_place_of_a_manifest_holds_nobody_up(house: House, place: Path) -> None:
    os.mkfifo(place / f"{NAME}.manifest.json")
    house.folder(place)
    house.close()
    assert "it is not a file" in house.tick()
    assert house.rows()["2026-02/csv"].state == "pending"


def test_without_room_for_the_file_every_drop_says_so_and_comes_later(
    house: House, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.folder(place, "csv", "usage.csv")
    house.close()
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        said = house.tick()
    assert said.count("cannot be kept until it is sent: No such file or directory") == 2
    rows = house.rows()
    assert {row.state for row in rows.values()} == {"pending"}
    assert all("cannot be kept" in str(row.error) for row in rows.values())
    assert {(row.next_at - house.clock.now()).total_seconds() for row in rows.values()} == {30.0}
    house.tick(after_s=31)
    assert {row.state for row in house.rows().values()} == {"delivered"}


def test_a_database_that_fails_while_a_file_is_made_is_tried_again_soon(house: House, place: Path) -> None:
    house.folder(place, "csv")
    house.close()
    with psycopg.connect(house.database.dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE month_line RENAME TO month_line_gone")
        assert "the database failed (ProgrammingError)" in house.tick()
        connection.execute("ALTER TABLE month_line_gone RENAME TO month_line")
    house.tick(after_s=31)
    assert house.rows()["2026-02/csv"].state == "delivered"


def test_the_running_month_is_dropped_once_a_day_and_then_closed(house: House, place: Path) -> None:
    house.folder(place, daily=True)
    house.tick()
    first = "spend_2026-03_estimated_2026-03-01.csv"
    assert names(place) == [first, f"{first}.manifest.json"]
    house.tick(after_s=3_600)
    assert len(names(place)) == 2
    house.tick(after_s=86_400)
    assert "spend_2026-03_estimated_2026-03-02.csv" in names(place)


def test_yesterdays_file_that_was_never_taken_is_given_up(house: House, tmp_path: Path) -> None:
    house.folder(tmp_path / "never", daily=True)
    house.tick()
    house.tick(after_s=86_400)
    states = {what: row.state for what, row in house.rows().items()}
    assert states == {"2026-03@2026-03-01/csv": "given_up", "2026-03@2026-03-02/csv": "pending"}


def test_a_place_that_keeps_refusing_is_a_metric_and_an_alert_until_it_takes_the_file(
    house: House, tmp_path: Path
) -> None:
    metrics, place = ControlMetrics(), tmp_path / "missing"
    house.dropper = replace(house.dropper, metrics=metrics)

    def seen() -> tuple[float | None, float | None, list[float | None]]:
        with session_scope(house.database.engine) as session:
            found = export_observations(session)
        pending, failing = (
            metrics.registry.get_sample_value("rhodeck_control_exports", {"state": state})
            for state in ("pending", "failing")
        )
        return pending, failing, [o.value for o in found]

    with session_scope(house.database.engine) as session:
        assert export_observations(session) == []  # nobody set any up: nothing to watch
    house.folder(place)
    house.close()
    for _ in range(4):
        house.tick(after_s=3_600)
    assert seen() == (1.0, 1.0, [4.0])
    assert RULES[EXPORT_FAILING].open_at < 4.0
    place.mkdir()
    house.tick(after_s=3_600)
    house.tick()
    assert seen() == (0.0, 0.0, [0.0])


def test_a_standby_drops_nothing(house: House, place: Path) -> None:
    house.folder(place)
    house.close()
    assert asyncio.run(house.dropper.tick()) == ""
    assert names(place) == []


def test_a_destination_that_was_removed_gets_nothing_more(house: House, place: Path) -> None:
    house.folder(place)
    with session_scope(house.database.engine) as session:
        export_destinations.remove(session, ADMIN, name="finance", now=house.clock.now())
    house.close()
    house.tick()
    assert names(place) == []


# --- a bucket -------------------------------------------------------------------------------------------


def test_a_bucket_takes_signed_objects(house: House, service: S3) -> None:
    house.bucket(service, "csv", "focus.parquet")
    house.close()
    house.tick()
    wanted = {f"finance/rhodeck/{name}" for name in (NAME, "spend_2026-02_closed.focus-1.4.parquet")}
    assert set(service.objects) == wanted | {f"{name}.manifest.json" for name in wanted}
    assert_whole(lambda name: service.objects[f"finance/rhodeck/{name}"], NAME)


def test_a_service_that_is_busy_is_asked_again_and_the_manifest_comes_last(
    house: House, service: S3
) -> None:
    service.refuse = 2
    house.bucket(service)
    house.close()
    assert "HTTP 503 SlowDown" in house.tick()
    assert service.objects == {}
    house.tick(after_s=60)
    assert NAME in house.tick(after_s=120)
    puts = [asked for asked in service.asked if asked.startswith("PUT")]
    assert puts[-2:] == [f"PUT finance/rhodeck/{NAME}", f"PUT finance/rhodeck/{NAME}.manifest.json"]


def test_an_answer_that_got_lost_leaves_one_object(house: House, service: S3) -> None:
    service.cut = 1  # the object is stored, its answer never comes
    house.bucket(service)
    house.close()
    assert "cannot be reached" in house.tick()
    assert set(service.objects) == {f"finance/rhodeck/{NAME}"}
    house.tick(after_s=60)
    assert_whole(lambda name: service.objects[f"finance/rhodeck/{name}"], NAME)
    assert len(service.objects) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"region": "us-west-1"}, "403 InvalidAccessKeyId"),
        ({"access_key": "OTHERKEY"}, "403 InvalidAccessKeyId"),
        ({"bucket": "nobodys"}, "404 NoSuchBucket"),
        ({"secret": "env:RHODECK_TEST_UNSET"}, "no secret in env:RHODECK_TEST_UNSET"),
        ({"secret": "file:/nowhere/at/all"}, "/nowhere/at/all cannot be read"),
        ({"endpoint": "http://127.0.0.1:1"}, "cannot be reached"),
        ({"endpoint": "http://169.254.169.254"}, "never called"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_stored(
    house: House, service: S3, changes: dict[str, str], said: str
) -> None:
    house.bucket(service, **changes)
    house.close()
    assert said in house.tick()
    assert said in str(house.rows()["2026-02/csv"].error)
    assert service.objects == {}


def test_a_wrong_secret_is_refused_and_shown_nowhere(
    house: House,
    service: S3,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "s3.key").write_text("another-secret-entirely\n")
    house.bucket(service, secret=f"file:{tmp_path / 's3.key'}")
    house.close()
    assert "403 SignatureDoesNotMatch" in house.tick()
    (tmp_path / "s3.key").write_text(SECRET + "\n")
    assert NAME in house.tick(after_s=60)
    with session_scope(house.database.engine) as session:
        for table in ("export_destination", "export_delivery", "audit"):
            kept = str(session.execute(text(f"SELECT * FROM {table}")).all())
            assert SECRET not in kept
            assert "another-secret" not in kept


# --- who may say where ----------------------------------------------------------------------------------


def test_only_an_admin_names_folders_and_secrets(house: House, place: Path) -> None:
    fay = Actor("fay", Role.FINANCE, "page")
    with session_scope(house.database.engine) as session, pytest.raises(Forbidden):
        export_destinations.add_folder(
            session,
            fay,
            name="x",
            path=str(place),
            files=("csv",),
            from_month="2026-02",
            is_daily=False,
            now=house.clock.now(),
        )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"secret": "the-secret-itself"}, "secret"),
        ({"secret": "env:DATABASE_URL"}, "secret"),
        ({"secret": "file:relative"}, "secret"),
        ({"prefix": "../"}, "prefix"),
        ({"prefix": "/abs/"}, "prefix"),
        ({"files": ("pdf",)}, "files"),
        ({"from_month": "2026-13"}, "from"),
        ({"name": "A B"}, "name"),
        ({"endpoint": "https://user:pw@host"}, "endpoint"),
    ],
)
def test_a_destination_that_cannot_be_is_refused(
    house: House, service: S3, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        house.bucket(service, **changes)
    assert refused.value.field == field


def test_the_command_line_adds_lists_and_removes(
    house: House, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", house.database.dsn)

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        return capfd.readouterr().out

    run("exports", "folder", "nas", str(place), "--file", "csv", "--from", "2026-02")
    run(
        *("exports", "s3", "lake", "https://s3.example.org", "finance", "--access-key", "AK1"),
        *("--secret", "env:RHODECK_LAKE", "--prefix", "rhodeck/", "--from", "2026-02", "--daily"),
    )
    house.close()
    house.tick()
    listed = run("exports", "list")
    assert f"nas: {place} from 2026-02: csv" in listed
    assert "lake: https://s3.example.org/finance/rhodeck/ from 2026-02, daily: csv, focus.csv" in listed
    assert f"nas  {NAME}  dropped" in listed
    assert "lake  2026-02/csv  pending, 1 tries" in listed
    run("exports", "remove", "lake")
    assert "lake:" not in run("exports", "list")
    with session_scope(house.database.engine) as session:
        actions = session.scalars(select(AuditRow.action).where(AuditRow.action.like("export_%"))).all()
    assert list(actions) == [
        "export_destination.add",
        "export_destination.add",
        "export_destination.remove",
    ]
