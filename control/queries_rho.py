"""Every rho there is, by scope: the newest verdict of each subject, and why it reads as it does.

Rates are per second, times seconds, rho a ratio. `None` means nobody knows. Prevents: two places that show
different parts of one verdict, and an old verdict given as the present one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from control.queries_fleet import HealthView, latest_verdicts
from control.queries_fleet import Scope as Named
from fleet.errors import InvalidInput, NotFound

#: In the order people ask: the whole, its parts by configuration, by model, by urgency, then machines.
SCOPES: tuple[Named, ...] = ("fleet", "pool", "model", "tier", "node", "engine")
#: Scopes that stay few however many nodes there are.
WIDE: tuple[Named, ...] = ("fleet", "pool", "model", "tier")

#: Parts of a verdict kept in its detail: what they are called outside.
_RATIOS = ("batch_used_ratio", "batch_expected_ratio", "slots_used_ratio")
_NUMBERS = (
    "arrival_rate_slow", "competing_rate", "limited_rate", "repeated_rate", "rho_limited", "demand_share",
    "headroom_tokens", "headroom_prompt_tokens", "headroom_engine_s", "time_to_saturation_s",
    "time_to_drain_s", "imbalance", "batch", "free_batch", "prompt_tokens", "output_tokens", "parts",
)  # fmt: skip


def scope_named(name: str) -> Named:
    """Return the scope called `name`. Raises InvalidInput with the names there are."""
    for scope in SCOPES:
        if scope == name:
            return scope
    raise InvalidInput(
        f"there is no scope {name[:40]!r}", field="scope", hint=f"Use one of: {', '.join(SCOPES)}"
    )


def verdicts(
    session: Session, now: datetime, scopes: Iterable[Named] = WIDE, *, name: str | None = None
) -> list[HealthView]:
    """Return the newest verdict of every subject of `scopes`; with `name`, of that subject alone.

    Raises NotFound when a name is given and no verdict of the last hour is about it.
    """
    found = [view for scope in scopes for view in latest_verdicts(session, scope, now)]
    if name is None:
        return found
    named = [view for view in found if view.name == name]
    if not named:
        raise NotFound(
            f"there is no verdict about {name[:80]!r} in the last hour",
            hint=f"There are: {', '.join(sorted({v.name or v.scope for v in found})[:20]) or 'none'}",
        )
    return named


def as_dict(view: HealthView) -> dict[str, Any]:
    """Return a verdict in JSON form. An old one keeps its age and `is_stale`, and gives no numbers."""
    said: dict[str, Any] = {
        "scope": view.scope,
        "name": view.name,
        "at": view.at.isoformat(),
        "age_s": view.age_s,
        "is_stale": view.is_stale,
    }
    if view.is_stale:
        return said
    detail = view.detail
    return said | {
        "rho": _ends(view.rho, view.rho_low, view.rho_high),
        "rho_slow": _kept(detail, "rho_slow"),
        "rho_backlog": _kept(detail, "rho_backlog"),
        "rho_worst": _kept(detail, "worst_rho") | {"name": detail.get("worst")},
        "rho_by_limit": detail.get("rho_by_limit", {}),
        "rho_with_higher": detail.get("rho_with_higher"),
        "grade": view.grade,
        "method": view.method,
        "binding": view.binding,
        "mu": _ends(view.service_rate, view.service_rate_low, view.service_rate_high),
        "mu_tokens": {
            "value": view.output_tokens_rate,
            "low": detail.get("output_tokens_rate_low"),
            "high": detail.get("output_tokens_rate_high"),
        },
        "mu_by_limit": detail.get("mu_by_limit", {}),
        "arrival_rate": view.arrival_rate,
        "throughput": view.throughput,
        "flow_balance": view.flow_balance,
        "flow_balance_z": view.flow_balance_z,
        "saturated": view.saturated,
        "headroom": view.headroom_rps,
        "running": view.running,
        "waiting": view.waiting,
        "kv_used_ratio": view.kv_used_ratio,
        "arrivals_from": detail.get("arrivals_from"),
        "partial": view.partial,
        "missing_nodes": list(view.missing_nodes),
        "unmeasured": detail.get("unmeasured", []),
        "silent_gateways": detail.get("silent_gateways", {}),
        "rho_at_least": detail.get("rho_heard"),
        **{name: detail.get(name) for name in (*_NUMBERS, *_RATIOS)},
        "explanation": detail.get("explanation", []),
    }


def _ends(value: float | None, low: float | None, high: float | None) -> dict[str, float | None]:
    return {"value": value, "low": low, "high": high}


def _kept(detail: dict[str, Any], name: str) -> dict[str, Any]:
    return _ends(detail.get(name), detail.get(f"{name}_low"), detail.get(f"{name}_high"))
