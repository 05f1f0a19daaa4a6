"""`rhodeck demo` and `rhodeck up` as a person meets them: one command, all parts, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.accounts import sign_in
from control.audit import verify
from control.database import make_engine
from control.ports import PortClaims
from control.queries_policy import head
from control.supervise import free_port
from control.tables import NodeRow, UsageRecordRow
from control.up import API_PORT, choose_ports
from fleet.clock import SystemClock
from fleet.errors import Conflict
from tests.gateway_process import ROOT, eventually
from tests.postgres_server import open_folder

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(600)]

DEMO = ("demo", "--nodes", "2", "--profile", "tiny", "--rate", "8")
PARTS = {"postgres", "control", "api", "dashboard", "admission", "simfleet"}
START_S = 150.0


@pytest.fixture
def state() -> Generator[Path]:
    """A state folder that does not exist yet, where the database's account may pass through."""
    with open_folder() as folder:
        yield folder / "state"


def environment(state: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RHODECK_", "DATABASE_"))}
    return kept | {"RHODECK_STATE_DIR": str(state), "PYTHONUNBUFFERED": "1"}


def rhodeck(state: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "control", *arguments],
        cwd=ROOT,
        env=environment(state) | env,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


class Machine:
    """`rhodeck demo` or `rhodeck up`, running."""

    def __init__(self, state: Path, *arguments: str) -> None:
        self.state = state
        self.output = state.with_name(f"{state.name}.out")
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "control", *arguments],
                cwd=ROOT,
                env=environment(state),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.family: list[psutil.Process] = []

    def wait_until_up(self) -> None:
        self.wait_until_it_says("Ctrl-C stops everything")
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def wait_until_it_says(self, words: str) -> None:
        def is_said() -> bool:
            assert words in self.said() or self.process.poll() is None, self.said()
            return words in self.said()

        eventually(is_said, within_s=START_S)

    def said(self) -> str:
        return self.output.read_text()

    def address(self, part: str) -> str:
        return next(line.split()[1] for line in self.said().splitlines() if line.startswith(part))

    @property
    def dsn(self) -> str:
        return self.said().partition("DATABASE_URL='")[2].partition("'")[0]

    @contextlib.contextmanager
    def session(self) -> Generator[Session]:
        engine = make_engine(self.dsn, pool_size=1)
        try:
            with Session(engine) as session, session.begin():
                yield session
        finally:
            engine.dispose()

    def status(self) -> subprocess.CompletedProcess[str]:
        return rhodeck(self.state, "status", "--json", DATABASE_URL=self.dsn)

    def end(self, number: signal.Signals) -> int:
        """Send a signal to the supervisor alone, wait for it, and require that nobody outlives it."""
        self.process.send_signal(number)
        code = self.process.wait(60)
        _, alive = psutil.wait_procs(self.family, timeout=30)
        assert alive == []
        eventually(lambda: not self.relatives())
        return code

    def words(self) -> set[str]:
        """The words of the parts' command lines. (Postgres' own processes come and go.)"""
        found: set[str] = set()
        for process in self.family:
            with contextlib.suppress(psutil.NoSuchProcess):
                found |= {process.name(), *process.cmdline()}
        return found

    def relatives(self) -> list[str]:
        """Processes that name this state folder, whoever their parent is."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = " ".join(process.info["cmdline"] or ())
            if str(self.state) in words and process.pid != os.getpid():
                found.append(words)
        return found

    def kill_all(self) -> None:
        """What a failed test leaves running."""
        if self.process.poll() is None:
            boss = psutil.Process(self.process.pid)
            for process in (*boss.children(recursive=True), boss):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.process.wait(30)


Start = Callable[..., Machine]


@pytest.fixture
def start(state: Path) -> Generator[Start]:
    """Starts a machine on the state folder and waits until it says that it is up."""
    started: list[Machine] = []

    def run(*arguments: str) -> Machine:
        started.append(Machine(state, *arguments))
        started[-1].wait_until_up()
        return started[-1]

    yield run
    for machine in started:
        machine.kill_all()


def secrets_of(state: Path) -> dict[str, str]:
    """Every secret of the machine, by a name that may be printed."""
    folder = state / "secrets"
    found = {"admin token": (folder / "admin_token").read_text().strip()}
    for name in ("traffic_keys.json", "passwords.json"):
        found |= {
            f"{name} of {who}": value for who, value in json.loads((folder / name).read_text()).items()
        }
    return found


def leaks(state: Path) -> list[str]:
    """Files that hold a secret in clear, besides the ones meant to; the database's files included."""
    secrets = {name: value.encode() for name, value in secrets_of(state).items()}
    return [
        f"{name} in {path.relative_to(state)}"
        for path in state.rglob("*")
        if path.is_file() and state / "secrets" not in path.parents
        for content in [path.read_bytes()]
        for name, value in secrets.items()
        if value in content
    ]


