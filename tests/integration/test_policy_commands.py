"""Publishing policy: exactly one of two editors wins, and nothing exists by halves."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from control import audit, queries_policy
from control.commands_policy import OvertakenEdit, ensure_first_revision, publish, rollback
from control.commands_rollout import abort, pause, promote, resume
from control.roles import Actor, Role
from control.tables import AuditRow, CommandKeyRow, PolicyRevisionRow, RolloutRow
from fleet.errors import Conflict, Forbidden, InvalidInput, InvalidPolicy, NotFound, StaleParent
from fleet.policy import default_policy, digest_of
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
OPERATOR = Actor("ada", Role.OPERATOR, "cli")


def document(**quotas: int) -> dict[str, Any]:
    """The default policy with one tenant a keyword, at so many tokens per minute."""
    made = default_policy().as_document()
    made["tenants"] = {
        name: {
            "tier": "interactive",
            "allowed_tiers": ["interactive"],
            "tokens_per_minute": tokens,
            "burst_tokens": 1_000,
            "max_in_flight_tokens": 10_000,
            "max_concurrent_requests": 10,
        }
        for name, tokens in quotas.items()
    }
    return made


def start(session: Session) -> None:
    ensure_first_revision(session, author=OPERATOR, now=NOW)
    session.commit()


def send(session: Session, parent: int, **quotas: int) -> int:
    made = publish(
        session, document=document(**quotas), parent=parent, author=OPERATOR, note="why", now=NOW
    )
    session.commit()
    return made.number


def count(session: Session, table: type) -> int:
    return session.scalar(select(func.count()).select_from(table)) or 0


def test_a_publish_is_a_revision_a_record_and_a_rollout(session: Session) -> None:
    start(session)
    assert send(session, 1, acme=600) == 2
    newest = queries_policy.head(session)
    assert newest is not None
    assert (newest.number, newest.parent, newest.author, newest.note) == (2, 1, "ada", "why")
    assert newest.digest == digest_of(newest.document)
    entry = queries_policy.audit_page(session, limit=1)[0]
    assert (entry.actor, entry.via, entry.subject, entry.note) == ("ada", "cli", "revision 2", "why")
    assert ["/tenants/acme/tokens_per_minute", None, 600] in entry.detail["changes"]
    rollout = queries_policy.current_rollout(session)
    assert rollout is not None
    assert (rollout.revision, rollout.base_revision, rollout.state) == (2, 1, "first")


def test_the_second_editor_gets_a_conflict_with_what_the_first_changed(session: Session) -> None:
    start(session)
    send(session, 1, acme=600)
    with pytest.raises(OvertakenEdit) as caught:
        send(session, 1, acme=900)
    assert isinstance(caught.value, StaleParent)
    assert caught.value.head is not None
    assert caught.value.head.number == 2
    changed = {pointer: (old, new) for pointer, old, new in caught.value.changes}
    assert changed["/tenants/acme/tokens_per_minute"] == (None, 600)


def test_a_parent_that_never_was_is_not_called_overtaken(session: Session) -> None:
    publish(session, document=document(acme=1_000), parent=0, author=OPERATOR, note="first", now=NOW)
    with pytest.raises(NotFound, match="there is no revision 7; the newest is 1"):
        publish(session, document=document(acme=2_000), parent=7, author=OPERATOR, note="x", now=NOW)


def test_of_editors_at_the_same_moment_exactly_one_wins(database: FreshDatabase) -> None:
    editors = 6
    with Session(database.engine) as session:
        start(session)
    barrier = threading.Barrier(editors)
    outcomes: list[object] = [None] * editors

    def edit(place: int) -> None:
        with Session(database.engine) as session:
            session.execute(select(1))
            barrier.wait()
            try:
                outcomes[place] = send(session, 1, acme=600 + place)
            except Conflict as exc:
                outcomes[place] = exc

    threads = [threading.Thread(target=edit, args=(place,)) for place in range(editors)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["OvertakenEdit"] * 5 + ["int"]
    with Session(database.engine) as session:
        assert count(session, PolicyRevisionRow) == 2
        assert count(session, RolloutRow) == 2
        assert count(session, AuditRow) == 2
        assert audit.verify(session) is None


def test_a_change_that_dies_before_its_end_leaves_nothing(database: FreshDatabase) -> None:
    with Session(database.engine) as session:
        start(session)
        publish(
            session,
            document=document(acme=600),
            parent=1,
            author=OPERATOR,
            note="why",
            now=NOW,
            idempotency_key="k1",
        )
        backend = session.scalar(select(func.pg_backend_pid()))
        with database.engine.connect() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": backend})
        session.invalidate()
    with Session(database.engine) as session:
        assert count(session, PolicyRevisionRow) == 1
        assert count(session, AuditRow) == 1
        assert count(session, RolloutRow) == 1
        assert count(session, CommandKeyRow) == 0
        assert audit.verify(session) is None


def test_a_repeated_publish_with_its_key_answers_the_same_and_changes_nothing(session: Session) -> None:
    start(session)

    def once(tokens: int) -> object:
        made = publish(
            session,
            document=document(acme=tokens),
            parent=1,
            author=OPERATOR,
            note="why",
            now=NOW,
            idempotency_key="click-1",
        )
        session.commit()
        return made

    assert once(600) == once(600)
    assert count(session, PolicyRevisionRow) == 2
    with pytest.raises(Conflict, match="another change"):
        once(700)


@pytest.mark.parametrize("is_rollback", [False, True])
def test_a_double_click_publishes_once_and_both_get_the_same_answer(
    database: FreshDatabase, is_rollback: bool
) -> None:
    with Session(database.engine) as session:
        start(session)
        send(session, 1, acme=600)
    barrier = threading.Barrier(2)
    answers: list[object] = []

    def click() -> None:
        with Session(database.engine) as session, session.begin():
            session.execute(select(1))
            barrier.wait()
            same = {"author": OPERATOR, "note": "why", "now": NOW, "idempotency_key": "click"}
            if is_rollback:
                answers.append(rollback(session, to=1, **same))
            else:
                answers.append(publish(session, document=document(acme=700), parent=2, **same))

    threads = [threading.Thread(target=click) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 2
    assert answers[0] == answers[1]
    with Session(database.engine) as session:
        assert count(session, PolicyRevisionRow) == 3


def test_an_unchanged_document_is_refused(session: Session) -> None:
    start(session)
    with pytest.raises(Conflict, match="nothing changed"):
        send(session, 1)


@pytest.mark.parametrize("note", ["", "  \n ", "x" * 2_001, "a\x00b"])
def test_a_publish_needs_a_readable_note(session: Session, note: str) -> None:
    start(session)
    with pytest.raises(InvalidInput) as caught:
        publish(session, document=document(acme=1), parent=1, author=OPERATOR, note=note, now=NOW)
    assert caught.value.field == "note"


@pytest.mark.parametrize("role", [Role.VIEWER, Role.FINANCE])
def test_roles_that_only_look_change_nothing(session: Session, role: Role) -> None:
    start(session)
    reader = Actor("eve", role, "api")
    with pytest.raises(Forbidden, match="eve"):
        publish(session, document=document(acme=1), parent=1, author=reader, note="x", now=NOW)
    with pytest.raises(Forbidden):
        rollback(session, to=1, author=reader, note="x", now=NOW)
    with pytest.raises(Forbidden):
        abort(session, actor=reader, note="x", now=NOW)
    assert count(session, PolicyRevisionRow) == 1


def test_an_invalid_document_names_its_field_and_leaves_nothing(session: Session) -> None:
    start(session)
    wrong = document(acme=1)
    wrong["tiers"]["batch"]["weight"] = 20
    with pytest.raises(InvalidPolicy, match="sum to 95"):
        publish(session, document=wrong, parent=1, author=OPERATOR, note="x", now=NOW)
    assert count(session, PolicyRevisionRow) == 1


def test_a_rollback_is_a_new_revision_with_old_content_sent_to_all(session: Session) -> None:
    start(session)
    send(session, 1, acme=600)
    send(session, 2, acme=900)
    made = rollback(session, to=2, author=OPERATOR, note="too much", now=NOW)
    session.commit()
    assert made.number == 4
    newest, old = queries_policy.revision(session, 4), queries_policy.revision(session, 2)
    assert newest is not None
    assert old is not None
    assert (newest.document, newest.restores, newest.parent) == (old.document, 2, 3)
    rollout = queries_policy.current_rollout(session)
    assert rollout is not None
    assert (rollout.state, rollout.strategy) == ("all", "all_at_once")
    states = {row.number: row.rollout_state for row in queries_policy.history(session)}
    assert states == {4: "all", 3: "superseded", 2: "superseded", 1: "superseded"}
    with pytest.raises(NotFound):
        rollback(session, to=99, author=OPERATOR, note="x", now=NOW)


def test_a_revision_published_over_an_unproven_one_keeps_the_proven_base(session: Session) -> None:
    start(session)
    send(session, 1, acme=600)  # first: sent to nobody but a first gateway
    send(session, 2, acme=900)
    rollout = queries_policy.current_rollout(session)
    assert rollout is not None
    assert (rollout.revision, rollout.base_revision) == (3, 1)


def test_an_operator_steers_a_rollout_and_every_step_is_recorded(session: Session) -> None:
    start(session)
    send(session, 1, acme=600)
    steps = [pause, resume, pause, promote, abort]
    seen = [step(session, actor=OPERATOR, note="because", now=NOW).state for step in steps]
    session.commit()
    assert seen == ["paused", "first", "paused", "all", "aborted"]
    said = [entry.action for entry in queries_policy.audit_page(session, limit=5)]
    assert said == ["rollout.abort", "rollout.promote", "rollout.pause", "rollout.resume", "rollout.pause"]
    with pytest.raises(Conflict, match="is aborted; promote needs"):
        promote(session, actor=OPERATOR, note="again", now=NOW)
    assert send(session, 2, acme=600) == 3  # the same content may be tried again


def test_history_is_refused_any_change(session: Session) -> None:
    start(session)
    for statement in ("UPDATE policy_revision SET note = 'x'", "DELETE FROM audit", "TRUNCATE audit"):
        with pytest.raises(Exception, match="append-only"):
            session.execute(text(statement))
        session.rollback()


TAMPERING = [
    ("UPDATE audit SET note = 'nothing' WHERE id = 2", 2),
    ("UPDATE audit SET actor = 'eve' WHERE id = 1", 1),
    ("UPDATE audit SET at = at + interval '1 microsecond' WHERE id = 3", 3),
    ("UPDATE audit SET detail = jsonb_set(detail, '{digest}', '\"0\"') WHERE id = 2", 2),
    ("DELETE FROM audit WHERE id = 2", 2),
    ("DELETE FROM audit WHERE id = 3", 3),
    ("UPDATE audit SET hash = repeat('0', 64) WHERE id = 2", 2),
    ("UPDATE audit SET id = 9 WHERE id = 1", 1),
]


@pytest.mark.parametrize(("statement", "row"), TAMPERING)
def test_tampering_with_the_record_is_found_and_named(session: Session, statement: str, row: int) -> None:
    start(session)
    send(session, 1, acme=600)
    send(session, 2, acme=900)
    assert audit.verify(session) is None
    session.execute(text("ALTER TABLE audit DISABLE TRIGGER append_only"))
    session.execute(text(statement))
    session.commit()
    broken = audit.verify(session)
    assert broken is not None
    assert broken.id == row


def test_a_document_changed_under_its_record_is_found(session: Session) -> None:
    start(session)
    send(session, 1, acme=600)
    session.execute(text("ALTER TABLE policy_revision DISABLE TRIGGER append_only"))
    session.execute(
        text("UPDATE policy_revision SET document = document || '{\"slo\": {}}' WHERE number = 2")
    )
    session.commit()
    broken = audit.verify(session)
    assert broken is not None
    assert "revision 2" in broken.reason


def test_numbers_of_any_size_verify_after_a_round_trip(session: Session) -> None:
    detail = {
        "big": 1e22,
        "small": 1e-7,
        "whole": 30.0,
        "count": 2**60,
        "yes": True,
        "none": None,
        "t": [1.5],
    }
    audit.append(session, OPERATOR, "test", "numbers", "", detail, NOW)
    session.commit()
    assert audit.verify(session) is None
