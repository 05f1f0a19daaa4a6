"""`rhodeck users` and `rhodeck tokens`: no secret as an argument, none shown twice, clear refusals."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner, Result
from sqlalchemy.orm import Session

from control import accounts, cli, tokens
from control.cli_users import tokens as tokens_group
from control.cli_users import users as users_group
from control.database import session_scope
from control.tokens import Scope
from fleet.clock import SystemClock
from fleet.errors import Unauthenticated
from tests.gateway_process import ROOT
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

PASSWORD = "correct horse battery"

Run = Callable[..., Result]


@pytest.fixture
def run(database: FreshDatabase, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("DATABASE_URL", database.dsn)

    def invoke(*arguments: str, given: str | None = None) -> Result:
        return CliRunner().invoke(cli.rhodeck, list(arguments), input=given)

    return invoke


def may_enter(database: FreshDatabase, name: str, password: str) -> bool:
    with session_scope(database.engine) as session:
        return accounts.sign_in(session, name=name, password=password, now=SystemClock().now()) is not None


def test_an_account_is_made_changed_and_barred(run: Run, database: FreshDatabase) -> None:
    assert run("users", "list").output.startswith("no accounts")
    added = run("users", "add", "olga", "--role", "viewer", given=PASSWORD + "\n")
    assert (added.exit_code, added.output) == (0, "account olga may sign in as viewer\n")
    assert may_enter(database, "olga", PASSWORD)
    assert run("users", "role", "olga", "finance").output == "olga is finance now\n"
    assert run("users", "list").output == "olga  finance\n"
    changed = run("users", "password", "olga", given="another long one\r\n")  # a line of another system
    assert "its sign-ins have ended" in changed.output
    assert may_enter(database, "olga", "another long one")
    assert run("users", "disable", "olga").exit_code == 0
    assert run("users", "list").output == "olga  finance  disabled\n"
    assert not may_enter(database, "olga", "another long one")
    for result in (added, changed, run("audit", "list", "--json")):
        assert PASSWORD not in result.output
        assert "another long one" not in result.output


def test_no_command_takes_a_secret_as_an_argument() -> None:
    """Arguments are in the shell's history and in the list of processes."""
    for group in (users_group, tokens_group):
        for command in group.commands.values():
            words = [name.strip("-") for option in command.params for name in option.opts]
            assert not [word for word in words if re.search(r"pass|secret|pw", word)], command.name


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (("users", "add", "olga", "--role", "viewer"), "", "no password on standard input"),
        (("users", "add", "olga", "--role", "viewer"), "\n", "no password on standard input"),
        (("users", "add", "olga", "--role", "viewer"), "short\n", "10 to 200"),
        (("users", "add", "olga", "--role", "viewer"), "x" * 5_000, "10 to 200"),
        (("users", "add", "Ol ga", "--role", "viewer"), PASSWORD, "is not an account name"),
        (("users", "password", "nobody"), PASSWORD, "there is no account 'nobody'"),
        (("users", "role", "nobody", "admin"), None, "there is no account 'nobody'"),
        (("users", "disable", "nobody"), None, "there is no account 'nobody'"),
        (("tokens", "create", " ", "--scope", "status:read"), None, "needs a name"),
        (("tokens", "create", "ci", "--scope", "everything"), None, "unknown scopes: everything"),
        (("tokens", "create", "ci", "--scope", "status:read", "--days", "0"), None, "1 to 366"),
        (("tokens", "revoke", "at-000000000000"), None, "there is no token"),
        (("tokens", "revoke", "x"), None, "there is no token"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    run: Run, arguments: tuple[str, ...], given: str | None, said: str
) -> None:
    result = run(*arguments, given=given)
    assert result.exit_code == 1
    assert said in str(result.exception)
    assert run("users", "list").output.startswith("no accounts")
    assert run("tokens", "list").output == "no tokens\n"
    assert run("audit", "list").output == ""


@pytest.mark.parametrize(
    "arguments",
    [("users", "add", "olga"), ("users", "add", "olga", "--role", "root"), ("tokens", "create", "ci")],
)
def test_a_missing_or_unknown_choice_is_a_usage_error(run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments, given=PASSWORD).exit_code == 2


def test_a_taken_name_is_refused_and_keeps_its_password(run: Run, database: FreshDatabase) -> None:
    run("users", "add", "olga", "--role", "viewer", given=PASSWORD)
    again = run("users", "add", "olga", "--role", "admin", given="another long one")
    assert "account olga exists" in str(again.exception)
    assert may_enter(database, "olga", PASSWORD)
    assert run("users", "list").output == "olga  viewer\n"


def test_a_token_is_printed_once_alone_on_standard_output(run: Run, database: FreshDatabase) -> None:
    made = run("tokens", "create", "month end", "--scope", "spend:read", "--scope", "status:read")
    secret = made.stdout.strip()
    assert re.fullmatch(r"rk-api-[A-Za-z0-9_-]{43}", secret)
    assert made.stdout == secret + "\n"
    assert secret not in made.stderr
    listed = run("tokens", "list").output
    assert "spend:read, status:read" in listed
    assert "month end" in listed
    assert secret not in listed + run("audit", "list", "--json").output
    now = SystemClock().now()
    with session_scope(database.engine) as session:
        found = tokens.authenticate(session, secret, Scope.SPEND_READ, now)
        assert found.expires_at is not None
        assert 89 <= (found.expires_at - now).days <= 90
    assert run("tokens", "revoke", found.id).output == f"token {found.id} revoked\n"
    assert run("tokens", "revoke", found.id).output == f"token {found.id} was revoked before\n"
    assert "  revoked  " in run("tokens", "list").output
    with pytest.raises(Unauthenticated), session_scope(database.engine) as session:
        tokens.authenticate(session, secret, Scope.SPEND_READ, now)


def test_the_list_says_until_when(run: Run, database: FreshDatabase) -> None:
    run("tokens", "create", "ci", "--scope", "status:read", "--days", "1")
    with Session(database.engine) as session:
        [token] = tokens.api_tokens(session)
    assert token.expires_at is not None
    assert token.expires_at > datetime.now(UTC)
    assert f"until {token.expires_at:%Y-%m-%d}" in run("tokens", "list").output


def test_a_terminal_is_asked_twice_and_shows_nothing(database: FreshDatabase) -> None:
    """A real terminal device: what is typed must not come back."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "control", "users", "add", "olga", "--role", "admin"],
        cwd=ROOT,
        env=dict(os.environ) | {"DATABASE_URL": database.dsn, "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    screen = b""

    def read_until(words: bytes) -> None:
        nonlocal screen
        until = time.monotonic() + 60
        while words not in screen and time.monotonic() < until:
            if select.select([ours], [], [], 1)[0]:
                try:
                    piece = os.read(ours, 4096)
                except OSError:  # the other end is closed: Linux says so with EIO
                    break
                if not piece:
                    break
                screen += piece
        assert words in screen, screen

    try:
        read_until(b"Password: ")
        os.write(ours, PASSWORD.encode() + b"\n")
        read_until(b"Repeat for confirmation: ")
        os.write(ours, PASSWORD.encode() + b"\n")
        read_until(b"account olga may sign in as admin")
    finally:
        os.close(ours)
        assert process.wait(60) == 0
    assert PASSWORD.encode() not in screen
    assert may_enter(database, "olga", PASSWORD)
