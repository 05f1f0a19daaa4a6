"""Keeps every gateway on what it should run: look, decide, push, record.

Level-triggered: each pass compares what gateways say with what is desired; how they came apart (a lost
answer, a restart, a push by hand, another leader) does not matter. Times are seconds. Network calls are
made with no transaction open, and every write requires the leader's epoch. Prevents: a missed event that
costs truth, and a stalled old leader whose late push lands on a newer one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pydantic import TypeAdapter, ValidationError

from control import assignments, gateways, reconcile_store, reconcile_turns
from control.assignments import Target
from control.conditions import (
    Desired,
    Known,
    Refusal,
    after_answer,
    after_lost_push,
    after_silence,
    holds,
    refusal_words,
    settled,
)
from control.deps import Deps
from control.lease import LeaseLost
from control.reconcile_store import Ack, Place
from fleet.errors import FleetError, InvalidPolicy, StaleAssignment, Unavailable
from fleet.messages import MAX_COUNTER, GatewayStatus, TenantShare

log = logging.getLogger(__name__)

Answer = GatewayStatus | FleetError
#: Nobody gets this far but by a push by hand; what is above leaves too little room to overtake it.
HIGHEST_OVERTAKEN = MAX_COUNTER - 1_000_000
_SHARES = TypeAdapter(dict[str, TenantShare])


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do in this pass. `desired` has every gateway with a target, `pushes` those to send to."""

    raise_above: int | None  # a gateway knows this epoch, above ours
    desired: dict[str, Desired]
    pushes: tuple[str, ...]


def plan(places: Sequence[Place], answers: Mapping[str, Answer], epoch: int) -> Plan:
    """Decide generations and pushes. A gateway that was not asked or did not answer gets no push.

    A generation rises when the content changes, and over any number a gateway came to hold otherwise; one
    that has no room above it begins anew at 1 under a higher epoch. A content a gateway refused is not sent
    again to the same process.
    """
    said = {name: answer for name, answer in answers.items() if isinstance(answer, GatewayStatus)}
    highest = max((status.epoch for status in said.values()), default=0)
    generations = {
        place.name: _generation(place, place.digest, said.get(place.name))
        for place in places
        if place.digest is not None
    }
    is_spent = any(number > HIGHEST_OVERTAKEN for number in generations.values())
    raise_above = max(highest, epoch) if highest > epoch or is_spent else None
    led = epoch if raise_above is None else raise_above + 1
    desired: dict[str, Desired] = {}
    pushes: list[str] = []
    for place in places:
        if place.target is None:
            continue
        status = said.get(place.name)
        generation = generations[place.name] if generations[place.name] <= HIGHEST_OVERTAKEN else 1
        wanted = Desired(place.target.assignment.revision, led, generation, place.target.digest)
        desired[place.name] = wanted
        if status is not None and _needs_push(place, status, wanted):
            pushes.append(place.name)
    return Plan(raise_above, desired, tuple(pushes))


def _generation(place: Place, digest: str, status: GatewayStatus | None) -> int:
    seen = status.generation if status else place.known.generation or 0
    if place.generation is None:
        return seen + 1
    if place.given_digest != digest:
        return max(place.generation, seen) + 1
    is_split = status is not None and seen == place.generation and status.digest != digest
    return seen + 1 if seen > place.generation or is_split else place.generation


def _needs_push(place: Place, status: GatewayStatus, wanted: Desired) -> bool:
    if (status.epoch, status.generation, status.digest) == (wanted.epoch, wanted.generation, wanted.digest):
        return status.from_disk  # a repeat confirms what it loaded and changes nothing
    was_refused = place.known.rejected_generation == wanted.generation
    return not (was_refused and place.known.boot_id == status.boot_id)


async def tick(deps: Deps) -> str:
    """Make one pass and return the line to log: 'revision 42: 2/3 gateways converged'.

    Raises Unavailable if the database cannot be reached; gateways keep what they have.
    """
    epoch = deps.leadership.current(deps.clock)
    if epoch is None:
        return "standing by"
    places = await asyncio.to_thread(reconcile_store.load, deps, deps.clock.now())
    if not places:
        return "no gateways are registered"
    answers = await _ask(deps, places, epoch)
    decided = plan(places, answers, epoch)
    try:
        epoch = await asyncio.to_thread(
            reconcile_store.store_generations, deps, epoch, decided.raise_above, decided.desired, places
        )
        _adopt(deps, epoch, decided)
        results = await _push(deps, places, answers, decided)
        known, acks = _fold(deps, places, answers, results, decided)
        told = reconcile_store.news(places, known) | {ack.gateway: known[ack.gateway] for ack in acks}
        if told:
            await asyncio.to_thread(reconcile_store.record, deps, epoch, told, acks)
    except LeaseLost as exc:
        deps.leadership.step_down()
        log.warning("stepped down", extra={"epoch": epoch, "reason": exc.message})
        return f"stepped down: {exc.message}"
    return summary(places, known)


