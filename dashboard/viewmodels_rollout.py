"""The rollout page in words: where the newest revision is, gateway by gateway, and what may be done now.

Pure; durations are seconds. Conditions are what gateways answered, with the age of the answer. Prevents:
"applied" shown because something was sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from control.gateway_groups import grouped, process_words
from control.queries_policy import GatewayState, Rollout, RolloutState
from dashboard import words
from dashboard.actions import Verb
from dashboard.data import Reading, RolloutNow
from dashboard.times import UNKNOWN, Zone, age
from dashboard.viewmodels import CONDITION_LOOKS, NOT_HEARD, SIGNS, Card
from dashboard.words import Tone
from fleet.outcomes import TIERS

STATES: dict[RolloutState, tuple[Tone, str, str]] = {
    "first": ("plain", "first gateway", "One gateway gets the revision; the others keep theirs."),
    "baking": ("plain", "baking", "The first gateway runs it alone and is watched."),
    "paused": (
        "watch",
        "paused",
        "It stays at the first gateway until somebody resumes, promotes or aborts.",
    ),
    "all": ("plain", "going to all", "Every gateway is being sent the revision."),
    "live": ("good", "live", "Every gateway confirmed it when it went live."),
    "superseded": ("unknown", "superseded", "A newer revision took its place."),
    "aborted": ("act", "aborted", "Gateways go back to the revision before it."),
}
PROMPTS_SHOWN = 20
STEPS: dict[RolloutState, tuple[Verb, ...]] = {
    "first": ("pause", "promote", "abort"),
    "baking": ("pause", "promote", "abort"),
    "paused": ("resume", "promote", "abort"),
    "all": ("abort",),
}
VERBS: dict[Verb, tuple[str, str]] = {
    "pause": ("Pause", "The revision stays at its first gateway until somebody decides."),
    "resume": ("Resume", "It bakes again from the start: what was seen before the pause is no evidence."),
    "promote": ("Promote to all", "Every gateway gets it now, on your word instead of the samples'."),
    "abort": ("Abort", "Gateways go back to the revision before it."),
}


def cards(now: RolloutNow, at: datetime, zone: Zone) -> list[Card]:
    """Return revision, stage, gateways that confirmed it, and who published it."""
    rollout = now.rollout
    if rollout is None:
        return [Card("Rollout", UNKNOWN, "none yet", "unknown", "publish a policy first")]
    done = [g for g in now.gateways if is_done(g, rollout)]
    whole = len(done) == len(now.gateways) and bool(done)
    return [
        Card(
            "Revision",
            f"r{rollout.revision}",
            rollout.strategy.replace("_", " "),
            "plain",
            _by(now, at, zone),
        ),
        _stage_card(rollout, at, is_everywhere=whole),
        _confirmed_card(now.gateways, done),
        Card("Bake", bake_text(rollout, at), *_bake_look(rollout, at)),
    ]


def _stage_card(rollout: Rollout, at: datetime, *, is_everywhere: bool) -> Card:
    """Return the stage; one that was reached is in force only where every gateway confirms it now."""
    tone, word, meaning = STATES[rollout.state]
    if rollout.state != "live":
        return Card("Stage", word, _for(rollout, at), tone, meaning)
    if is_everywhere:
        return Card("Stage", word, "in force", tone, meaning)
    return Card("Stage", word, "not everywhere now", "watch", meaning)


def _confirmed_card(gateways: Sequence[GatewayState], done: Sequence[GatewayState]) -> Card:
    if not gateways:
        return Card("Gateways confirmed", UNKNOWN, "no gateway", "unknown")
    whole = len(done) == len(gateways)
    said, tone = ("all", "good") if whole else ("not all", "watch")
    value = f"{len(done)} of {len(gateways)}"
    return Card("Gateways confirmed", value, said, tone, _missing(gateways, done))


def not_everywhere(now: RolloutNow) -> str | None:
    """Return how far the newest revision is from being in force at every gateway; None where it is."""
    rollout = now.rollout
    if rollout is None or not now.gateways or rollout.state == "superseded":
        return None
    done = [g for g in now.gateways if is_done(g, rollout)]
    if rollout.state == "live" and len(done) == len(now.gateways):
        return None
    left = _missing(now.gateways, done)
    return (
        f"Revision {rollout.revision} ({STATES[rollout.state][1]}) is confirmed by {len(done)} of "
        f"{words.plural(len(now.gateways), 'gateway')}" + (f"; not by: {left}" if left else "")
    )


def _missing(gateways: Sequence[GatewayState], done: Sequence[GatewayState]) -> str:
    left = [f"{g.name} {_left(g)}" for g in gateways if g not in done]
    return ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")


def _left(g: GatewayState) -> str:
    return f"on revision {g.revision_observed or UNKNOWN}" if g.condition == "converged" else g.condition


def _for(rollout: Rollout, at: datetime) -> str:
    return f"for {age((at - rollout.updated_at).total_seconds())}"


def is_done(gateway: GatewayState, rollout: Rollout) -> bool:
    """Say whether a gateway confirmed this rollout's revision, by its newest word."""
    return gateway.condition == "converged" and gateway.revision_observed == rollout.revision


def _by(now: RolloutNow, at: datetime, zone: Zone) -> str:
    if now.head is None:
        return ""
    return f"{now.head.author}, {zone.since(now.head.created_at, at)}: {now.head.note}"


def bake_text(rollout: Rollout, at: datetime) -> str:
    """Return the countdown of the bake, or why there is none."""
    if rollout.state == "baking" and rollout.bake_started_at is not None:
        left_s = (rollout.bake_started_at + timedelta(seconds=rollout.bake_s) - at).total_seconds()
        return f"{math.ceil(left_s)} s left" if left_s > 0 else "over"
    return f"{rollout.bake_s:g} s" if rollout.strategy == "staged" else UNKNOWN


