"""Why a utilization reads as it does: each formula with its values in it.

Rates are per second, times are seconds. Pure text from numbers. Prevents: a number nobody can check.
"""

from __future__ import annotations

from fleet.capacity import Method
from fleet.health_reading import BACKLOG_HORIZON_S, TARGET_RHO, Health, Interval
from fleet.percentages import percent


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


_SHOWN_PARTS = 6


def explain(e: Health, longest_wait_s: float, *, parts: tuple[Health, ...] = ()) -> tuple[str, ...]:
    """Return sentences, most important first: rho, its capacity, head-room or saturation, flow, gaps.

    `parts` are what a sum consists of: its mu is shown as their sum.
    """
    rate, mu = e.competing_rate, e.mu.value
    lines = [_rho_line(e)]
    if e.limited_rate:
        lines.append(_limited_line(e))
    if e.repeated_rate:
        lines.append(f"{e.repeated_rate:.4g} requests/s were further tries: each request counts once")
    if mu is not None:
        lines.append(_mu_line(e, mu))
    if parts and mu is not None:
        lines.append(_sum_line(parts, mu))
    if len(e.rho_by_limit) > 1:
        lines.append("rho by limit: " + ", ".join(f"{name} {_band(rho)}" for name, rho in e.rho_by_limit))
    if e.rho.slow is not None and mu is not None:
        slow = _band(Interval(e.rho.slow, e.rho.slow_low, e.rho.slow_high))
        lines.append(f"rho over five minutes = {e.competing_rate_slow or 0:.4g} / {mu:.4g} = {slow}")
    if rate is not None and mu is not None and mu > 0:
        lines.extend(_room_lines(e, rate, mu, longest_wait_s))
    if e.worst is not None and e.worst_rho is not None and e.imbalance and len(parts) > 1:
        lines.append(
            f"imbalance = worst rho / rho of what reached the engines = {e.worst_rho:.2f} / "
            f"{e.worst_rho / e.imbalance:.2f} = {e.imbalance:.2f}; the worst is {e.worst}"
        )
    if e.arrivals is not None and e.completions:
        balance = e.arrivals / e.completions
        lines.append(
            f"flow balance = lambda / X = {e.arrivals} / {e.completions} = {balance:.2f}; "
            "about 1 at any steady load, so it raises no alarm"
        )
    return (*lines, *_gap_lines(e))


def _gap_lines(e: Health) -> list[str]:
    lines: list[str] = []
    if e.silent_gateways:
        lines.append(_silence_line(e))
    if e.stale:
        lines.append(f"left out, no fresh data: {_listed(e.stale)}")
    if e.unmeasured:
        lines.append(f"capacity or arrivals unknown: {_listed(e.unmeasured)}")
    return lines


def _band(i: Interval) -> str:
    if i.value is None:
        return "unknown"
    ends = f" [{i.low:.2f}, {i.high:.2f}]" if i.low is not None and i.high is not None else ""
    return f"{i.value:.2f}{ends}"


def _silence_line(e: Health) -> str:
    named = _listed(tuple(f"{name} for {age_s:.0f} s" for name, age_s in e.silent_gateways))
    least = (
        ""
        if e.rho_heard is None
        else f"; what gateways and engines saw makes rho at least {e.rho_heard:.2f}"
    )
    return f"silent gateways count with the demand they told last: {named}{least}"


def _limited_line(e: Health) -> str:
    added = "" if e.rho_limited is None else f"; with them rho would be {e.rho_limited:.2f} higher"
    return (
        f"{e.arrival_rate or 0:.4g} requests/s came, {e.limited_rate or 0:.4g} requests/s of them refused "
        f"by their callers' own limits, which no capacity changes: not part of rho{added}"
    )


def _sum_line(parts: tuple[Health, ...], mu: float) -> str:
    shown = " + ".join(f"{p.name} {p.mu.value or 0:.4g}" for p in parts[:_SHOWN_PARTS])
    more = f" + {len(parts) - _SHOWN_PARTS} more" if len(parts) > _SHOWN_PARTS else ""
    known = sum(p.mu.value or 0.0 for p in parts)
    guessed = "" if mu <= 1.001 * known else f", {mu - known:.4g} of it guessed for those unknown"
    return f"mu = {shown}{more} = {mu:.4g} requests/s{guessed}"


def _rho_line(e: Health) -> str:
    rate, mu, rho = e.competing_rate, e.mu, e.rho
    if rate is None:
        return "rho is unknown: arrivals were not counted over at least half of the last minute"
    if rate == 0:
        return "rho = 0: nothing arrived in the last minute"
    if mu.value is None or rho.value is None:
        seen = ", only a lower bound of it" if rho.method == Method.PEAK_SEEN else ""
        return f"rho is unknown: {rate:.4g} requests/s arrive, the capacity is not known{seen}"
    band = f" [{rho.low:.2f}, {rho.high:.2f}]" if rho.low is not None and rho.high is not None else ""
    grade = f", grade {rho.grade}" if rho.grade else ""
    return f"rho = lambda / mu = {rate:.4g} / {mu.value:.4g} = {rho.value:.2f}{band}{grade}"


def _mu_line(e: Health, mu: float) -> str:
    known = e.mu.low is not None and e.mu.high is not None
    band = f" [{e.mu.low:.4g}, {e.mu.high:.4g}]" if known else ""
    bound = f", bound by {e.rho.binding}" if e.rho.binding else ""
    return f"mu = {mu:.4g}{band} requests/s at the present mix, by {e.rho.method}{bound}"


def _room_lines(e: Health, rate: float, mu: float, longest_wait_s: float) -> list[str]:
    lines: list[str] = []
    if e.time_to_saturation_s is not None:
        room = f"free batch {e.free_batch:.0f} + {longest_wait_s:g} s x {mu:.4g} - waiting {e.waiting}"
        over = f"({rate:.4g} - {mu:.4g})"
        lines.append(f"time to saturation = ({room}) / {over} = {e.time_to_saturation_s:.0f} s")
    elif rate > mu:
        lines.append("time to saturation is unknown: free batch or waiting requests are not known")
    else:
        spare = max(0.0, TARGET_RHO * mu - rate)
        lines.append(f"head-room = {TARGET_RHO:g} x {mu:.4g} - {rate:.4g} = {spare:.4g} requests/s")
    if e.waiting and e.rho_backlog is not None:
        demand = f"{rate:.4g} + {e.waiting} / {BACKLOG_HORIZON_S:g} s"
        lines.append(f"rho with backlog = ({demand}) / {mu:.4g} = {e.rho_backlog:.2f}")
    if e.batch_used_ratio is not None:
        expected = e.batch_expected_ratio
        caption = "" if expected is None else f"; at rho {TARGET_RHO:g} expect {percent(expected)}"
        lines.append(
            f"batch in use {percent(e.batch_used_ratio)} of the operating batch: not utilization{caption}"
        )
    return lines