def answers(machine: Machine) -> dict[str, int]:
    """What the replayed clients were answered so far, by status."""
    counts: dict[str, int] = {}
    for line in (machine.state / "logs" / "traffic.log").read_text().splitlines():
        report: dict[str, Any] = json.loads(line)
        for status, count in report["outcomes"].items():
            counts[status] = counts.get(status, 0) + count
    return counts


def is_whole(machine: Machine) -> bool:
    """True once every node is fresh and every gateway converged, whatever their load."""
    report = json.loads(machine.status().stdout or "{}")
    conditions = {g["name"]: g["condition"] for g in report.get("gateways", ())}
    return report.get("nodes") == {"fresh": 2, "stale": 0, "silent": 0} and conditions == {
        "gw-1": "converged",
        "gw-2": "converged",
    }


def usage_count(machine: Machine) -> int:
    with machine.session() as session:
        return session.scalars(select(func.count()).select_from(UsageRecordRow)).one()


def test_a_demonstration_starts_serves_survives_a_kill_and_leaves_nothing(
    state: Path, start: Start
) -> None:
    machine = start(*DEMO)
    assert machine.words() >= PARTS

    # its nodes and gateways are heard, and its clients are served by the simulated engines
    eventually(lambda: is_whole(machine), within_s=120)
    eventually(lambda: answers(machine).get("ok", 0) > 0, within_s=60)
    # the trace has requests beyond a tiny engine's context (400) or budget (413); nothing else may fail
    assert not answers(machine).keys() & {"401", "403", "404", "500", "502", "error"}
    assert httpx.get(f"{machine.address('Dashboard')}/healthz", trust_env=False).status_code == 200
    assert httpx.get(f"{machine.address('API')}/readyz", trust_env=False).json() == {"status": "ready"}

    # every secret is random, shown or kept where it must be, and nowhere else
    known = secrets_of(state)
    assert len(set(known.values())) == len(known) == 1 + 6 + 4
    for path in (state / "secrets").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    words = " ".join(machine.words())
    assert [name for name, value in known.items() if value in words] == []
    shown = [name for name, value in known.items() if value in machine.said()]
    assert shown == [name for name in known if name.startswith("passwords")]
    with machine.session() as session:
        password = known["passwords.json of admin"]
        assert sign_in(session, name="admin", password=password, now=SystemClock().now()) is not None

    # nobody else gets the folder, for whatever purpose
    second = rhodeck(state, *DEMO)
    assert (second.returncode, second.stdout) == (1, "")
    assert f"already owned by process {machine.process.pid}" in second.stderr
    other = rhodeck(state, "up")
    assert other.returncode == 1
    assert "holds a demonstration" in other.stderr
    assert "Traceback" not in second.stderr + other.stderr
    assert machine.process.poll() is None

    # what was done stays, also when the supervisor is killed
    policy = json.loads(rhodeck(state, "policy", "show", DATABASE_URL=machine.dsn).stdout)
    policy["slo"]["ttft_s"] = 0.75
    changed = state.with_name("policy.json")
    changed.write_text(json.dumps(policy))
    command = ("policy", "publish", str(changed), "--note", "looser", "--parent", "1", "--all-at-once")
    assert rhodeck(state, *command, DATABASE_URL=machine.dsn).returncode == 0
    used = eventually(lambda: usage_count(machine), within_s=60)
    assert machine.end(signal.SIGKILL) == -signal.SIGKILL
    assert leaks(state) == []

    again = start(*DEMO)
    assert secrets_of(state) == known
    eventually(lambda: is_whole(again), within_s=120)
    eventually(lambda: usage_count(again) > used, within_s=60)
    with again.session() as session:
        newest = head(session)
        assert newest is not None
        assert (newest.number, newest.note, newest.document) == (2, "looser", policy)
        assert len(session.scalars(select(NodeRow).where(NodeRow.state == "active")).all()) == 2
        assert verify(session) is None
    assert again.end(signal.SIGTERM) == 0
    assert again.said().rstrip().endswith("stopped")
    assert leaks(state) == []


