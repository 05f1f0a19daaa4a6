"""The sustained-breach alarm: when a value has been too high for long enough, and when it is well again.

Values are whatever the rule's thresholds are in, times are Unix seconds handed in. A present sample stands
for the seconds before it, at most one period; what no sample stands for is a gap. Prevents: an alarm from
one bad scrape, flapping around the threshold, and an alarm that turns itself off because the node that
caused it stopped answering.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from fleet.errors import InvalidInput

_ROUNDING_S = 1e-6


class Condition(StrEnum):
    """What the alarm says now."""

    OK = "OK"
    FIRING = "FIRING"
    STALE = "STALE"  # it was firing and the data stopped


class Certainty(StrEnum):
    """Whether the value was good enough to act on."""

    CONFIRMED = "confirmed"
    UNCONFIRMED = "unconfirmed"  # only the upper end of the interval is above the threshold


@dataclass(frozen=True, slots=True)
class Rule:
    """Thresholds and durations. The defaults are those for rho."""

    up: float = 0.85  # breaching strictly above
    down: float = 0.75  # recovering strictly below
    hold_up_s: float = 120.0  # fires after breaching for more than this
    hold_down_s: float = 180.0  # clears after recovering for this long
    max_gap_s: float = 30.0  # a longer gap resets the pending timer, or makes a firing alarm stale
    period_s: float = 10.0  # time between samples

    def __post_init__(self) -> None:
        if not self.down <= self.up:
            raise InvalidInput(
                f"down {self.down} is above up {self.up}",
                field="down",
                hint="An alarm clears at or below the value it fires at",
            )
        if min(self.hold_up_s, self.hold_down_s, self.max_gap_s) < 0 or self.period_s <= 0:
            raise InvalidInput("durations must not be negative, and the period positive", field="period_s")


@dataclass(frozen=True, slots=True)
class AlarmState:
    """Everything the machine remembers; serialisable with `as_dict` and `from_dict`."""

    condition: Condition = Condition.OK
    above_s: float = 0.0  # breaching without interruption, covered seconds
    below_s: float = 0.0  # recovering without interruption
    gap_s: float = 0.0  # since the last present sample
    last_at_s: float | None = None
    since_s: float | None = None  # when `condition` began
    certainty: Certainty = Certainty.CONFIRMED

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> AlarmState:
        """Return the state that `as_dict` wrote. Raises InvalidInput when it did not."""
        try:
            return cls(
                condition=Condition(stored["condition"]),
                above_s=float(stored["above_s"]),
                below_s=float(stored["below_s"]),
                gap_s=float(stored["gap_s"]),
                last_at_s=_seconds(stored["last_at_s"]),
                since_s=_seconds(stored["since_s"]),
                certainty=Certainty(stored["certainty"]),
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise InvalidInput(f"not an alarm state: {exc}", field="state") from exc


def _seconds(stored: float | None) -> float | None:
    return None if stored is None else float(stored)


@dataclass(frozen=True, slots=True)
class AlarmEvent:
    """One change of condition."""

    condition: Condition
    before: Condition
    at_s: float
    value: float | None


def judged(
    value: float | None, low: float | None, high: float | None, grade: str | None, up: float
) -> tuple[float | None, Certainty]:
    """Return (the value to alarm on, how certain). Grades A, B and configured: the point; C: the low end.

    Grade C with only its high end above `up` is unconfirmed. Grade D or no value: None, unknown; but 0 is 0
    whatever the capacity.
    """
    if value is None or (grade == "D" and value > 0):
        return None, Certainty.CONFIRMED
    if grade != "C":
        return value, Certainty.CONFIRMED
    acting = low if low is not None else value
    doubtful = high is not None and high > up >= acting
    return acting, Certainty.UNCONFIRMED if doubtful else Certainty.CONFIRMED


def step(
    state: AlarmState,
    rule: Rule,
    at_s: float,
    value: float | None,
    certainty: Certainty = Certainty.CONFIRMED,
) -> tuple[AlarmState, AlarmEvent | None]:
    """Return the state after a sample at `at_s` (None: missing) and the change of condition, if any.

    A sample not newer than the last one changes nothing.
    """
    elapsed = rule.period_s if state.last_at_s is None else at_s - state.last_at_s
    if elapsed <= 0:
        return state, None
    covered = min(elapsed, rule.period_s) if value is not None else 0.0
    unseen = elapsed - covered if elapsed > 1.5 * rule.period_s or value is None else 0.0
    gap = state.gap_s + unseen
    moved = replace(state, last_at_s=at_s, gap_s=gap, certainty=certainty)
    if gap > rule.max_gap_s + _ROUNDING_S:
        moved = replace(moved, above_s=0.0, below_s=0.0)
        if value is None and moved.condition is Condition.FIRING:
            return _change(moved, Condition.STALE, at_s, value)
    if value is None:
        return moved, None
    return _present(replace(moved, gap_s=0.0), rule, at_s, value, covered)


def _present(
    state: AlarmState, rule: Rule, at_s: float, value: float, covered: float
) -> tuple[AlarmState, AlarmEvent | None]:
    above = state.above_s + covered if value > rule.up else 0.0
    below = state.below_s + covered if value < rule.down else 0.0
    state = replace(state, above_s=above, below_s=below)
    if state.condition is Condition.OK:
        if above > rule.hold_up_s + _ROUNDING_S:
            return _change(state, Condition.FIRING, at_s, value)
        return state, None
    if below >= rule.hold_down_s - _ROUNDING_S and below > 0:
        return _change(state, Condition.OK, at_s, value)
    if state.condition is Condition.STALE:
        return _change(state, Condition.FIRING, at_s, value)
    return state, None


def _change(
    state: AlarmState, condition: Condition, at_s: float, value: float | None
) -> tuple[AlarmState, AlarmEvent]:
    event = AlarmEvent(condition, state.condition, at_s, value)
    return replace(state, condition=condition, since_s=at_s), event