def summary(places: Iterable[Place], known: Mapping[str, Known]) -> str:
    """Return one line: revisions on their way, and how many gateways are in each condition."""
    revisions = sorted({place.target.assignment.revision for place in places if place.target is not None})
    counts = Counter(state.condition for state in known.values())
    others = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()) if name != "converged")
    numbers = " and ".join(str(number) for number in revisions) or "none"
    line = f"revision {numbers}: {counts['converged']}/{len(known)} gateways converged"
    return f"{line}, {others}" if others else line


def _adopt(deps: Deps, epoch: int, decided: Plan) -> None:
    if decided.raise_above is not None:
        deps.leadership.epoch = epoch
        log.warning(
            "epoch raised over a gateway's", extra={"epoch": epoch, "observed_epoch": decided.raise_above}
        )


async def _ask(deps: Deps, places: Sequence[Place], epoch: int) -> dict[str, Answer]:
    """Read the status of every gateway whose turn it is, side by side."""
    due = reconcile_turns.due(places, epoch, deps.clock.now())
    answers = await asyncio.gather(*(_ask_one(deps, place, epoch) for place in due))
    return {place.name: answer for place, answer in zip(due, answers, strict=True)}


async def _ask_one(deps: Deps, place: Place, epoch: int) -> Answer:
    try:
        said = await gateways.status(
            deps.http(), place.name, place.url, token=deps.admin_token, deadline_s=deps.call_deadline_s
        )
    except FleetError as exc:
        return exc
    if said.epoch > max(epoch, HIGHEST_OVERTAKEN):  # following it would spend the epochs of all gateways
        return Unavailable(
            f"it holds epoch {said.epoch}, which nobody can overtake: empty its last-good file, restart it"
        )
    return said


async def _push(
    deps: Deps, places: Sequence[Place], answers: Mapping[str, Answer], decided: Plan
) -> dict[str, Answer]:
    """Send in waves: first where it takes no quota that another still holds, then what that freed.

    What has to wait for a gateway that did not confirm is left for a later pass.
    """
    if not decided.pushes:
        return {}
    sendable = {place.name: (place.url, place.target) for place in places if place.target is not None}
    targets = {name: target.assignment.shares for name, (_url, target) in sendable.items()}
    held = {place.name: _held(deps, place, answers.get(place.name)) for place in places}
    results: dict[str, Answer] = {}
    left = set(decided.pushes)
    while left:
        now = sorted(left - assignments.must_wait(targets, held))
        if not now and assignments.must_give_up(targets, held) <= left:
            now = sorted(left)  # they wait for each other only: units trade places
        if not now:
            log.info("pushes wait for shares held elsewhere", extra={"gateways": ", ".join(sorted(left))})
            break
        left -= set(now)
        sent = await asyncio.gather(
            *(_push_one(deps, *sendable[name], decided.desired[name]) for name in now)
        )
        for name, result in zip(now, sent, strict=True):
            results[name] = result
            if isinstance(result, GatewayStatus):
                held[name] = result.shares
            elif _is_unknown(result):
                held[name] = assignments.may_hold(held[name], targets[name])
    return results


def _held(deps: Deps, place: Place, answer: Answer | None) -> Mapping[str, TenantShare]:
    """Return the shares a gateway may be using: as it says now, or as it said before contact was lost."""
    if isinstance(answer, GatewayStatus):
        return _claimed(place, answer)
    lost_at: datetime | None = place.known.contact_lost_at
    is_given_up = lost_at is not None and deps.clock.now() - lost_at > timedelta(seconds=deps.hold_s)
    return {} if is_given_up else _shares_of(place.known)


def _claimed(place: Place, status: GatewayStatus) -> Mapping[str, TenantShare]:
    """Return the most a gateway that answers may come to hold before it confirms what is sent now.

    A push that was given up may still be on the wire; it is taken unless something newer came before.
    """
    if status.generation >= (place.generation or 0):
        return status.shares
    return assignments.may_hold(status.shares, _shares_of(place.known))


def _shares_of(known: Known) -> Mapping[str, TenantShare]:
    """Return the shares a gateway held at most when it was last heard or pushed to."""
    if known.status is None:
        return {}
    try:
        return _SHARES.validate_python(known.status.get("shares", {}))
    except ValidationError:  # stored by another release
        return {}


def _is_unknown(result: Answer) -> bool:
    """Say whether a push may or may not have been taken: no answer came, or one that says neither."""
    return not isinstance(result, GatewayStatus | InvalidPolicy | StaleAssignment)


