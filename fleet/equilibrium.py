"""Whether a queue is in equilibrium: four signals, and the state they add up to.

Rates are per second, times are seconds, minutes where the name says so. Little's law and every steady-state
formula hold only in equilibrium; a p99 that doubles every 15 minutes under a still p50 is outside it. Uses
disjoint one-minute windows only: overlapping ones inflate the significance. Prevents: a steady-state number
quoted for a queue that is growing, and an alarm on one noisy minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleet.errors import NotMeasured
from fleet.little import Trend, age_share, log_trend
from fleet.queueing import flow_z

FLOW_Z = 3.0
FLOW_WINDOWS = 2  # consecutive minutes
AGE_SHARE = 0.1
AGE_WINDOWS = 2
TREND_POINTS = 30
TREND_MIN_POINTS = 12
TREND_P = 0.01
TREND_DOUBLING_MIN = 60.0
STILL_FACTOR = 3.0  # p50 doubles more than this many times slower


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
    p50_s: float | None = None
    p99_s: float | None = None
    length_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Signal:
    """One of the four signals: raised, not raised, or None without the data for it."""

    name: str
    is_raised: bool | None
    evidence: str


@dataclass(frozen=True, slots=True)
class Equilibrium:
    """The state with its signals; `p99_doubling_min` is None when p99 does not grow significantly."""

    balance: Balance | None  # None: no signal could be computed
    signals: tuple[Signal, ...]
    p99_doubling_min: float | None

    @property
    def is_left(self) -> bool:
        """Return whether the queue has left equilibrium: two signals, or unstable."""
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
    """Return the age signal: (L - X W) / L beyond 0.1 with the same sign for two minutes."""
    shares = [
        age_share(m.mean_in_system, m.departures / m.length_s, m.time_mean_s)
        for m in minutes[-AGE_WINDOWS:]
        if m.mean_in_system and m.time_mean_s is not None and m.departures is not None
    ]
    if len(shares) < AGE_WINDOWS:
        return Signal("age", None, "places or times not measured")
    shown = ", ".join(f"{share:+.0%}" for share in shares)
    is_raised = all(s > AGE_SHARE for s in shares) or all(s < -AGE_SHARE for s in shares)
    return Signal(
        "age", is_raised, f"(L - X W) / L = {shown} in the last {len(shares)} minutes (raised at 10 %)"
    )


def _trend(minutes: Sequence[Minute], *, p99: bool) -> Trend | None:
    recent = [
        (m.at_min, value)
        for m in minutes[-TREND_POINTS:]
        if (value := m.p99_s if p99 else m.p50_s) is not None and value > 0
    ]
    if len(recent) < TREND_MIN_POINTS:
        return None
    try:
        return log_trend([at for at, _ in recent], [value for _, value in recent])
    except NotMeasured:
        return None


def trend_signal(minutes: Sequence[Minute]) -> tuple[Signal, float | None]:
    """Return the trend signal and p99's doubling time in minutes.

    Raised when ln p99 rises over the last 30 minutes (Mann-Kendall p < 0.01), doubling within an hour,
    while p50 takes more than three times as long.
    """
    tail, middle = _trend(minutes, p99=True), _trend(minutes, p99=False)
    if tail is None or middle is None:
        return Signal("trend", None, f"fewer than {TREND_MIN_POINTS} minutes of p50 and p99"), None
    doubling = tail.doubling_min if tail.p_one_sided < TREND_P else None
    if doubling is None or doubling >= TREND_DOUBLING_MIN:
        return Signal(
            "trend", False, f"p99 does not double within an hour (p = {tail.p_one_sided:.2g})"
        ), None
    still = middle.log_slope_per_min * STILL_FACTOR < tail.log_slope_per_min
    moves = "p50 is still" if still else "p50 rises with it"
    evidence = f"p99 doubles every {doubling:.0f} minutes (p = {tail.p_one_sided:.2g}), {moves}"
    return Signal("trend", still, evidence), doubling


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
) -> Equilibrium:
    """Return the state of a queue from its disjoint minutes, oldest first.

    UNSTABLE at once when even the low end of rho exceeds 1, or when two signals are raised by growth;
    FILLING or DRAINING by the sign of a raised flow; else EQUILIBRIUM; None when nothing is known.
    """
    (flow, z), (trend, doubling) = flow_signal(minutes), trend_signal(minutes)
    signals = (flow, age_signal(minutes), trend, backlog_signal(waiting, longest_wait_s, mu))
    balance = _balance(signals, z, rho_low)
    return Equilibrium(balance, signals, doubling)


def _balance(signals: Sequence[Signal], z: float | None, rho_low: float | None) -> Balance | None:
    if rho_low is not None and rho_low > 1:
        return Balance.UNSTABLE
    if all(signal.is_raised is None for signal in signals):
        return None
    raised = {signal.name for signal in signals if signal.is_raised}
    is_draining = z is not None and z <= -FLOW_Z
    if len(raised) >= 2 and not is_draining:
        return Balance.UNSTABLE
    if "flow" in raised:
        return Balance.DRAINING if is_draining else Balance.FILLING
    return Balance.EQUILIBRIUM
