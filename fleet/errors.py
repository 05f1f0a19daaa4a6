"""Errors people can act on.

Every error Rhodeck raises on purpose is a `FleetError`: what is wrong (with the numbers), what to do
(`hint`), where (`field`, a JSON pointer or a flag name), and whether trying again may help. Pages, API
and CLI show `message` and `hint`; they never show a traceback. Prevents: "internal error" at 3 a.m.
"""

from __future__ import annotations


class FleetError(Exception):
    """Base of all expected errors. `str()` is the message alone."""

    def __init__(
        self, message: str, *, hint: str = "", field: str | None = None, retryable: bool = False
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.field = field
        self.retryable = retryable

    def as_dict(self) -> dict[str, str | bool | None]:
        """Return the wire form used by API, gateway admin and CLI `--json` errors."""
        return {
            "error": type(self).__name__,
            "message": self.message,
            "hint": self.hint,
            "field": self.field,
            "retryable": self.retryable,
        }


class NotMeasured(FleetError):
    """The data cannot say. Shown as "unknown", never as 0."""


class InvalidInput(FleetError):
    """A flag, file, form or body is not usable. Nothing was changed."""


class InvalidPolicy(InvalidInput):
    """A policy document breaks a rule; `field` is a JSON pointer into it."""


class NotFound(FleetError):
    """The named thing does not exist."""


class Conflict(FleetError):
    """Somebody else changed it first, or it is in a state that forbids the action."""


class StaleParent(Conflict):
    """A newer revision than the one edited from exists."""


class StaleAssignment(Conflict):
    """A push older than what the gateway holds: (epoch, generation) is not newer."""


class Forbidden(FleetError):
    """The caller's role or token scope does not allow this."""


class Unauthenticated(FleetError):
    """No valid credential was presented."""


class Unavailable(FleetError):
    """A dependency (database, gateway, node) cannot be reached now. Retryable unless said otherwise."""

    def __init__(
        self, message: str, *, hint: str = "", field: str | None = None, retryable: bool = True
    ) -> None:
        super().__init__(message, hint=hint, field=field, retryable=retryable)
