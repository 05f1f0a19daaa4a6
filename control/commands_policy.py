"""Changes of policy: publish, roll back, first revision. Each joins the caller's transaction.

A publish is a revision, a row of the record, a rollout and the idempotency key, all or none. Revisions are
numbered parent + 1, so the primary key lets exactly one of two editors win. Times are the caller's `now`,
`bake_s` seconds. Prevents: an edit that overwrites another unseen, and a change without who and why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from control import audit, idempotency, queries_policy
from control.queries_policy import Revision, Rollout
from control.roles import Actor, Permission, require
from control.tables import PolicyRevisionRow, RolloutRow
from fleet.errors import Conflict, InvalidInput, NotFound, StaleParent
from fleet.policy import Policy, default_policy, differences, parse

Strategy = Literal["staged", "all_at_once"]

DEFAULT_BAKE_S = 10.0
MAX_BAKE_S = 86_400.0
MAX_NOTE_CHARACTERS = 2_000
#: States of a rollout that a newer one puts an end to.
OPEN_STATES = ("first", "baking", "paused", "all")
_LOCK_NOT_AVAILABLE = "55P03"


@dataclass(frozen=True, slots=True)
class Published:
    """A revision that now exists, and the rollout that carries it to the gateways."""

    number: int
    digest: str
    rollout_id: int


class OvertakenEdit(StaleParent):
    """Somebody published first. `head` is theirs; `changes` is what they changed since our parent.

    `changes` holds (JSON pointer, value at our parent, value now), sorted by pointer.
    """

    def __init__(self, parent: int, head: Revision | None, changes: Sequence[tuple[str, Any, Any]]) -> None:
        newest = (
            f"revision {head.number} by {head.author} is the newest" if head else "there is no revision"
        )
        super().__init__(
            f"revision {parent} is not the newest any more: {newest}",
            hint="Compare with the changes made meanwhile, then publish again from the newest revision",
            field="parent",
        )
        self.parent = parent
        self.head = head
        self.changes = tuple(changes)


def publish(
    session: Session,
    *,
    document: object,
    parent: int,
    author: Actor,
    note: str,
    now: datetime,
    strategy: Strategy = "staged",
    bake_s: float = DEFAULT_BAKE_S,
    idempotency_key: str | None = None,
) -> Published:
    """Make `document` the next revision after `parent` (0: the first) and start its rollout.

    Raises Forbidden without the permission, InvalidPolicy naming the field, InvalidInput for a missing
    note, OvertakenEdit if `parent` is not the newest, Conflict if nothing changed.
    """
    require(author, Permission.PUBLISH_POLICY)
    reason = checked_note(note)
    policy = parse(document)
    request = {"digest": policy.digest(), "parent": parent, "strategy": strategy}
    known = idempotency.recall(session, idempotency_key, audit.PUBLISHED, request)
    if known is not None:
        return Published(**known)
    newest = queries_policy.head(session)
    if (newest.number if newest else 0) != parent:
        if parent and queries_policy.revision(session, parent) is None:
            known = f"the newest is {newest.number}" if newest else "there is none yet"
            hint = "See `rhodeck policy history`"
            raise NotFound(f"there is no revision {parent}; {known}", hint=hint, field="parent")
        raise _overtaken(session, parent)
    _refuse_unchanged(session, newest, policy)
    published = _write(
        session, policy, newest, author, reason, now, strategy=strategy, bake_s=_checked_bake(bake_s)
    )
    _remember(session, idempotency_key, audit.PUBLISHED, request, published, now)
    return published


def rollback(
    session: Session,
    *,
    to: int,
    author: Actor,
    note: str,
    now: datetime,
    idempotency_key: str | None = None,
) -> Published:
    """Make the content of revision `to` the newest revision and send it to all gateways at once.

    Works from any state of any rollout. Raises NotFound, InvalidPolicy if this release no longer accepts
    that content, Conflict if it is in force already or somebody publishes at the same moment.
    """
    require(author, Permission.PUBLISH_POLICY)
    reason = checked_note(note)
    request = {"to": to}
    known = idempotency.recall(session, idempotency_key, "policy.rollback", request)
    if known is not None:
        return Published(**known)
    wanted = queries_policy.revision(session, to)
    newest = queries_policy.head(session)
    if wanted is None or newest is None:
        raise NotFound(
            f"there is no revision {to}", hint="List them with `rhodeck policy history`", field="to"
        )
    policy = parse(wanted.document)
    rollout = queries_policy.current_rollout(session)
    if newest.digest == policy.digest() and rollout is not None and rollout.state in ("all", "live"):
        raise Conflict(
            f"revision {newest.number} has the content of revision {to} and goes to every gateway already",
            hint="Nothing to do; look at the gateways' conditions",
            field="to",
        )
    published = _write(
        session, policy, newest, author, reason, now, strategy="all_at_once", bake_s=0.0, restores=to
    )
    _remember(session, idempotency_key, "policy.rollback", request, published, now)
    return published


def ensure_first_revision(
    session: Session, *, author: Actor, now: datetime, document: object | None = None
) -> Revision:
    """Return the newest revision; where there is none, publish `document` (or the default) as revision 1.

    Safe from several processes at once.
    """
    newest = queries_policy.head(session)
    if newest is None:
        require(author, Permission.PUBLISH_POLICY)
        policy = default_policy() if document is None else parse(document)
        with contextlib.suppress(OvertakenEdit):  # another process was first: theirs counts
            _write(session, policy, None, author, "First revision", now, strategy="all_at_once", bake_s=0.0)
        newest = queries_policy.head(session)
    if newest is None:
        raise Conflict("the first revision is being written by another process", retryable=True)
    return newest


def checked_note(note: str) -> str:
    """Return the note without blanks around it. Raises InvalidInput if it is empty, long or unprintable."""
    text = note.strip()
    if not text:
        raise InvalidInput(
            "a change needs a note", hint="Say why, for whoever reads it later", field="note"
        )
    if len(text) > MAX_NOTE_CHARACTERS:
        raise InvalidInput(
            f"the note has {len(text)} characters; at most {MAX_NOTE_CHARACTERS} are kept",
            hint="Shorten it, or link to the longer text",
            field="note",
        )
    if not text.replace("\n", " ").replace("\t", " ").isprintable():
        raise InvalidInput("the note has control characters", hint="Type it as plain text", field="note")
    return text


def _checked_bake(bake_s: float) -> float:
    if not 0 <= bake_s <= MAX_BAKE_S:
        raise InvalidInput(
            f"bake_s {bake_s:g} is outside 0..{MAX_BAKE_S:g} s",
            hint="Give the seconds the first gateway runs alone",
            field="bake_s",
        )
    return bake_s


def _refuse_unchanged(session: Session, newest: Revision | None, policy: Policy) -> None:
    if newest is None or newest.digest != policy.digest():
        return
    rollout = queries_policy.current_rollout(session)
    if rollout is not None and rollout.revision == newest.number and rollout.state == "aborted":
        return  # the same content may be tried again
    raise Conflict(
        f"nothing changed: revision {newest.number} already says exactly this",
        hint="Change something, or leave it as it is",
        field="document",
    )


def _overtaken(session: Session, parent: int) -> OvertakenEdit:
    newest = queries_policy.head(session)
    base = queries_policy.revision(session, parent)
    changes = differences(base.document if base else {}, newest.document) if newest else []
    return OvertakenEdit(parent, newest, changes)


def _write(
    session: Session,
    policy: Policy,
    newest: Revision | None,
    author: Actor,
    note: str,
    now: datetime,
    *,
    strategy: Strategy,
    bake_s: float,
    restores: int | None = None,
) -> Published:
    """Insert revision, rollout and record. The primary key settles a race with another writer."""
    parent = newest.number if newest else None
    number = (parent or 0) + 1
    document, digest = policy.as_document(), policy.digest()
    row = PolicyRevisionRow(
        number=number,
        parent=parent,
        digest=digest,
        document=document,
        author=author.name,
        note=note,
        restores=restores,
        created_at=now,
    )
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError as exc:
        raise _overtaken(session, parent or 0) from exc
    except OperationalError as exc:
        if getattr(exc.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise Conflict(
            "somebody else is publishing at this moment; this change was not made",
            hint="Reload, compare, publish again",
            retryable=True,
        ) from exc
    rollout_id = _start_rollout(session, number, now, strategy=strategy, bake_s=bake_s)
    audit.append(
        session,
        author,
        audit.PUBLISHED,
        f"revision {number}",
        note,
        {
            "digest": digest,
            "parent": parent,
            "restores": restores,
            "strategy": strategy,
            "changes": [
                list(change) for change in differences(newest.document if newest else {}, document)
            ],
        },
        now,
    )
    return Published(number, digest, rollout_id)


def _start_rollout(
    session: Session, number: int, now: datetime, *, strategy: Strategy, bake_s: float
) -> int:
    session.execute(select(RolloutRow.id).where(RolloutRow.state.in_(OPEN_STATES)).with_for_update())
    base = _base_of(queries_policy.current_rollout(session))
    session.execute(
        update(RolloutRow)
        .where(RolloutRow.state.in_(OPEN_STATES))
        .values(state="superseded", updated_at=now, reason=f"revision {number} was published")
    )
    row = RolloutRow(
        revision=number,
        base_revision=base,
        state="first" if strategy == "staged" and base is not None else "all",
        strategy=strategy,
        bake_s=bake_s,
        reason="",
        started_at=now,
        updated_at=now,
    )
    session.add(row)
    session.flush()
    return session.scalars(select(RolloutRow.id).where(RolloutRow.revision == number)).one()


def _base_of(before: Rollout | None) -> int | None:
    """Return the revision the gateways outside the first stage keep: the last one sent to all of them."""
    if before is None:
        return None
    return before.revision if before.state in ("all", "live") else before.base_revision


def _remember(
    session: Session,
    key: str | None,
    action: str,
    request: dict[str, Any],
    published: Published,
    now: datetime,
) -> None:
    answer = {
        "number": published.number,
        "digest": published.digest,
        "rollout_id": published.rollout_id,
    }
    idempotency.remember(session, key, action, request, answer, now)
