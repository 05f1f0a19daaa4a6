"""What pages change: one short transaction a click, under the role the person has at that moment.

The controller does everything that takes time. Prevents: a write half done because the tab was closed,
and a click that still works after the role behind it was withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, TypeVar

from control import commands_fleet, commands_policy, commands_rollout
from control.commands_policy import Published, Strategy
from control.database import DBAPIError, session_scope
from control.prices import add_price
from control.queries_policy import Rollout
from control.roles import Actor
from control.tenant_keys import NewTenantKey, create_tenant_key, revoke_tenant_key
from dashboard import access, data
from dashboard.deps import deps
from fleet.errors import Unauthenticated, Unavailable

T = TypeVar("T")
Verb = Literal["pause", "resume", "promote", "abort"]
NodeVerb = Literal["drain", "rest", "resume", "remove"]


def change(work: Callable[[Any, Actor, datetime], T]) -> T:
    """Run `work` in one transaction with the actor as the database knows them now.

    Raises what the command raises; Unauthenticated after the sign-in ended; Unavailable.
    """
    of = deps()
    person = access.person_of(access.presented_token(), of, is_active=True)
    if person is None:
        raise Unauthenticated("the sign-in has ended", hint="Sign in again; your draft is kept on the page")
    try:
        with session_scope(of.writer) as session:
            done = work(session, person.actor, of.clock.now())
    except DBAPIError as exc:
        raise Unavailable(
            f"the database did not take the change: {type(exc.orig).__name__}",
            hint="Nothing was changed; try again",
        ) from exc
    data.forget()
    return done


def publish(
    document: object, *, parent: int, note: str, strategy: Strategy, bake_s: float, key: str
) -> Published:
    """Publish a policy document. `key` makes a second click harmless."""
    return change(
        lambda session, actor, now: commands_policy.publish(
            session,
            document=document,
            parent=parent,
            author=actor,
            note=note,
            now=now,
            strategy=strategy,
            bake_s=bake_s,
            idempotency_key=key,
        )
    )


def roll_back(to: int, *, note: str, key: str) -> Published:
    """Make the content of revision `to` the newest one, everywhere at once."""
    return change(
        lambda session, actor, now: commands_policy.rollback(
            session, to=to, author=actor, note=note, now=now, idempotency_key=key
        )
    )


def steer_rollout(verb: Verb, *, note: str) -> Rollout:
    """Pause, resume, promote or abort the current rollout."""
    command = {
        "pause": commands_rollout.pause,
        "resume": commands_rollout.resume,
        "promote": commands_rollout.promote,
        "abort": commands_rollout.abort,
    }[verb]
    return change(lambda session, actor, now: command(session, actor=actor, note=note, now=now))


def set_node_state(verb: NodeVerb, name: str, *, note: str) -> None:
    """Drain a node, put it into maintenance, let it take work again, or take it out of the fleet."""
    command = {
        "drain": commands_fleet.drain_node,
        "rest": commands_fleet.rest_node,
        "resume": commands_fleet.resume_node,
        "remove": commands_fleet.remove_node,
    }[verb]
    change(lambda session, actor, now: command(session, actor, name=name, now=now, note=note))


def acknowledge(alert_id: int, *, note: str) -> None:
    """Say that somebody looks after an alert."""
    change(
        lambda session, actor, now: commands_fleet.acknowledge_alert(
            session, actor, alert_id=alert_id, now=now, note=note
        )
    )


def create_key(tenant: str, *, label: str) -> NewTenantKey:
    """Make a tenant's key. What it returns is shown once and kept nowhere."""
    return change(
        lambda session, actor, now: create_tenant_key(
            session, tenant=tenant, label=label, actor=actor, now=now
        )
    )


def revoke_key(key_id: str) -> bool:
    """Revoke a tenant's key; False if it was revoked before."""
    return change(
        lambda session, actor, now: revoke_tenant_key(session, key_id=key_id, actor=actor, now=now)
    )


def set_price(
    price_class: str,
    usd_per_node_hour: str,
    *,
    pool: str | None,
    effective_from: datetime | None,
    source: str,
) -> None:
    """Set a price from `effective_from` on (None: from now)."""
    change(
        lambda session, actor, now: add_price(
            session,
            price_class=price_class,
            usd_per_node_hour=usd_per_node_hour,
            effective_from=effective_from or now,
            source=source,
            actor=actor,
            now=now,
            pool=pool,
        )
    )
