"""An overloaded fleet in words: what is asked of it, what it can finish, and why its nodes read less. Pure.

Rates are requests/s, rho is a ratio. Prevents: a fleet at rho 3 above nodes at rho 1 that look as if one of
the two were wrong, and an overload that nobody is told of until an alert has held for two minutes.
"""

from __future__ import annotations

from control.freshness import Freshness
from control.queries_fleet import HealthView
from dashboard import words
from dashboard.data import FleetNow
from dashboard.viewmodels import DIAGNOSIS_PAGE, NOT_HEARD, Notice
from dashboard.viewmodels_fleet import rho_heard, silence_note

#: From how far the fleet's rho lies above its largest node's the two are explained.
APART = 0.1


def overload(now: FleetNow) -> Notice | None:
    """Return that more is asked than can be finished, with where its cause is found; None up to rho 1."""
    health = now.health
    if health is None or health.is_stale or health.rho is None or health.rho <= 1:
        return None
    if (silence := silence_note(health)) is not None and (rho_heard(health) or 0.0) <= 1:
        text = f"The fleet may be overloaded: rho is at least {words.ratio(rho_heard(health))}; {silence}"
        return Notice("watch", "partial", text, "over the last minute", DIAGNOSIS_PAGE, "Diagnosis")
    least = "" if silence is None else "at least "
    text = f"The fleet is overloaded: rho {least}{words.ratio(rho_heard(health))}"
    demand = _demand(health)
    if demand is not None and health.service_rate is not None:
        text += (
            f". {words.rate(demand)} compete for a capacity of {words.rate(health.service_rate)}: the rest "
            f"{'waits or is refused' if _is_at_door(health) else 'waits'}"
        )
    return Notice("act", "overloaded", text, "over the last minute", DIAGNOSIS_PAGE, "Diagnosis")


def two_rhos(now: FleetNow) -> str | None:
    """Return why the fleet's rho is above any of its nodes'; None where it is not, or nobody knows.

    A gateway that is not heard counts with what it said last: then nobody knows what competes.
    """
    health = now.health
    fresh = [n for n in now.nodes if n.freshness is Freshness.FRESH]
    known = [n.rho for n in fresh if n.rho is not None]
    if health is None or health.is_stale or health.rho is None or not known or not _is_at_door(health):
        return None
    if health.rho < max(known) + APART or any(g.condition in NOT_HEARD for g in now.gateways):
        return None
    reached = [n.arrival_rate for n in fresh]
    rates = [rate for rate in reached if rate is not None]
    at_nodes = f" ({words.rate(sum(rates))})" if len(rates) == len(reached) else ""
    low, high = words.ratio(min(known)), words.ratio(max(known))
    span = low if low == high else f"{low} to {high}"
    return (
        f"Both are true: the nodes' rho ({span}) counts what reached them{at_nodes}; the fleet's "
        f"({words.ratio(health.rho)}) counts what competes for them at the gateways "
        f"({words.rate(_demand(health))}), with what waits or is refused there."
    )


def _demand(health: HealthView) -> float | None:
    found = health.detail.get("competing_rate")
    return health.arrival_rate if found is None else float(found)


def _is_at_door(health: HealthView) -> bool:
    return health.detail.get("arrivals_from") == "gateways"
