"""Names that lead nowhere are said at once: a silence of no pool, a key of a tenant no policy knows."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from control.cli import rhodeck
from control.commands_fleet import add_pool
from control.commands_policy import ensure_first_revision
from control.database import session_scope
from control.roles import Actor, Role
from fleet.clock import SystemClock
from fleet.errors import NotFound
from fleet.policy import default_policy
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres
ADA = Actor("ada", Role.ADMIN, "cli")


@pytest.fixture
def house(database: FreshDatabase, monkeypatch: pytest.MonkeyPatch) -> FreshDatabase:
    monkeypatch.setenv("DATABASE_URL", database.dsn)
    return database


def run(*arguments: str) -> Result:
    return CliRunner().invoke(rhodeck, arguments)


def test_a_silence_of_a_pool_that_does_not_exist_is_refused_with_the_names(house: FreshDatabase) -> None:
    with session_scope(house.engine) as session:
        for name in ("h100", "a100"):
            add_pool(session, ADA, name=name, models=["m"], now=SystemClock().now(), max_num_seqs=8)
    said = ("alerts", "silence", "--for", "2h", "--reason", "driver update")
    refused = run(*said, "--pool", "h10O")
    assert isinstance(refused.exception, NotFound)
    assert refused.exception.field == "pool"
    assert "a100, h100" in refused.exception.hint
    assert run(*said, "--pool", "h100").exit_code == 0


def test_a_key_of_a_tenant_no_policy_names_warns_and_is_made(house: FreshDatabase) -> None:
    with session_scope(house.engine) as session:
        ensure_first_revision(
            session, author=ADA, now=SystemClock().now(), document=default_policy().as_document()
        )
    made = run("tenants", "key", "create", "acme")
    assert made.exit_code == 0
    assert made.stdout.startswith("rk-tenant-")  # alone, for a secret store
    assert "warning: revision 1 does not name acme" in made.stderr
