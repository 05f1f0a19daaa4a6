"""What one browser remembers: filters in the address, a message for the next run, and drafts.

Filters belong to the entry script, so that they outlive a change of page and a link opens the same view.
Prevents: a shared link that opens something else, and a success message lost with the dialog it was in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from dashboard.times import Zone, zone_of

RANGES: dict[str, int] = {
    "15m": 900,
    "1h": 3600,
    "6h": 21_600,
    "24h": 86_400,
    "7d": 604_800,
    "30d": 2_592_000,
}
DEFAULT_RANGE = "1h"
TICK_S = 10.0
TICK_FAST_S = 2.0
_FLASH = "flash"


@dataclass(frozen=True, slots=True)
class Filters:
    """The choices of the top strip."""

    span_s: int
    zone: Zone
    is_live: bool
    has_marks: bool = True

    def tick_s(self, *, fast: bool = False) -> float | None:
        """Return how often live parts draw again; None while paused."""
        if not self.is_live:
            return None
        return TICK_FAST_S if fast else TICK_S


def filters() -> Filters:
    """Return the choices as the entry script's controls hold them."""
    kept = st.session_state
    return Filters(
        span_s=RANGES.get(kept.get("range") or DEFAULT_RANGE, RANGES[DEFAULT_RANGE]),
        zone=zone_of(kept.get("tz") or "UTC", st.context.timezone),
        is_live=(kept.get("live") or "live") == "live",
        has_marks=bool(kept.get("events", True)),
    )


def remember(key: str, value: str) -> None:
    """Keep what a page's own control holds, for `recall`."""
    st.session_state[f"last_{key}"] = value


def recall(key: str, options: list[str]) -> None:
    """Give a page's own control its last value back when neither the address nor the page has one.

    Streamlit drops such a control from the address on the way to another page, so that Back would open
    the first option.
    """
    last: str | None = st.session_state.get(f"last_{key}")
    if key not in st.session_state and key not in st.query_params and last in options:
        st.session_state[key] = last


def flash(message: str) -> None:
    """Keep a message for the next run of the page."""
    st.session_state[_FLASH] = message


def show_flash() -> None:
    """Show the message kept by the run before, once."""
    message: str | None = st.session_state.pop(_FLASH, None)
    if message:
        st.success(message)


def opened(name: str, make: Any) -> Any:
    """Return what belongs to a dialog since it was opened, made at its opening: an idempotency key."""
    if name not in st.session_state:
        st.session_state[name] = make()
    return st.session_state[name]


def close(*names: str) -> None:
    """Forget what belonged to a dialog."""
    for name in names:
        st.session_state.pop(name, None)
