"""The balance of queues in words: states, signals, Little's law by stage, tails, shares. Pure.

Prevents: a steady-state number beside a queue that is not in one, and "L at p99".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from control.flow_store import FlowNow, SloCount
from dashboard import words
from dashboard.data import PolicyNow
from dashboard.times import Zone
from dashboard.viewmodels import SIGNS, Card
from dashboard.words import Tone
from fleet.outcomes import Tier
from fleet.policy import Policy, parse
from fleet.utilization_curve import IDLE_P50, UtilizationCurve

FLEET = "fleet"
_BALANCE: dict[str, tuple[Tone, str]] = {
    "equilibrium": ("good", "what comes also leaves"),
    "filling": ("watch", "more comes than leaves"),
    "draining": ("plain", "more leaves than comes"),
    "unstable": ("act", "it does not settle"),
}
_STAGES = {
    "gateway_queue": "gateway queue",
    "engine_queue": "engine queue",
    "prefill": "prefill",
    "decode": "decode",
}
RULE = (
    "Any two raised: the queue has left equilibrium, and steady-state numbers do not hold. It is unstable "
    "at once when the low end of rho passes 1, or when p99 certainly doubles under a still p50."
)


def policy_of(now: PolicyNow | None) -> Policy | None:
    """Return the policy of the newest revision."""
    return None if now is None or now.head is None else parse(now.head.document)


def stage_caption(state: FlowNow, zone: Zone) -> str:
    """Return what the stages are of."""
    ended = state.detail.get("minute_ended_at")
    when = (
        "No whole minute yet."
        if ended is None
        else f"Minute until {zone.clock(datetime.fromtimestamp(ended, UTC))}."
    )
    return (
        f"{when} L = X W holds on means, in equilibrium: what is left over are requests growing old. "
        "Engines report times when a request finishes, so a stage's W is of those that left the engine. "
        f"Prefill is what runs less what decodes: rough, with a few looks a minute. {queue_lengths(state)}"
    ).rstrip()


def label(scope: str, name: str) -> str:
    """Return a subject as the address and the list of choices have it."""
    return FLEET if scope == "fleet" else f"{scope} {words.tier_or_name(scope, name)}"


def subject_of(chosen: str) -> tuple[str, str]:
    """Return (scope, name) of a label."""
    scope, _, name = chosen.partition(" ")
    if scope == "tier":
        name = name.replace(Tier.BEST_EFFORT.words, Tier.BEST_EFFORT)
    return ("fleet", "") if scope == FLEET else (scope, name)


def is_stale(state: FlowNow, now: datetime, stale_s: float) -> bool:
    """Return whether a state is too old to be the present."""
    return (now - state.at).total_seconds() > stale_s


def fresh(states: Sequence[FlowNow], now: datetime, stale_s: float) -> list[FlowNow]:
    """Return the states that are of the present."""
    return [state for state in states if not is_stale(state, now, stale_s)]


def find(states: Sequence[FlowNow], scope: str, name: str) -> FlowNow | None:
    """Return one subject's state."""
    return next((s for s in states if (s.scope, s.name) == (scope, name)), None)


def stored(state: FlowNow, name: str) -> list[dict[str, Any]]:
    """Return one of the lists that were stored with a state; empty where an older release wrote none."""
    found: list[dict[str, Any]] | None = state.detail.get(name)
    return found or []


def balance_card(state: FlowNow | None, *, is_old: bool) -> Card:
    """Return the state as a card; of an old one, that it is old."""
    if state is None or state.balance is None:
        return Card("Balance", words.UNKNOWN, "not known yet", "unknown", "It takes two whole minutes")
    if is_old:
        return Card("Balance", state.balance, "last known", "unknown")
    value, tone, word = balance_look(state)
    return Card("Balance", value, word, tone, f"from {words.plural(state.minutes, 'minute')}")


def balance_look(state: FlowNow) -> tuple[str, Tone, str]:
    """Return (what to call a balance, its tone, what it means); good only where the load fits as well.

    Refusals and timeouts keep a queue's length level under any load: level is not well.
    """
    balance = state.balance or ""
    tone, word = _BALANCE[balance]
    if tone != "good":
        return balance, tone, word
    rho: float | None = state.detail.get("rho")
    if rho is not None and rho >= 1:
        return "overloaded", "act", f"level only because requests are refused or give up: rho {rho:.2f}"
    raised = [s["name"] for s in stored(state, "signals") if s["is_raised"]]
    if raised:
        return balance, "watch", f"but {' and '.join(raised)} raised"
    return (balance, "plain", "level; rho not known") if rho is None else (balance, tone, word)


