"""API tokens: shown once, stored as a hash, good for what they were made for and no longer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from control import audit, tokens
from control.database import session_scope
from control.roles import Actor, Role
from control.tables import ApiTokenRow
from control.tokens import Scope
from fleet import logs
from fleet.clock import ManualClock
from fleet.errors import Forbidden, InvalidInput, NotFound, Unauthenticated
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

ADMIN = Actor("ada", Role.ADMIN, "cli")


def make(
    database: FreshDatabase, clock: ManualClock, *scopes: str, days: int = 30, name: str = "month end"
) -> tokens.NewApiToken:
    with session_scope(database.engine) as session:
        return tokens.create_api_token(
            session, name=name, scopes=scopes, days=days, actor=ADMIN, now=clock.now()
        )


def use(database: FreshDatabase, clock: ManualClock, secret: str, scope: Scope) -> tokens.ApiToken:
    with session_scope(database.engine) as session:
        return tokens.authenticate(session, secret, scope, clock.now())


def test_the_secret_is_in_no_row_and_in_no_representation(
    database: FreshDatabase, clock: ManualClock
) -> None:
    made = make(database, clock, "spend:read")
    assert re.fullmatch(r"rk-api-[A-Za-z0-9_-]{43}", made.secret)  # 256 bits in base64 without padding
    use(database, clock, made.secret, Scope.SPEND_READ)
    with Session(database.engine) as session:
        tables = session.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).all()
        rows = [r for t in tables for r in session.scalars(text(f"SELECT t::text FROM {t} t"))]
        hashes = session.scalars(text("SELECT sha256 FROM api_token")).all()
    assert any(made.id in row for row in rows)
    assert not any(made.secret in row or made.secret[7:] in row for row in rows)
    assert hashes == [hashlib.sha256(made.secret.encode()).hexdigest()]
    assert made.secret not in repr(made)
    assert made.secret not in f"{made}"
    assert made.secret not in logs.redact(f"called with {made.secret}")
    with pytest.raises(Unauthenticated):  # what a dump shows opens nothing
        use(database, clock, hashes[0], Scope.SPEND_READ)


@pytest.mark.parametrize("held", list(Scope))
@pytest.mark.parametrize("asked", list(Scope))
def test_a_token_does_what_its_scopes_say_and_nothing_else(
    database: FreshDatabase, clock: ManualClock, held: Scope, asked: Scope
) -> None:
    made = make(database, clock, held)
    if held is asked:
        assert use(database, clock, made.secret, asked).scopes == (held,)
        return
    with pytest.raises(Forbidden, match=f"has the scopes {held}; {asked} is needed"):
        use(database, clock, made.secret, asked)


def test_a_token_ends_with_its_last_day_and_at_once_when_revoked(
    database: FreshDatabase, clock: ManualClock
) -> None:
    old, other = make(database, clock, "status:read", days=1), make(database, clock, "status:read", days=9)
    clock.advance(timedelta(days=1).total_seconds() - 1)
    assert use(database, clock, old.secret, Scope.STATUS_READ).id == old.id
    clock.advance(1)
    with pytest.raises(Unauthenticated):
        use(database, clock, old.secret, Scope.STATUS_READ)
    assert use(database, clock, other.secret, Scope.STATUS_READ).id == other.id
    with session_scope(database.engine) as session:
        assert tokens.revoke_api_token(session, token_id=other.id, actor=ADMIN, now=clock.now())
    with pytest.raises(Unauthenticated):
        use(database, clock, other.secret, Scope.STATUS_READ)
    with session_scope(database.engine) as session:
        assert not tokens.revoke_api_token(session, token_id=other.id, actor=ADMIN, now=clock.now())
        actions = session.scalars(text("SELECT action FROM audit ORDER BY id")).all()
        assert actions == ["api_token.create", "api_token.create", "api_token.revoke"]
        assert audit.verify(session) is None


@pytest.mark.parametrize("secret", ["", "rk-api-", "rk-api-" + "A" * 43, "\0", "ÿ" * 50, "x" * 1_000_000])
def test_a_guess_is_refused(database: FreshDatabase, clock: ManualClock, secret: str) -> None:
    make(database, clock, "status:read")
    with pytest.raises(Unauthenticated):
        use(database, clock, secret, Scope.STATUS_READ)


@pytest.mark.parametrize(
    ("name", "scopes", "days", "field"),
    [
        ("", ["status:read"], 1, "name"),
        ("x" * 101, ["status:read"], 1, "name"),
        ("a\0b", ["status:read"], 1, "name"),
        ("a\nb", ["status:read"], 1, "name"),
        ("\ud800", ["status:read"], 1, "name"),
        ("ci", [], 1, "scopes"),
        ("ci", ["*"], 1, "scopes"),
        ("ci", ["status:read", "admin"], 1, "scopes"),
        ("ci", ["status:read"], 0, "days"),
        ("ci", ["status:read"], -1, "days"),
        ("ci", ["status:read"], 367, "days"),
        ("ci", ["status:read"], 10**12, "days"),
    ],
)
def test_a_token_for_anything_or_for_ever_is_not_made(
    database: FreshDatabase, clock: ManualClock, name: str, scopes: Sequence[str], days: int, field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        make(database, clock, *scopes, days=days, name=name)
    assert refused.value.field == field
    with Session(database.engine) as session:
        assert tokens.api_tokens(session) == []
        assert session.scalar(text("SELECT count(*) FROM audit")) == 0


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, Role.FINANCE])
def test_only_an_admin_makes_and_revokes_tokens(
    database: FreshDatabase, clock: ManualClock, role: Role
) -> None:
    made, eve = make(database, clock, "status:read"), Actor("eve", role, "page")
    with pytest.raises(Forbidden), session_scope(database.engine) as session:
        tokens.create_api_token(
            session, name="mine", scopes=["policy:write"], days=1, actor=eve, now=clock.now()
        )
    with pytest.raises(Forbidden), session_scope(database.engine) as session:
        tokens.revoke_api_token(session, token_id=made.id, actor=eve, now=clock.now())
    assert use(database, clock, made.secret, Scope.STATUS_READ).id == made.id


@pytest.mark.parametrize("token_id", ["at-none", "", "\0", "\ud800", "x" * 100_000])
def test_revoking_what_is_not_there_says_so(
    database: FreshDatabase, clock: ManualClock, token_id: str
) -> None:
    with pytest.raises(NotFound), session_scope(database.engine) as session:
        tokens.revoke_api_token(session, token_id=token_id, actor=ADMIN, now=clock.now())


def test_last_use_is_noted_to_the_minute(database: FreshDatabase, clock: ManualClock) -> None:
    made = make(database, clock, "status:read")

    def noted() -> object:
        with Session(database.engine) as session:
            row = session.get(ApiTokenRow, made.id)
            assert row is not None
            return row.last_used_at

    assert noted() is None
    first = clock.now()
    use(database, clock, made.secret, Scope.STATUS_READ)
    clock.advance(59)
    use(database, clock, made.secret, Scope.STATUS_READ)
    assert noted() == first
    clock.advance(1)
    use(database, clock, made.secret, Scope.STATUS_READ)
    assert noted() == clock.now()


def test_the_list_is_newest_first_and_without_secrets(database: FreshDatabase, clock: ManualClock) -> None:
    older = make(database, clock, "status:read", name="older")
    clock.advance(1)
    newer = make(database, clock, "spend:read", "policy:read", name="newer")
    with Session(database.engine) as session:
        listed = tokens.api_tokens(session)
    assert [t.id for t in listed] == [newer.id, older.id]
    assert listed[0].scopes == (Scope.POLICY_READ, Scope.SPEND_READ)
    assert newer.secret not in repr(listed)
