"""Which HTTP status each kind of expected error has, at the API and at the dashboard's own routes.

Prevents: the same refusal being 403 at one door and 400 at the other.
"""

from __future__ import annotations

from fleet.errors import (
    Conflict,
    FleetError,
    Forbidden,
    InvalidInput,
    NotFound,
    Unauthenticated,
    Unavailable,
)

_CODES: dict[type[FleetError], int] = {
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    InvalidInput: 422,
    Unavailable: 503,
}


def status_code(error: FleetError) -> int:
    """Return the status of the error's nearest named kind; 400 for any other."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), 400)