def cards(
    state: FlowNow | None, slo: SloCount | None, policy: Policy | None, *, is_old: bool
) -> list[Card]:
    """Return the page's numbers; what an old state said of its present is none of ours."""
    present = None if is_old else state
    return [
        balance_card(state, is_old=is_old),
        _doubling(present),
        _attainment(slo, policy),
        _budget(slo, policy),
        _burn(present),
    ]


def _doubling(state: FlowNow | None) -> Card:
    help_ = (
        "p99 has grown by 1.8 within half an hour to an hour and a half, its rise is significant, and both "
        "held in three minutes in a row"
    )
    if state is None or not _has_trend(state):
        why = "It takes 12 minutes with requests"
        return Card("p99 doubling time", words.UNKNOWN, "not known", "unknown", why, help_)
    if state.p99_doubling_min is None:
        return Card("p99 doubling time", "none", "does not double", "good", help=help_)
    still = bool(state.detail.get("is_middle_still"))
    note = "p50 is still: the tail alone grows" if still else "p50 rises with it"
    return Card(
        "p99 doubling time",
        f"{state.p99_doubling_min:.0f} min",
        "grows without bound" if still else "grows",
        "act" if still else "watch",
        note,
        help_,
    )


def _has_trend(state: FlowNow) -> bool:
    """Return whether a doubling was looked for: the trend of too few minutes says nothing."""
    found = stored(state, "signals")
    return any(s["name"] == "trend" and s["is_raised"] is not None for s in found)


def _attainment(slo: SloCount | None, policy: Policy | None) -> Card:
    title = "Objective, in the range"
    share = None if slo is None else slo.good.share
    if slo is None or share is None:
        return Card(title, words.UNKNOWN, "nothing counted", "unknown")
    value = words.percent(share.low) if share.is_exact else f"{words.percent(share.low)} or more"
    note = f"{slo.good.offered:,} requests, goodput {words.rate(slo.goodput)}"
    if policy is None:
        return Card(title, value, "no policy", "plain", note)
    target = policy.slo.attainment_ratio
    goal = f"{words.seconds(policy.slo.ttft_s)} at the gateways for {words.percent(target)}"
    note = f"First token within {goal}; {note}"
    if share.low >= target:
        return Card(title, value, "met", "good", note)
    if share.high < target:
        return Card(title, value, "missed", "act", note)
    return Card(title, value, "cannot tell", "watch", f"{note}. The threshold lies inside a bucket")


def _budget(slo: SloCount | None, policy: Policy | None) -> Card:
    title = "Error budget left, in the range"
    share = None if slo is None else slo.good.share
    if share is None or policy is None:
        return Card(title, words.UNKNOWN, "not known", "unknown")
    left = 1 - (1 - share.low) / (1 - policy.slo.attainment_ratio)
    tone: Tone = "act" if left < 0 else "watch" if left < 0.25 else "good"
    word = {"act": "overspent", "watch": "nearly spent", "good": "enough"}[tone]
    help_ = "Of what the objective allows over the chosen range; choose 30d for the month's"
    return Card(title, words.percent(left, 0), word, tone, help=help_)


def _burn(state: FlowNow | None) -> Card:
    title = "Budget burn, last 1 h and last 5 min"
    if state is None:
        return Card(title, words.UNKNOWN, "not known", "unknown")
    burns: Mapping[str, Any] = state.detail.get("burns") or {}
    fast: Mapping[str, Any] | None = burns.get("fast")
    sure: float | None = None if fast is None else fast.get("sure")
    if fast is None or sure is None:
        return Card(title, words.UNKNOWN, "too few requests", "unknown")
    tone: Tone = "act" if sure > fast["limit"] else "watch" if sure > 1 else "good"
    word = {"act": "spent within two days", "watch": "faster than allowed", "good": "within budget"}[tone]
    return Card(title, f"{sure:.1f}x", word, tone, help="1x spends the month's budget in a month")


def signal_rows(state: FlowNow, *, is_old: bool) -> dict[str, list[Any]]:
    """Return the four signals; those of an old state are not known now."""
    found = stored(state, "signals")
    return {
        "signal": [s["name"] for s in found],
        "state": [_raised(None if is_old else s["is_raised"]) for s in found],
        "evidence": [s["evidence"] for s in found],
    }


def raised_lines(state: FlowNow) -> list[str]:
    """Return the evidence of raised signals as sentences: a narrow table cuts it."""
    return [f"{s['name']}: {s['evidence']}." for s in stored(state, "signals") if s["is_raised"]]


def _raised(is_raised: bool | None) -> str:
    if is_raised is None:
        return f"{SIGNS['unknown']} not known"
    return f"{SIGNS['watch']} raised" if is_raised else f"{SIGNS['good']} quiet"


