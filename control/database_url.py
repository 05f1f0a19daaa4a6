"""Which database a process uses: the one of DATABASE_URL, else the embedded one that runs already.

Prevents: each subcommand with its own idea of where the data are.
"""

from __future__ import annotations

from control.embedded import find_running
from control.settings import Settings
from fleet.errors import Unavailable


def resolve_dsn(settings: Settings) -> str:
    """Return the URL to connect to, password included. Raises Unavailable if nothing runs."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    found = find_running(settings.state_dir)
    if found is None:
        raise Unavailable(
            f"DATABASE_URL is not set and no embedded database answers in {settings.state_dir}",
            hint="Start it with `rhodeck db up` (or `rhodeck up`) as the same user, or set DATABASE_URL",
            field="DATABASE_URL",
        )
    return found
