"""What subcommands that touch the database share: one transaction, and who is asking.

Whoever holds the database's address may do anything to it, so the command line acts as admin under the
name of the operating system's account. Prevents: commands that each decide for themselves who "cli" is.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from control.database import make_engine, require_head, session_scope
from control.database_url import resolve_dsn
from control.roles import Actor, Role
from control.settings import load_settings


@contextmanager
def transaction() -> Generator[Session]:
    """One transaction on the database in use: commits at the end, rolls back on any error.

    Raises Unavailable if it cannot be reached, Conflict if its schema is another release's.
    """
    with engine_in_use() as engine, session_scope(engine) as session:
        yield session


@contextmanager
def engine_in_use() -> Generator[Engine]:
    """The engine of the database in use, for transactions of one's own. Raises as `transaction`."""
    engine = make_engine(resolve_dsn(load_settings()), pool_size=1)
    try:
        require_head(engine)
        yield engine
    finally:
        engine.dispose()


def me() -> Actor:
    """Return the account this process runs under, as admin."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError, ImportError):  # an account number without a name, as in containers
        name = f"uid-{os.getuid()}"
    return Actor(name, Role.ADMIN, "cli")