async def _push_one(deps: Deps, url: str, target: Target, wanted: Desired) -> Answer:
    name = target.assignment.gateway
    body = target.body(epoch=wanted.epoch, generation=wanted.generation)
    try:
        return await gateways.push(
            deps.http(), name, url, body, token=deps.admin_token, deadline_s=deps.call_deadline_s
        )
    except StaleAssignment as exc:  # somebody newer was there: the lease, asked next, says whether we lead
        log.warning(
            "push refused as stale",
            extra={"gateway": name, "epoch": wanted.epoch, "generation": wanted.generation},
        )
        return exc
    except FleetError as exc:
        return exc


def _fold(
    deps: Deps,
    places: Sequence[Place],
    answers: Mapping[str, Answer],
    results: Mapping[str, Answer],
    decided: Plan,
) -> tuple[dict[str, Known], list[Ack]]:
    """Turn answers into what is known of each gateway and what to add to the history."""
    now = deps.clock.now()
    known: dict[str, Known] = {}
    acks: list[Ack] = []
    for place in places:
        wanted = decided.desired.get(place.name)
        before = place.known
        if place.name not in answers and reconcile_turns.is_settled(place, wanted.epoch if wanted else 0):
            known[place.name] = before  # it was not its turn, and nothing else is wanted of it
            continue
        if wanted is not None and wanted.generation != place.generation:
            before = replace(before, acked_at=None)  # it confirmed something that is desired no more
        looked = _look(deps, before, answers.get(place.name), place, now)
        drift = _drift(place, looked)
        looked, refusal = _outcome(deps, looked, results.get(place.name), wanted, place, now)
        state = settled(looked, wanted, refusal, now)
        if state.condition == "behind" and place.name in decided.pushes and place.name not in results:
            state = replace(state, message="waits for shares that a gateway out of reach may still use")
        known[place.name] = state
        ack = _ack(place, state, wanted, refusal, drift)
        if ack is not None:
            acks.append(ack)
    return known, acks


def _look(deps: Deps, before: Known, answer: Answer | None, place: Place, now: datetime) -> Known:
    if answer is None:  # not due yet
        return before
    if isinstance(answer, GatewayStatus):
        looked, claimed = after_answer(before, answer, now), _claimed(place, answer)
        return looked if claimed is answer.shares else after_lost_push(looked, claimed)
    return _silence(deps, before, answer, place, now)


def _outcome(
    deps: Deps, looked: Known, result: Answer | None, wanted: Desired | None, place: Place, now: datetime
) -> tuple[Known, Refusal | None]:
    """Apply the result of a push; return the refusal that stands against what is desired, if any."""
    if isinstance(result, GatewayStatus):
        return after_answer(looked, result, now), None
    if isinstance(result, InvalidPolicy) and wanted is not None:
        return looked, Refusal(wanted.generation, refusal_words(result, looked.status), result.field)
    if result is not None and _is_unknown(result):
        if place.target is not None:
            most = assignments.may_hold(_shares_of(looked), place.target.assignment.shares)
            looked = after_lost_push(looked, most)
        return _silence(deps, looked, result, place, now), None
    if place.refusal is not None:
        return looked, place.refusal
    stands = wanted is not None and looked.rejected_generation == wanted.generation
    if stands and wanted is not None and not holds(looked, wanted):
        return looked, Refusal(wanted.generation, looked.rejected_message or "", looked.rejected_pointer)
    return looked, None


def _silence(deps: Deps, known: Known, error: FleetError, place: Place, now: datetime) -> Known:
    if known.failures == 0:
        log.warning("gateway lost", extra={"gateway": place.name, "reason": error.message})
    return after_silence(known, error.message, now, cap_s=deps.backoff_cap_s, jitter=deps.rng.random())


def _drift(place: Place, looked: Known) -> str | None:
    """Return what a gateway was found to hold instead of what it had confirmed; None if nothing."""
    if place.generation is None or place.known.acked_at is None or looked.contact_lost_at is not None:
        return None
    if (looked.generation, looked.digest) == (place.generation, place.given_digest):
        return None
    found = (
        f"found generation {looked.generation} (revision {looked.revision}) instead of {place.generation}"
    )
    log.warning("gateway drifted", extra={"gateway": place.name, "found": found})
    return found


def _ack(
    place: Place, state: Known, wanted: Desired | None, refusal: Refusal | None, drift: str | None
) -> Ack | None:
    if refusal is not None and refusal.message != place.known.rejected_message:
        about = wanted or Desired(place.refused_revision or 0, 0, place.generation or 0, "")
        return Ack(place.name, about, accepted=False, message=refusal.message)
    if refusal is not None and wanted is not None and refusal.generation != place.known.rejected_generation:
        return Ack(place.name, wanted, accepted=False, message=refusal.message)
    if wanted is not None and state.acked_at is not None and state.acked_at != place.known.acked_at:
        return Ack(place.name, wanted, accepted=True, message=f"healed: {drift}" if drift else "")
    return None
