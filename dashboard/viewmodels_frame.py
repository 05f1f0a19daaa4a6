"""Words of the strip on top of every page. Pure.

Prevents: a freshness limit typed in two places.
"""

from __future__ import annotations

from control.freshness import DEFAULT_PERIOD_S, stale_after_s
from dashboard import words
from dashboard.data import Pulse


def stale_after(pulse: Pulse | None) -> float:
    """Return the age at which the newest round is called stale: the rule nodes are judged by, seconds."""
    return stale_after_s(pulse.period_s if pulse else DEFAULT_PERIOD_S)


def who(name: str, role: str, *, signed_in: bool) -> str:
    """Return who is here and what they may do."""
    if not signed_in:
        return "No sign-in: everybody on this machine is **admin**"
    return f"{words.plain(name)}, **{role}**"
