"""Whether a queue is in equilibrium: four signals, and the state they add up to.

Rates are per second, times are seconds, minutes where the name says so. Little's law and every steady-state
formula hold only in equilibrium; a p99 that doubles every 15 minutes under a still p50 is outside it. Uses
disjoint one-minute windows only: overlapping ones inflate the significance. Prevents: a steady-state number
quoted for a queue that is growing, and an alarm on one noisy minute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleet.little import age_share
from fleet.percentages import percent
from fleet.queueing import flow_z
from fleet.tail_trend import MIN_POINTS, RUN, WINDOWS, TailPoint, TailTrend, tail_trend

PRESENT_MIN = 5.0  # a trend that ended longer ago is none of the present
FLOW_Z = 3.0
FLOW_WINDOWS = 2  # consecutive minutes
AGE_SHARE = 0.1
AGE_WINDOWS = 2
AGE_NOISE = 3.0  # times 1 / sqrt(requests): a share of age that so few requests show by chance


class Balance(StrEnum):
    """What the queue is doing."""

    EQUILIBRIUM = "equilibrium"
    FILLING = "filling"
    DRAINING = "draining"
    UNSTABLE = "unstable"


@dataclass(frozen=True, slots=True)
class Minute:
    """One disjoint minute of a pool or engine. None: not known."""

    at_min: float
    arrivals: int | None = None  # admitted
    departures: int | None = None  # completions and client aborts
    mean_in_system: float | None = None
    time_mean_s: float | None = None  # of those that left
    p50_s: float | None = None  # of the time in the system
    p99_s: float | None = None
    length_s: float = 60.0
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    """One of the four signals: raised, not raised, or None without the data for it."""

    name: str
    is_raised: bool | None
    evidence: str


@dataclass(frozen=True, slots=True)
class Equilibrium:
    """The state with its signals; `p99_doubling_min` is None unless the growth is certain."""

    balance: Balance | None  # None: no signal could be computed
    signals: tuple[Signal, ...]
    p99_doubling_min: float | None
    is_middle_still: bool | None = None  # p50 does not rise with it; None: p99 does not double

    @property
    def is_left(self) -> bool | None:
        """Return whether the queue has left equilibrium: two signals, or unstable. None: not known."""
        if self.balance is None:
            return None
        raised = sum(1 for signal in self.signals if signal.is_raised)
        return raised >= 2 or self.balance is Balance.UNSTABLE


def flow_signal(minutes: Sequence[Minute]) -> tuple[Signal, float | None]:
    """Return the flow signal, z of arrivals against departures in each of the last two minutes, and z."""
    recent = minutes[-FLOW_WINDOWS:]
    zs = [
        flow_z(m.arrivals, m.departures)
        for m in recent
        if m.arrivals is not None and m.departures is not None
    ]
    if len(zs) < FLOW_WINDOWS:
        return Signal("flow", None, "arrivals or departures not counted"), None
    shown = ", ".join(f"{z:+.1f}" for z in zs)
    same_sign = all(z >= FLOW_Z for z in zs) or all(z <= -FLOW_Z for z in zs)
    return Signal("flow", same_sign, f"z = {shown} in the last {len(zs)} minutes (raised at 3)"), zs[-1]


def age_signal(minutes: Sequence[Minute]) -> Signal:
    """Return the age signal: (L - X W) / L beyond 0.1 with the same sign for two minutes.

    The threshold is never below three times 1 / sqrt(requests): ages of a few requests swing by chance.
    """
    known = [found for m in minutes[-AGE_WINDOWS:] if (found := _age(m)) is not None]
    if len(known) < AGE_WINDOWS:
        return Signal("age", None, "places or times not measured")
    limits = [max(AGE_SHARE, AGE_NOISE / math.sqrt(max(count, 1))) for _, count in known]
    shares = [share for share, _ in known]
    is_raised = all(s > limit for s, limit in zip(shares, limits, strict=True)) or all(
        s < -limit for s, limit in zip(shares, limits, strict=True)
    )
    shown = ", ".join(f"{percent(round(share, 2) + 0.0, is_signed=True)}" for share in shares)  # no "-0%"
    return Signal(
        "age",
        is_raised,
        f"(L - X W) / L = {shown} in the last {len(shares)} minutes (raised at {percent(max(limits))})",
    )


def _age(minute: Minute) -> tuple[float, int] | None:
    """Return (share of L that is age, requests behind it); an empty system has no ages."""
    if minute.mean_in_system is None or minute.departures is None:
        return None
    if minute.mean_in_system == 0:
        return 0.0, minute.departures
    if not minute.departures:
        return 1.0, 0  # who is inside only grows old
    if minute.time_mean_s is None:
        return None
    left_rate = minute.departures / minute.length_s
    return age_share(minute.mean_in_system, left_rate, minute.time_mean_s), minute.departures


def trend_signal(minutes: Sequence[Minute]) -> tuple[Signal, TailTrend | None]:
    """Return the trend signal and the trend it is about: of the latency that grows most certainly.

    A vote as soon as ln p99 rises over the last 30 minutes (Mann-Kendall p < 0.01), doubling within an
    hour, while p50 takes more than three times as long; `is_certain` as in `fleet.tail_trend`.
    """
    found = [(name, trend) for name, trend in _trends(minutes) if trend is not None]
    if not found:
        few = f"fewer than {MIN_POINTS} minutes with p50 and p99, or none of the last {PRESENT_MIN:.0f}"
        return Signal("trend", None, few), None
    name, trend = max(found, key=lambda one: (one[1].is_certain, one[1].is_significant, one[1].growth))
    is_raised = trend.is_still and (trend.is_significant or trend.is_certain)
    return Signal("trend", is_raised, trend.words(f"p99 of {name}" if name else "p99")), trend


def _trends(minutes: Sequence[Minute]) -> list[tuple[str, TailTrend | None]]:
    recent = minutes[-max(WINDOWS) - RUN :]
    whole = [
        TailPoint(m.at_min, m.p50_s, m.p99_s) for m in recent if m.p50_s is not None and m.p99_s is not None
    ]
    first = [
        TailPoint(m.at_min, m.ttft_p50_s, m.ttft_p99_s)
        for m in recent
        if m.ttft_p50_s is not None and m.ttft_p99_s is not None
    ]
    if not first:
        return [("", _present(whole, recent))]
    return [
        ("end-to-end latency", _present(whole, recent)),
        ("time to first token", _present(first, recent)),
    ]


def _present(points: Sequence[TailPoint], minutes: Sequence[Minute]) -> TailTrend | None:
    """Return the trend of `points`; None when the last minutes had too few requests for any of them."""
    if not points or minutes[-1].at_min - points[-1].at_min > PRESENT_MIN:
        return None
    return tail_trend(points)


def backlog_signal(waiting: int | None, longest_wait_s: float, mu: float | None) -> Signal:
    """Return the backlog signal: more waiting than can start within the longest allowed wait, D mu."""
    if waiting is None or mu is None:
        return Signal("backlog", None, "queue or capacity not known")
    room = longest_wait_s * mu
    return Signal(
        "backlog", waiting > room, f"{waiting} wait; {longest_wait_s:g} s x {mu:.4g} = {room:.4g} can start"
    )


def assess_equilibrium(
    minutes: Sequence[Minute],
    *,
    waiting: int | None = None,
    longest_wait_s: float = 1.5,
    mu: float | None = None,
    rho_low: float | None = None,
    rho_high: float | None = None,
) -> Equilibrium:
    """Return the state of a queue from its disjoint minutes, oldest first.

    UNSTABLE at once when even the low end of rho exceeds 1, when p99 certainly doubles under a still p50,
    or when two signals are raised by growth; but flow and age alone, with the high end of rho below 1, are
    a queue on its way to its next level: FILLING. FILLING or DRAINING by the sign of a raised flow; else
    EQUILIBRIUM; None when neither flow nor ages nor a trend are known.
    """
    (flow, z), (trend, tail) = flow_signal(minutes), trend_signal(minutes)
    signals = (flow, age_signal(minutes), trend, backlog_signal(waiting, longest_wait_s, mu))
    doubles = tail is not None and tail.is_certain and tail.is_still
    balance = _balance(signals, z, rho_low, rho_high, doubles=doubles)
    if tail is None or not tail.is_certain:
        return Equilibrium(balance, signals, None)
    return Equilibrium(balance, signals, tail.doubling_min, tail.is_still)


def _balance(
    signals: Sequence[Signal],
    z: float | None,
    rho_low: float | None,
    rho_high: float | None,
    *,
    doubles: bool,
) -> Balance | None:
    if doubles or (rho_low is not None and rho_low > 1):
        return Balance.UNSTABLE
    if all(signal.is_raised is None for signal in signals if signal.name != "backlog"):
        return None  # a short queue alone does not prove balance
    raised = {signal.name for signal in signals if signal.is_raised}
    is_draining = z is not None and z <= -FLOW_Z
    if len(raised) >= 2 and not is_draining:
        is_bounded = raised == {"flow", "age"} and rho_high is not None and rho_high < 1
        return Balance.FILLING if is_bounded else Balance.UNSTABLE
    if "flow" in raised:
        return Balance.DRAINING if is_draining else Balance.FILLING
    return Balance.EQUILIBRIUM