def stage_rows(state: FlowNow) -> dict[str, list[Any]]:
    """Return Little's law for each stage of the newest whole minute."""
    found = stored(state, "stages")
    residuals = [_minus(s["held"], s["explained"]) for s in found]
    return {
        "stage": [_STAGES.get(s["name"], s["name"]) for s in found],
        "held": [words.number(s["held"]) for s in found],
        "rate": [words.rate(s["left_rate"]) for s in found],
        "time": [words.seconds(s["time_mean_s"]) for s in found],
        "explained": [words.number(s["explained"]) for s in found],
        "residual": [words.number(r) for r in residuals],
        "share": [
            words.UNKNOWN if r is None or not s["held"] else words.percent(r / s["held"], 0)
            for r, s in zip(residuals, found, strict=True)
        ],
    }


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def tail_rows(state: FlowNow) -> dict[str, list[Any]]:
    """Return what each percentile of time means in places."""
    names = {"time": "queue wait" if state.scope == "tier" else "end to end", "ttft": "first token"}
    tails: Mapping[str, list[dict[str, Any]]] = state.detail.get("tails") or {}
    rows = [(names[key], row) for key in names for row in tails.get(key, [])]
    return {
        "of": [name for name, _ in rows],
        "quantile": [f"p{100 * row['q']:g}" for _, row in rows],
        "time": [_quantile(row["time"]) for _, row in rows],
        "budget": [_range(row["budget"]) for _, row in rows],
        "held": [_range(row["tail_held"]) for _, row in rows],
        "share": [_range(row["tail_share"], percent=True) for _, row in rows],
    }


def _quantile(time: Mapping[str, Any]) -> str:
    shown = f"> {words.seconds(time['lo'])}" if time["hi"] is None else words.seconds(time["estimate"])
    if time["hi"] is not None and time["lo"] == 0:
        shown = f"\u2264 {words.seconds(time['hi'])}"
    return f"{shown} (few)" if time["too_few"] else shown


def _range(bounds: Sequence[float | None] | None, *, percent: bool = False) -> str:
    if bounds is None or bounds[0] is None:
        return words.UNKNOWN
    low, high = bounds[0], bounds[1]
    show = _whole_percent if percent else words.number
    if high is None:
        return f"\u2265 {show(low)}"
    return show(low) if show(low) == show(high) else f"{show(low)} to {show(high)}"


def queue_lengths(state: FlowNow) -> str:
    """Return how many wait at percentiles, as a sentence; "" where somebody may overtake."""
    found = stored(state, "queue_lengths")
    if not found:
        return ""
    said = "; ".join(
        f"p{100 * row['q']:g}: {_range((float(row['low']), float(row['high'])))}" for row in found
    )
    return f"Waiting at once, {said}. From waits, without overtaking, arrivals by chance."


def _whole_percent(value: float) -> str:
    return words.percent(value, 0)


def subject_rows(
    states: Sequence[FlowNow], now: datetime, zone: Zone, present: Sequence[FlowNow]
) -> dict[str, list[Any]]:
    """Return every queue with its balance; of one that is not among `present` it is not known."""
    return {
        "subject": [_link(label(s.scope, s.name)) for s in states],
        "state": [
            f"{SIGNS['unknown']} not known" if s.balance is None or s not in present else _balance_text(s)
            for s in states
        ],
        "doubling": [
            words.UNKNOWN
            if s not in present or not _has_trend(s)
            else "none"
            if s.p99_doubling_min is None
            else f"{s.p99_doubling_min:.0f} min"
            for s in states
        ],
        "minutes": [s.minutes for s in states],
        "as of": [zone.since(s.at, now) for s in states],
    }


def _link(subject: str) -> str:
    return f"/flow?subject={quote(subject, safe='')}#{subject}"


def _balance_text(state: FlowNow) -> str:
    value, tone, _ = balance_look(state)
    return f"{SIGNS[tone]} {value}"


def curve_lines(curves: Mapping[str, UtilizationCurve]) -> list[str]:
    """Return what each pool's curve says."""
    lines: list[str] = []
    for pool, curve in curves.items():
        text = (
            f"{pool}: rho p10 {curve.p10:.2f}, p50 {curve.p50:.2f}, p90 {curve.p90:.2f}; "
            f"{words.percent(curve.above_knee, 0)} of the time above 0.85; "
            f"{words.percent(curve.coverage, 0)} of the range is known"
        )
        if curve.width_s is not None:
            text += f", by means of {'an hour' if curve.width_s >= 3600 else 'a minute'}"
        if curve.is_mostly_idle:
            idle = words.percent(IDLE_P50, 0)
            text += f". Below {idle} half of the time: bad latency here is a scheduling problem"
        lines.append(text + ".")
    return lines
