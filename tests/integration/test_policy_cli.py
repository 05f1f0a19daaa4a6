"""The command line does what pages and API do, and says what went wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from control import cli
from control.tables import GatewayObservedRow, TenantKeyRow
from control.tenant_keys import key_hash
from fleet.clock import SystemClock
from fleet.policy import default_policy
from tests.gateway_status import gateway_status
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

Run = Callable[..., Result]


@pytest.fixture
def run(database: FreshDatabase, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("DATABASE_URL", database.dsn)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(cli.rhodeck, list(arguments))

    return invoke


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(default_policy().as_document()))
    return path


def change(path: Path, **tiers: int) -> None:
    made: dict[str, Any] = json.loads(path.read_text())
    for tier, weight in tiers.items():
        made["tiers"][tier]["weight"] = weight
    path.write_text(json.dumps(made))


def test_a_policy_goes_from_file_to_history_and_back(run: Run, policy_file: Path) -> None:
    assert run("policy", "validate", str(policy_file)).output.startswith("valid: 0 tenants")
    first = run("policy", "publish", str(policy_file), "--note", "begin", "--parent", "0")
    assert (first.exit_code, first.output.splitlines()[0][:20]) == (0, "revision 1 published")
    change(policy_file, interactive=60, batch=35)
    shown = run("policy", "diff", str(policy_file)).output.splitlines()
    assert shown == [
        "against revision 1: 2 fields differ",
        "  /tiers/batch/weight: 25 -> 35",
        "  /tiers/interactive/weight: 70 -> 60",
    ]
    assert (
        run("policy", "publish", str(policy_file), "--note", "more batch", "--parent", "1").exit_code == 0
    )
    assert json.loads(run("policy", "show").output)["tiers"]["batch"]["weight"] == 35
    assert "revision 2 is first (staged)" in run("policy", "rollout").output
    assert run("policy", "abort", "--note", "no").output.startswith("revision 2 is aborted")
    assert run("policy", "rollback", "1", "--note", "back").exit_code == 0
    lines = run("policy", "history").output.splitlines()
    assert [line.split()[0] for line in lines] == ["3", "2", "1"]
    assert lines[0].endswith("back (content of 1)")
    assert json.loads(run("policy", "show").output) == default_policy().as_document()
    assert run("audit", "verify").output.startswith("whole: 4 rows")
    rows = [json.loads(line) for line in run("audit", "list", "--json").output.splitlines()]
    actions = ["policy.publish", "rollout.abort", "policy.publish", "policy.publish"]
    assert [row["action"] for row in rows] == actions
    assert {(row["role"], row["via"]) for row in rows} == {("admin", "cli")}
    assert len(run("audit", "list").output.splitlines()) == 4


def test_a_policy_that_leaves_requests_without_a_node_is_said_to_before_and_when_it_is_published(
    run: Run, policy_file: Path
) -> None:
    assert run("pools", "add", "main", "--model", "m-70b", "--max-num-seqs", "64").exit_code == 0
    assert run("nodes", "add", "n1", "http://10.0.0.1:8000", "--pool", "main").exit_code == 0
    first = run("policy", "publish", str(policy_file), "--note", "begin", "--parent", "0")
    assert "warning" not in first.output
    made: dict[str, Any] = json.loads(policy_file.read_text())
    long = {"name": "long", "max_tokens": 100_000, "kv_share_ratio": 1.0, "pool": "main"}
    made["admission"]["size_classes"] = [long]
    policy_file.write_text(json.dumps(made))
    warning = "warning: No node of m-70b takes requests outside the size classes bound to main"
    assert warning in run("policy", "diff", str(policy_file)).output
    published = run("policy", "publish", str(policy_file), "--note", "long ones", "--parent", "1")
    assert published.exit_code == 0
    assert warning in published.output


def test_an_overtaken_editor_is_told_what_changed_and_the_exit_code_is_1(
    run: Run, policy_file: Path, database: FreshDatabase
) -> None:
    run("policy", "publish", str(policy_file), "--note", "begin", "--parent", "0")
    change(policy_file, interactive=60, batch=35)
    run("policy", "publish", str(policy_file), "--note", "theirs", "--parent", "1")
    change(policy_file, interactive=50, batch=45)
    command = ["policy", "publish", str(policy_file), "--note", "mine", "--parent", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "control", *command],
        env=os.environ | {"DATABASE_URL": database.dsn},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "  /tiers/batch/weight: 25 -> 35" in done.stderr
    assert "error: revision 1 is not the newest any more: revision 2 by" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"tiers": {}}', "/tiers/interactive"),
        (b" " * 1_000_001, "at most 1000000"),
    ],
)
def test_a_bad_file_is_refused_with_a_reason(run: Run, tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    for command in (["validate"], ["publish", "--note", "x", "--parent", "0"]):
        result = run("policy", *command, str(path))
        assert result.exit_code != 0
        assert said in str(result.exception)
    assert run("policy", "history").output == ""


def test_a_tampered_record_fails_verification_by_name(
    run: Run, policy_file: Path, database: FreshDatabase
) -> None:
    run("policy", "publish", str(policy_file), "--note", "begin", "--parent", "0")
    with database.engine.begin() as connection:
        connection.execute(text("ALTER TABLE audit DISABLE TRIGGER append_only"))
        connection.execute(text("UPDATE audit SET actor = 'eve' WHERE id = 1"))
    result = run("audit", "verify")
    assert result.exit_code != 0
    assert "row 1 was changed" in str(result.exception)


def test_a_quota_set_to_zero_and_back_leaves_what_may_be_held(run: Run) -> None:
    def quota() -> dict[str, int]:
        return json.loads(run("policy", "show").stdout)["tenants"]["acme"]

    assert run("tenants", "set", "acme", "--tokens-per-minute", "1000000").exit_code == 0
    held = {"burst_tokens": 250_000, "max_in_flight_tokens": 1_000_000, "max_concurrent_requests": 200}
    assert {name: quota()[name] for name in held} == held
    assert run("tenants", "set", "acme", "--tokens-per-minute", "0").exit_code == 0
    assert quota()["tokens_per_minute"] == 0
    assert {name: quota()[name] for name in held} == held  # only the rate is 0: it is what refuses
    zeros = ("--burst-tokens", "0", "--max-in-flight-tokens", "0")
    assert run("tenants", "set", "acme", "--tokens-per-minute", "0", *zeros).exit_code == 0
    assert (quota()["burst_tokens"], quota()["max_in_flight_tokens"]) == (0, 0)


def test_a_tenant_key_is_shown_once_and_stored_as_a_hash(run: Run, database: FreshDatabase) -> None:
    made = run("tenants", "key", "create", "acme", "--label", "ci")
    secret = made.stdout.strip()
    assert secret.startswith("rk-tenant-")
    assert len(secret) == len("rk-tenant-") + 43  # 32 bytes in base64 without padding
    with Session(database.engine) as session:
        row = session.scalars(select(TenantKeyRow)).one()
    assert row.sha256 == key_hash(secret)
    listed = run("tenants", "key", "list").output
    assert row.id in listed
    assert secret not in listed
    assert secret not in run("audit", "list", "--json").output
    assert run("tenants", "key", "revoke", row.id).output == f"key {row.id} revoked\n"
    assert run("tenants", "key", "revoke", row.id).output == f"key {row.id} was revoked before\n"
    assert run("tenants", "key", "revoke", "tk-none").exit_code != 0
    assert run("tenants", "key", "create", "Not A Name").exit_code != 0


def test_gateways_are_added_listed_and_removed(run: Run) -> None:
    assert run("gateways", "add", "gw-1", "http://127.0.0.1:8400/").output.endswith(
        "http://127.0.0.1:8400\n"
    )
    assert "unknown  never heard" in run("gateways", "list").output
    for name, url in (("gw-1", "http://127.0.0.1:8401"), ("gw-2", "http://127.0.0.1:8400")):
        assert run("gateways", "add", name, url).exit_code != 0
    assert run("gateways", "remove", "gw-1").exit_code == 0
    assert run("gateways", "remove", "gw-1").exit_code != 0
    assert (
        run("gateways", "add", "gw-2", "http://127.0.0.1:8400").exit_code == 0
    )  # the address is free again
    assert run("gateways", "add", "gw-1", "http://127.0.0.1:8402").exit_code == 0  # and so is the name


def test_what_a_gateway_does_not_enforce_is_listed_with_it(
    run: Run, policy_file: Path, database: FreshDatabase
) -> None:
    assert run("policy", "publish", str(policy_file), "--note", "begin", "--parent", "0").exit_code == 0
    assert run("gateways", "add", "gw-1", "http://127.0.0.1:8400").exit_code == 0
    listings = (("gateways", "list"), ("policy", "rollout"))
    assert all("enforce" not in run(*listing).output for listing in listings)
    now = SystemClock().now()
    pointers = ("/tiers/batch/engine_priority", "/tenants/acme/quota_mode")
    status = gateway_status(
        unsupported=pointers,
        clock_at_s=now.timestamp(),
        started_at_s=now.timestamp(),
    ).model_dump(mode="json", by_alias=True)
    with Session(database.engine) as session, session.begin():
        row = GatewayObservedRow(
            gateway="gw-1", condition="converged", message="", tried_at=now, seen_at=now, status=status
        )
        session.add(row)
    for listing in listings:
        assert f"does not enforce {', '.join(pointers)}" in run(*listing).output


def test_the_processes_of_one_gateway_are_registered_by_one_command_and_shown_as_a_group(run: Run) -> None:
    assert run("gateways", "add", "gw-0", "http://127.0.0.1:8300").exit_code == 0
    added = run("gateways", "add", "gw-1", "http://10.0.0.9:8409", "--processes", "3")
    assert added.output.splitlines() == [
        "gateway gw-1-1 added at http://10.0.0.9:8409",
        "gateway gw-1-2 added at http://10.0.0.9:8410",
        "gateway gw-1-3 added at http://10.0.0.9:8411",
    ]
    listed = run("gateways", "list").output.splitlines()
    assert [line.split()[0] for line in listed] == ["gw-0", "gw-1", "gw-1-1", "gw-1-2", "gw-1-3"]
    assert listed[1] == "gw-1  3 processes, all unknown"
    # One that is in the way: none is added.
    assert run("gateways", "add", "gw-2", "http://10.0.0.9:8407", "--processes", "3").exit_code != 0
    assert "gw-2" not in run("gateways", "list").output
    for wrong in (("http://10.0.0.9", "2"), ("http://10.0.0.9:65535", "2"), ("http://10.0.0.9:1", "65")):
        assert run("gateways", "add", "gw-3", wrong[0], "--processes", wrong[1]).exit_code != 0
    # A name that means a group, a gateway or a process already: `remove` would not know which is meant.
    for taken in (("gw-1",), ("gw-0", "--processes", "2"), ("gw-1-1", "--processes", "2")):
        assert run("gateways", "add", taken[0], "http://10.0.0.7:8500", *taken[1:]).exit_code != 0
    assert "10.0.0.7" not in run("gateways", "list").output
    # One process, and then the whole group.
    assert run("gateways", "remove", "gw-1-2").exit_code == 0
    gone = run("gateways", "remove", "gw-1").output
    assert ("gw-1-1" in gone, "gw-1-2" in gone, "gw-1-3" in gone) == (True, False, True)
    assert [line.split()[0] for line in run("gateways", "list").output.splitlines()] == ["gw-0"]
    # Alone under a name that was a process's: of no group any more.
    assert run("gateways", "add", "gw-1-1", "http://10.0.0.9:8409").exit_code == 0
    assert [line.split()[0] for line in run("gateways", "list").output.splitlines()] == ["gw-0", "gw-1-1"]
