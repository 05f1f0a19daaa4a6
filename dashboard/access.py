"""Who is at the page, and with which role. The role is read again from the database for every change.

Owns the sign-in cookie's name and what it proves. Prevents: a role that outlives its withdrawal, a button
that is hidden while the command behind it is open, and a page left ticking that never signs itself out.
"""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from control import accounts
from control.database import session_scope
from control.roles import Actor, Permission, Role, may
from dashboard.deps import Deps, deps
from fleet.errors import FleetError, Unavailable

COOKIE = "rhodeck_sign_in"
#: Name under which changes are recorded while nobody has to sign in.
NOBODY = "anybody-on-this-machine"
_LAST = "access_last_known"


@dataclass(frozen=True, slots=True)
class Person:
    """Who looks. `may_not` explains a disabled button; `is_checked` is False while the database is away."""

    name: str
    role: Role
    signed_in: bool
    is_checked: bool = True

    @property
    def actor(self) -> Actor:
        return Actor(self.name, self.role, "page")

    def may(self, permission: Permission) -> bool:
        """Say whether a button for this should be usable. The command checks again."""
        return may(self.actor, permission)

    def may_not(self, permission: Permission) -> str | None:
        """Return why a button is disabled, in words; None where it is not."""
        if not self.is_checked:
            return "The database is away: nothing can be changed now."
        if self.may(permission):
            return None
        able = " or ".join(role for role in Role if may(Actor("", role, "page"), permission))
        return f"Your role, {self.role}, may not {permission}. Ask someone with the role {able}."


def presented_token() -> str | None:
    """Return the sign-in token the browser sent when it connected."""
    return st.context.cookies.get(COOKIE)


def person_of(token: str | None, of: Deps, *, is_active: bool) -> Person | None:
    """Return whose `token` it is now; None if it proves nothing.

    `is_active` notes that somebody used the page; a page that only ticks ends after the idle limit.
    Raises Unavailable while the database is away.
    """
    if of.everybody_is_admin:
        return Person(NOBODY, Role.ADMIN, signed_in=False)
    if not token:
        return None

    def asked() -> Person | None:
        with session_scope(of.writer) as session:
            try:
                account = accounts.signed_in(session, token, of.clock.now())
            except Unavailable:
                raise
            except FleetError:
                return None
            if not is_active:
                session.rollback()
        return Person(account.name, account.role, signed_in=True)

    return of.patience.ask(asked)


def look_up(*, is_active: bool) -> Person | None:
    """Return who is at this page now. While the database is away, who it was, able to change nothing."""
    try:
        person = person_of(presented_token(), deps(), is_active=is_active)
    except Unavailable:
        known: Person | None = st.session_state.get(_LAST)
        if known is None:
            raise
        return Person(known.name, known.role, known.signed_in, is_checked=False)
    st.session_state[_LAST] = person
    return person


def current() -> Person:
    """Return who `look_up` found last in this session; ends the run if nobody is signed in."""
    person: Person | None = st.session_state.get(_LAST)
    if person is None:
        st.stop()
    return person


def sign_out() -> None:
    """End this browser's sign-in."""
    token, of = presented_token(), deps()
    if token:
        with session_scope(of.writer) as session:
            accounts.sign_out(session, token, of.clock.now())
    st.session_state.pop(_LAST, None)


#: What pages ask about, so that they need not know the matrix.
PUBLISH = Permission.PUBLISH_POLICY
STEER = Permission.STEER_ROLLOUT
EXPORT = Permission.EXPORT_SPEND
PRICES = Permission.SET_PRICES


def may_not(permission: Permission) -> str | None:
    """Return why who is here may not do this; None where they may."""
    return current().may_not(permission)
