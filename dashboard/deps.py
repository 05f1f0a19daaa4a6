"""What the dashboard's process is given: settings, connections, clock. Made once a process.

Reads come from a read-only connection, writes from another one. Prevents: a page that writes by accident,
settings read in the middle of a click, and a second pool of connections a session.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

import streamlit as st

from control.database import Engine, make_engine
from control.database import Role as Connection
from control.database_url import resolve_dsn
from control.settings import Settings, SignIn, load_settings
from dashboard.outage import Outage
from dashboard.patience import Patience
from fleet.clock import Clock, SystemClock

#: Every session reads through this pool; queries are cached, so few are under way at once.
POOL = 5
LONG_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Deps:
    """Everything of the process. `reader` may only read; `writer` carries commands and sign-ins.

    `patience` bounds how long a page waits for either, `long_patience` for what is worked out of many rows:
    one that is slow there says nothing of the database, and keeps no other page waiting.
    """

    settings: Settings
    reader: Engine
    writer: Engine
    clock: Clock
    patience: Patience = field(default_factory=lambda: Patience(SystemClock()))
    long_patience: Patience = field(
        default_factory=lambda: Patience(SystemClock(), LONG_WAIT_S, outage=Outage(), answers="worked out")
    )

    @property
    def everybody_is_admin(self) -> bool:
        """Nobody signs in: only this machine can reach the page (settings refuse anything else)."""
        return self.settings.sign_in is SignIn.NONE

    @property
    def zone(self) -> ZoneInfo:
        """The time zone finance's months begin and end in."""
        return ZoneInfo(self.settings.finance_timezone)


@st.cache_resource(show_spinner=False)
def deps() -> Deps:
    """Read the settings and open the pools, at the first call of the process.

    Raises InvalidInput for settings that are not usable, Unavailable without any database to go to.
    """
    settings = load_settings()
    dsn = resolve_dsn(settings)
    return Deps(
        settings=settings,
        reader=make_engine(dsn, role=Connection.DASHBOARD, pool_size=POOL),
        writer=make_engine(dsn, role=Connection.CONTROL, pool_size=POOL),
        clock=SystemClock(),
    )
