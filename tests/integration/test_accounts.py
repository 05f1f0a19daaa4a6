"""Passwords that a dump does not give away, guesses that run out, sign-ins that end when they should."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from control import accounts
from control.accounts import IDLE_LIMIT, LIFETIME, LOCK, MAX_FAILURES, sign_in, signed_in
from control.audit import verify
from control.database import session_scope
from control.roles import Actor, Role
from control.tables import AccountRow, AuditRow
from fleet.clock import ManualClock
from fleet.errors import (
    Conflict,
    FleetError,
    Forbidden,
    InvalidInput,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

ADMIN = Actor("ada", Role.ADMIN, "cli")
PASSWORD = "correct horse battery"


@dataclass
class Work:
    """Calls of scrypt, and whether they are made cheap (their cost is not what a test is about)."""

    calls: list[dict[str, object]] = field(default_factory=list)
    is_cheap: bool = True


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    made, real = Work(), hashlib.scrypt

    def counted(password: bytes, **parameters: object) -> bytes:
        made.calls.append(parameters)
        cost = {"n": 2, "r": 1, "p": 1} if made.is_cheap else {}
        return real(password, **(parameters | cost))  # type: ignore[arg-type]

    monkeypatch.setattr(hashlib, "scrypt", counted)
    return made


@pytest.fixture
def people(database: FreshDatabase, clock: ManualClock, work: Work) -> FreshDatabase:
    """A database with an account "olga", operator."""
    add(database, clock, "olga")
    return database


def add(database: FreshDatabase, clock: ManualClock, name: str, role: Role = Role.OPERATOR) -> None:
    with session_scope(database.engine) as session:
        accounts.create_account(
            session, name=name, password=PASSWORD, role=role, actor=ADMIN, now=clock.now()
        )


def enter(database: FreshDatabase, clock: ManualClock, name: str, password: str = PASSWORD) -> str | None:
    with session_scope(database.engine) as session:
        return sign_in(session, name=name, password=password, now=clock.now())


def whose(database: FreshDatabase, clock: ManualClock, token: str) -> accounts.Account:
    with session_scope(database.engine) as session:
        return signed_in(session, token, clock.now())


def dump(session: Session) -> str:
    """Every row of every table, as text."""
    tables = session.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).all()
    return "\n".join(
        row for table in tables for row in session.scalars(text(f"SELECT t::text FROM {table} t"))
    )


def test_a_dump_holds_neither_password_nor_token_and_opens_nothing(
    database: FreshDatabase, clock: ManualClock, work: Work
) -> None:
    work.is_cheap = False
    add(database, clock, "olga")
    token = enter(database, clock, "olga")
    assert token is not None
    with session_scope(database.engine) as session:
        row = session.get(AccountRow, "olga")
        assert row is not None
        everything, stored = dump(session), row.password_hash
    assert "olga" in everything
    assert PASSWORD not in everything
    assert token not in everything
    kind, salt, digest = stored.split("$")
    # RFC 7914 by the standard library, with the cost the OWASP cheat sheet asks for: 32 MiB, three times
    again = hashlib.scrypt(
        PASSWORD.encode(), salt=base64.b64decode(salt), n=2**15, r=8, p=3, maxmem=2**26, dklen=32
    )
    assert (kind, base64.b64decode(digest)) == ("scrypt", again)
    for stolen in (stored, digest, hashlib.sha256(token.encode()).hexdigest()):
        with pytest.raises(Unauthenticated):
            whose(database, clock, stolen)


def test_equal_passwords_have_different_hashes(people: FreshDatabase, clock: ManualClock) -> None:
    add(people, clock, "oleg")
    with Session(people.engine) as session:
        hashes = session.scalars(select(AccountRow.password_hash)).all()
        assert len({h.split("$")[1] for h in hashes}) == 2
        assert len({h.split("$")[2] for h in hashes}) == 2


def test_a_wrong_name_a_wrong_password_and_a_barred_account_cost_the_same_work(
    people: FreshDatabase, clock: ManualClock, work: Work
) -> None:
    add(people, clock, "barred")
    with session_scope(people.engine) as session:
        accounts.disable_account(session, name="barred", actor=ADMIN, now=clock.now())
    seen: list[list[dict[str, object]]] = []
    for name, password in (("olga", "wrong password"), ("nobody", PASSWORD), ("barred", PASSWORD)):
        work.calls.clear()
        assert enter(people, clock, name, password) is None
        seen.append([{k: v for k, v in call.items() if k != "salt"} for call in work.calls])
    assert len(seen[0]) == 1
    assert seen[1:] == [seen[0], seen[0]]


@pytest.mark.parametrize("name", ["olga", "nobody"])
def test_after_five_failures_even_the_right_password_waits(
    people: FreshDatabase, clock: ManualClock, name: str
) -> None:
    for _ in range(MAX_FAILURES):
        assert enter(people, clock, name, "wrong password") is None
        clock.advance(1)
    with pytest.raises(Forbidden, match=f"too many failed sign-ins for {name}"):
        enter(people, clock, name)
    clock.advance(LOCK.total_seconds() - MAX_FAILURES - 1)
    with pytest.raises(Forbidden):
        enter(people, clock, name)
    clock.advance(2)  # the first failure is older than the lock now
    assert (enter(people, clock, name) is not None) == (name == "olga")


def test_a_lock_holds_for_one_name_only_and_a_success_forgets_failures(
    people: FreshDatabase, clock: ManualClock
) -> None:
    add(people, clock, "oleg")
    for _ in range(2):
        for _ in range(MAX_FAILURES - 1):
            assert enter(people, clock, "olga", "wrong password") is None
        assert enter(people, clock, "olga") is not None
    for _ in range(MAX_FAILURES):
        enter(people, clock, "oleg", "wrong password")
    with pytest.raises(Forbidden):
        enter(people, clock, "oleg")
    assert enter(people, clock, "olga") is not None


def test_guesses_made_at_once_get_no_more_tries_than_guesses_in_a_row(
    people: FreshDatabase, clock: ManualClock
) -> None:
    def guess(number: int) -> str:
        try:
            return "right" if enter(people, clock, "olga", f"guess number {number}") else "wrong"
        except Forbidden:
            return "locked"

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(guess, range(30)))
    assert sorted(answers) == ["locked"] * 25 + ["wrong"] * MAX_FAILURES


def test_a_sign_in_behind_many_others_is_asked_to_come_back(
    people: FreshDatabase, clock: ManualClock
) -> None:
    with session_scope(people.engine) as first:
        assert sign_in(first, name="olga", password="wrong password", now=clock.now()) is None
        with pytest.raises(Unavailable) as refused:  # the first still holds the name
            enter(people, clock, "olga")
    assert refused.value.retryable
    assert enter(people, clock, "olga") is not None


def test_a_sign_in_ends_after_its_lifetime_however_busy(people: FreshDatabase, clock: ManualClock) -> None:
    token = enter(people, clock, "olga")
    assert token is not None
    step = IDLE_LIMIT - timedelta(seconds=1)
    lived = timedelta()
    while lived + step < LIFETIME:
        clock.advance(step.total_seconds())
        lived += step
        assert whose(people, clock, token).name == "olga"
    clock.advance((LIFETIME - lived).total_seconds() - 1)
    assert whose(people, clock, token).name == "olga"
    clock.advance(1)
    with pytest.raises(Unauthenticated):
        whose(people, clock, token)


def test_an_unused_sign_in_ends(people: FreshDatabase, clock: ManualClock) -> None:
    token = enter(people, clock, "olga")
    assert token is not None
    clock.advance(IDLE_LIMIT.total_seconds())
    with pytest.raises(Unauthenticated):
        whose(people, clock, token)


def signed_out(session: Session, token: str, clock: ManualClock) -> None:
    accounts.sign_out(session, token, clock.now())


def disabled(session: Session, _token: str, clock: ManualClock) -> None:
    accounts.disable_account(session, name="olga", actor=ADMIN, now=clock.now())


def given_a_new_password(session: Session, _token: str, clock: ManualClock) -> None:
    accounts.set_password(session, name="olga", password="another long one", actor=ADMIN, now=clock.now())


@pytest.mark.parametrize("revoke", [signed_out, disabled, given_a_new_password])
def test_a_sign_in_ends_at_once_when(
    people: FreshDatabase, clock: ManualClock, revoke: Callable[[Session, str, ManualClock], None]
) -> None:
    token, other = enter(people, clock, "olga"), enter(people, clock, "olga")
    assert token is not None
    assert other is not None
    with session_scope(people.engine) as session:
        revoke(session, token, clock)
    with pytest.raises(Unauthenticated):
        whose(people, clock, token)
    if revoke is signed_out:  # one browser, not the other
        assert whose(people, clock, other).name == "olga"
    else:
        with pytest.raises(Unauthenticated):
            whose(people, clock, other)
        assert enter(people, clock, "olga") is None  # neither barred nor with the old password


def test_a_new_role_holds_for_sign_ins_that_exist(people: FreshDatabase, clock: ManualClock) -> None:
    token = enter(people, clock, "olga")
    assert token is not None
    assert whose(people, clock, token).role is Role.OPERATOR
    with session_scope(people.engine) as session:
        accounts.set_role(session, name="olga", role=Role.VIEWER, actor=ADMIN, now=clock.now())
    assert whose(people, clock, token).role is Role.VIEWER


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, Role.FINANCE])
def test_only_an_admin_touches_accounts(people: FreshDatabase, clock: ManualClock, role: Role) -> None:
    eve, now = Actor("eve", role, "page"), clock.now()
    attempts: list[Callable[[Session], None]] = [
        lambda s: accounts.create_account(
            s, name="eve", password=PASSWORD, role=Role.ADMIN, actor=eve, now=now
        ),
        lambda s: accounts.set_password(s, name="olga", password=PASSWORD, actor=eve, now=now),
        lambda s: accounts.set_role(s, name="olga", role=Role.ADMIN, actor=eve, now=now),
        lambda s: accounts.disable_account(s, name="olga", actor=eve, now=now),
    ]
    for attempt in attempts:
        with pytest.raises(Forbidden), session_scope(people.engine) as session:
            attempt(session)
    with Session(people.engine) as session:
        assert [(a.name, a.role, a.disabled) for a in accounts.accounts(session)] == [
            ("olga", Role.OPERATOR, False)
        ]


HOSTILE = [
    "",
    "\0",
    "olga\0",
    "\ud800",
    "Olga",
    "ol ga",
    "ölga",
    "x" * 64,
    "x" * 100_000,
    "'; DROP TABLE account; --",
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:20])
def test_a_hostile_name_is_no_account_and_breaks_nothing(
    people: FreshDatabase, clock: ManualClock, work: Work, name: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        add(people, clock, name)
    assert refused.value.field == "name"
    work.calls.clear()
    assert enter(people, clock, name) is None
    assert len(work.calls) == 1
    for change in (accounts.disable_account,):
        with pytest.raises(NotFound), session_scope(people.engine) as session:
            change(session, name=name, actor=ADMIN, now=clock.now())
    assert enter(people, clock, "olga") is not None


@pytest.mark.parametrize("password", ["", "short", "x" * 201, "x" * 1_000_000])
def test_a_password_of_a_wrong_length_is_refused(
    people: FreshDatabase, clock: ManualClock, password: str
) -> None:
    with pytest.raises(InvalidInput, match="10 to 200") as refused, session_scope(people.engine) as session:
        accounts.set_password(session, name="olga", password=password, actor=ADMIN, now=clock.now())
    assert refused.value.field == "password"
    assert len(password) < 10 or password not in str(refused.value)
    assert enter(people, clock, "olga", password) is None


@pytest.mark.parametrize("password", ["\0 in the middle\0!", "\ud800" * 12, "пароль из слов", "🐙" * 200])
def test_a_password_may_hold_any_characters(
    people: FreshDatabase, clock: ManualClock, password: str
) -> None:
    with session_scope(people.engine) as session:
        accounts.set_password(session, name="olga", password=password, actor=ADMIN, now=clock.now())
    assert enter(people, clock, "olga", password) is not None
    assert enter(people, clock, "olga", password[:-1]) is None
    assert enter(people, clock, "olga", password + "x") is None


def test_every_change_is_on_the_record_and_no_secret_is(people: FreshDatabase, clock: ManualClock) -> None:
    with session_scope(people.engine) as session:
        now = clock.now()
        accounts.set_role(session, name="olga", role=Role.FINANCE, actor=ADMIN, now=now)
        accounts.set_password(session, name="olga", password="another long one", actor=ADMIN, now=now)
        accounts.disable_account(session, name="olga", actor=ADMIN, now=now)
    with Session(people.engine) as session:
        rows = session.scalars(select(AuditRow).order_by(AuditRow.id)).all()
        assert [row.action for row in rows] == [
            "account.create",
            "account.role",
            "account.password",
            "account.disable",
        ]
        assert {row.actor for row in rows} == {"ada"}
        assert rows[1].detail == {"from": "operator", "to": "finance"}
        written = session.scalars(text("SELECT a::text FROM audit a")).all()
        assert not any(PASSWORD in row or "another long one" in row or "scrypt" in row for row in written)
        assert verify(session) is None


def test_a_name_is_taken_once_even_by_two_admins_at_once(people: FreshDatabase, clock: ManualClock) -> None:
    with pytest.raises(Conflict, match="account olga exists"):
        add(people, clock, "olga", Role.ADMIN)

    def attempt(_: int) -> str:
        try:
            add(people, clock, "twin")
        except FleetError as problem:
            return type(problem).__name__
        return "made"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(attempt, range(2))) == ["Conflict", "made"]