def test_a_real_fleet_starts_empty_and_ends_with_ctrl_c(state: Path, start: Start) -> None:
    machine = start("up", "--gateways", "1")
    assert "Sign in as" not in machine.said()

    def settled() -> bool:
        report = json.loads(machine.status().stdout)
        conditions = [gateway["condition"] for gateway in report["gateways"]]
        problems = report["problems"]  # "no scrape round yet" until the first one
        return (report["revision"], conditions, problems) == (1, ["converged"], ["no node is registered"])

    eventually(settled, within_s=120)
    refused = rhodeck(state, *DEMO)
    assert refused.returncode == 1
    assert "holds a real fleet's data" in refused.stderr
    assert machine.end(signal.SIGINT) == 0


@pytest.mark.parametrize("moment", ["starting Postgres", "schema at revision", "control      started"])
def test_an_interrupted_start_leaves_nothing(state: Path, moment: str) -> None:
    machine = Machine(state, *DEMO)
    try:
        machine.wait_until_it_says(moment)
        machine.end(signal.SIGTERM)
        assert "Traceback" not in machine.said()
        assert "holds a demonstration" in rhodeck(state, "up").stderr  # whatever it came to
    finally:
        machine.kill_all()


def test_a_demonstration_without_a_database_makes_way(state: Path, start: Start) -> None:
    state.mkdir(mode=0o711)
    (state / "demo").touch()
    assert start("up", "--gateways", "1").end(signal.SIGTERM) == 0
    assert not (state / "demo").exists()


def test_two_supervisors_never_choose_the_same_port() -> None:
    """Between the choice and the child's listening, seconds pass in which a port looks free."""
    with PortClaims() as mine, PortClaims() as theirs:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            wanted = probe.getsockname()[1]
        ports = [claims.take(wanted) for claims in (mine, theirs, mine, theirs)]
        assert ports[0] == wanted
        assert len(set(ports)) == 4
        assert theirs.take_row(wanted, 1) == 0
        with pytest.raises(Conflict, match=f"port {wanted} of 127.0.0.1 is taken"):
            choose_ports(theirs, 1, wanted)
    with PortClaims() as later:
        assert later.take(wanted) == wanted


def test_a_dashboard_on_a_usual_port_moves_the_part_that_has_it() -> None:
    with PortClaims() as claims:
        ports = choose_ports(claims, 2, free_port(API_PORT))
    assert len({ports.dashboard, ports.api, ports.control, *ports.gateways}) == 5


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("demo", "--profile", "nonsense"), 1, "tiny"),
        (("demo", "--nodes", "0"), 2, "--nodes"),
        (("demo", "--rate", "-3"), 2, "--rate"),
        (("up", "--gateways", "99"), 2, "--gateways"),
        (("up", "--dashboard-port", "70000"), 2, "--dashboard-port"),
    ],
)
def test_a_bad_flag_is_refused_before_anything_is_made(
    state: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = rhodeck(state, *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not state.exists()


def test_another_database_is_not_taken_for_the_embedded_one(state: Path) -> None:
    done = rhodeck(state, "up", DATABASE_URL="postgresql://u:hidden@127.0.0.1:1/x")
    assert done.returncode == 1
    assert "DATABASE_URL names another database" in done.stderr
    assert "hidden" not in done.stderr
    assert not state.exists()


def test_a_taken_dashboard_port_is_refused_before_anything_is_made(state: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = rhodeck(state, "up", "--dashboard-port", str(port))
    assert done.returncode == 1
    assert f"port {port} of 127.0.0.1 is taken" in done.stderr
    assert not state.exists()
