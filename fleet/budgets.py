"""Tenants' monthly budgets: how much is spent, who will run over and when, and what happens then.

USD as `Decimal`, ratios 0..1 and above. What happens at 100 % is what a gateway says it holds, never what
was sent to it. Prevents: a budget that reads "enforced" while a gateway has not heard of it, and a date
of running over without its interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum

from fleet.limiters import Mode
from fleet.policy import OverBudget
from fleet.spend_forecast import Forecast


class Standing(StrEnum):
    """How a tenant stands to its budget at the month's end."""

    OVER = "over"
    WILL = "will run over"  # even the low end of the forecast
    LIKELY = "likely to run over"  # the middle of it
    MAY = "may run over"  # only the high end
    WITHIN = "stays within"
    UNKNOWN = "too early to say"


#: Worst first.
STANDINGS = tuple(Standing)


@dataclass(frozen=True, slots=True)
class Crossing:
    """The day the budget is spent; None: not this month. `earliest` to `latest` is the interval."""

    day: date | None = None
    earliest: date | None = None
    latest: date | None = None


@dataclass(frozen=True, slots=True)
class BudgetState:
    """One tenant's month."""

    tenant: str
    limit_usd: Decimal
    spent_usd: Decimal
    standing: Standing
    crossing: Crossing
    forecast: Forecast | None
    why_unknown: str  # why there is no forecast

    @property
    def ratio(self) -> float | None:
        """Return the part of the budget that is spent; None of a budget of 0."""
        return float(self.spent_usd / self.limit_usd) if self.limit_usd else None

    @property
    def left_usd(self) -> Decimal:
        """Return what is left; negative once it is overspent."""
        return self.limit_usd - self.spent_usd


def judge(
    tenant: str,
    limit_usd: Decimal,
    spent_usd: Decimal,
    days: Mapping[date, Decimal],
    forecast: Forecast | None,
    why_unknown: str = "",
) -> BudgetState:
    """Return how a tenant stands. `days` is this month's spend by day so far, summing to `spent_usd`."""
    crossing = Crossing()
    if spent_usd >= limit_usd:
        standing = Standing.OVER
        crossed = _crossed(limit_usd, days)
        crossing = Crossing(crossed, crossed, crossed)
    elif forecast is None:
        standing = Standing.UNKNOWN
    else:
        limit, end = float(limit_usd), forecast.end
        crossing = Crossing(
            next((d.day for d in forecast.days if d.usd >= limit), None),
            next((d.day for d in forecast.days if d.high >= limit), None),
            next((d.day for d in forecast.days if d.low >= limit), None),
        )
        standing = Standing.WITHIN
        for value, name in (
            (end.low, Standing.WILL),
            (end.usd, Standing.LIKELY),
            (end.high, Standing.MAY),
        ):
            if value >= limit:
                standing = name
                break
    return BudgetState(tenant, limit_usd, spent_usd, standing, crossing, forecast, why_unknown)


def _crossed(limit_usd: Decimal, days: Mapping[date, Decimal]) -> date | None:
    running = Decimal(0)
    for day in sorted(days):
        running += days[day]
        if running >= limit_usd:
            return day
    return None


def passed(state: BudgetState, thresholds: Sequence[float]) -> tuple[float, ...]:
    """Return the thresholds (ratios) that are reached, smallest first."""
    ratio = state.ratio
    if ratio is None:
        return tuple(sorted(thresholds))
    return tuple(t for t in sorted(thresholds) if ratio >= t)


class Doing(StrEnum):
    """What one gateway does about one tenant's budget, as far as it has said itself."""

    READY = "ready"  # the budget is not spent; it will act when it is
    ACTS = "acts"  # it is spent, and the gateway says it knows
    WARNS = "warns"  # all that the policy asks for
    COUNTS = "only counts"  # the limit is in shadow
    OFF = "switched off"
    LATE = "does not know yet"  # spent, and the gateway has not said that it knows
    CANNOT = "cannot"  # it says that it does not enforce the field
    UNKNOWN = "not known"  # not heard lately, or it holds no policy


@dataclass(frozen=True, slots=True)
class GatewayWord:
    """What one gateway said of itself, and how old that is."""

    gateway: str
    age_s: float | None  # since its last answer; None: never
    is_fresh: bool
    revision: int | None  # of the policy it runs
    action: OverBudget | None  # of the tenant in that policy; None: the tenant or its budget is not in it
    mode: Mode
    unsupported: tuple[str, ...]  # JSON pointers into the policy
    is_told: bool | None  # it holds that this tenant's budget is spent; None: it did not say


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What one gateway does, in a word and a sentence."""

    gateway: str
    doing: Doing
    words: str


def enforcement(tenant: str, word: GatewayWord, *, is_spent: bool) -> Enforcement:
    """Return what `word` says the gateway does about `tenant`, whose budget is spent or not."""
    doing, words = _doing(tenant, word, is_spent=is_spent)
    return Enforcement(word.gateway, doing, words)


def _doing(tenant: str, word: GatewayWord, *, is_spent: bool) -> tuple[Doing, str]:
    if not word.is_fresh or word.revision is None:
        heard = "never" if word.age_s is None else f"{word.age_s:.0f} s ago"
        return Doing.UNKNOWN, f"last heard {heard}"
    barred = next((p for p in word.unsupported if _is_about(p, tenant)), None)
    if barred is not None:
        return Doing.CANNOT, f"it does not enforce {barred}"
    if word.action is None:
        return Doing.LATE, f"it runs revision {word.revision}, which has no such budget"
    if is_spent and not word.is_told:
        return Doing.LATE, "it has not said that it knows the budget is spent"
    if word.mode is Mode.OFF:
        return Doing.OFF, "limiters.monthly_budget is off"
    act = {
        OverBudget.WARN: "warns",
        OverBudget.DOWNGRADE: "serves as best-effort",
        OverBudget.REFUSE: "refuses with 429",
    }[word.action]
    if word.action is OverBudget.WARN:
        return Doing.WARNS, "serves as before and warns"
    if word.mode is Mode.SHADOW:
        return Doing.COUNTS, f"in shadow: counts what it would do ({act})"
    return (Doing.ACTS, f"{act} now") if is_spent else (Doing.READY, f"at 100 % it {act}")


def _is_about(pointer: str, tenant: str) -> bool:
    """Say whether a JSON pointer of what a gateway cannot do covers this tenant's budget."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    wanted = (("tenants", tenant, "monthly_budget_usd"), ("tenants", tenant, "over_budget"))
    covers = any(
        all(a in (b, "*") for a, b in zip(parts, path, strict=False)) and 1 <= len(parts) <= len(path)
        for path in wanted
    )
    return covers or parts[:2] == ["limiters", "monthly_budget"] or parts == ["limiters"]