def _bake_look(rollout: Rollout, at: datetime) -> tuple[str, Tone, str]:
    if rollout.strategy != "staged":
        return "no bake", "plain", "every gateway at once"
    first = f"first gateway: {rollout.first_gateway}" if rollout.first_gateway else ""
    if rollout.state == "baking":
        is_over = bake_text(rollout, at) == "over"
        return ("waits for enough requests" if is_over else "watched"), "plain", first
    return ("done" if rollout.state in ("all", "live") else "waiting"), "unknown", first


def reason(rollout: Rollout | None) -> str | None:
    """Return why the rollout stands where it does, if it said so; of a live one that it was so then."""
    if rollout is None or not rollout.reason:
        return None
    return words.plain(f"as it went live: {rollout.reason}" if rollout.state == "live" else rollout.reason)


def group_words(gateways: Sequence[GatewayState]) -> str | None:
    """Return how gateways of several processes stand, in one line; None where there are none."""
    said = [f"{group}: {process_words(kept)}" for group, kept in grouped(gateways) if group is not None]
    return words.plain(". ".join(said) + ".") if said else None


def stage(now: RolloutNow | None) -> tuple[int, RolloutState] | None:
    """Return what decides which buttons fit: the rollout and its state; None: nothing is rolled out."""
    return None if now is None or now.rollout is None else (now.rollout.id, now.rollout.state)


def _worst_first(g: GatewayState) -> tuple[int, str]:
    order = ("rejected", "unreachable", "drifting", "behind", "unknown")
    return (order.index(g.condition) if g.condition in order else len(order)), g.name


def old_s(found: Reading[RolloutNow], at: datetime) -> float | None:
    """Return how many seconds ago an answer was given that is shown for want of a newer; None: of now."""
    if found.problem is None or found.as_of is None:
        return None
    return (at - found.as_of).total_seconds()


def gateway_rows(gateways: Sequence[GatewayState], *, old_s: float | None = None) -> dict[str, list[Any]]:
    """Return the gateways by column, those that are not converged first.

    `old_s`: they are of an answer so many seconds ago: conditions of then, no verdict about the present.
    """
    rows = sorted(gateways, key=_worst_first)
    return {
        "gateway": [g.name for g in rows],
        "condition": [
            _condition(g) if old_s is None else f"{SIGNS['unknown']} {g.condition}" for g in rows
        ],
        "revision": [_pair(g.revision_observed, g.revision_desired) for g in rows],
        "generation": [_pair(g.observed_generation, g.desired_generation) for g in rows],
        "heard": ["never" if g.age_s is None else f"{age(g.age_s + (old_s or 0.0))} ago" for g in rows],
        "in flight": [None if g.condition in NOT_HEARD else g.in_flight for g in rows],
        "queued": [_queues(g) for g in rows],
        "nodes": [
            UNKNOWN
            if g.nodes_usable is None or g.condition in NOT_HEARD
            else f"{g.nodes_usable} of {g.nodes_total}"
            for g in rows
        ],
    }


def _condition(g: GatewayState) -> str:
    return f"{SIGNS[CONDITION_LOOKS[g.condition][0]]} {g.condition}"


def why_lines(gateways: Sequence[GatewayState]) -> list[str]:
    """Return what each gateway has to say beyond the table, in full; those with nothing are absent."""
    return [f"{g.name}: {said}" for g in sorted(gateways, key=_worst_first) if (said := _why(g))]


def prompt_rows(gateways: Sequence[GatewayState]) -> dict[str, list[Any]]:
    """Return how prompts are estimated by model and gateway, the worst first; at most `PROMPTS_SHOWN`."""
    heard = [g for g in gateways if g.condition not in NOT_HEARD]
    rows = [(fit, model, g.name) for g in heard for model, fit in g.prompts.items()]
    rows.sort(key=lambda row: (-row[0].error_ratio, row[1], row[2]))
    shown = rows[:PROMPTS_SHOWN]
    return {
        "model": [model for _, model, _ in shown],
        "gateway": [name for *_, name in shown],
        "bytes": [fit.bytes_per_token for fit, *_ in shown],
        "off": [words.percent(fit.error_ratio) for fit, *_ in shown],
    }


def _pair(observed: int | None, desired: int | None) -> str:
    return f"{UNKNOWN if observed is None else observed} / {UNKNOWN if desired is None else desired}"


def _queues(g: GatewayState) -> str:
    if g.queues is None or g.condition in NOT_HEARD:
        return UNKNOWN
    return " / ".join(words.count(g.queues[t].requests) if t in g.queues else UNKNOWN for t in TIERS)


def _why(g: GatewayState) -> str:
    said = [f"field {g.pointer}"] if g.pointer else []
    said += [g.message] if g.message else []
    if g.condition in NOT_HEARD:  # the rest was so when it was heard last
        return "; ".join(said)
    said += ["draining"] if g.draining else []
    said += [
        f"{tenant} over by {words.count(by.tokens)} tokens, {words.count(by.requests)} requests"
        for tenant, by in list(g.over.items())[:3]
    ]
    said += _nodes_out(g)
    said += [f"does not enforce {', '.join(g.unsupported)}"] if g.unsupported else []
    return "; ".join(said)


def _nodes_out(g: GatewayState) -> list[str]:
    """Return the nodes a gateway keeps out, or on trial, by its own judgement; at most three."""
    found = [(node, why) for node, why in g.nodes_apart.items() if why in ("ejected", "on trial")]
    said = [f"node {node} {why}" for node, why in found[:3]]
    return [*said, f"{len(found) - 3} more nodes out"] if len(found) > 3 else said
