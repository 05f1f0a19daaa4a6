"""I1 to I25: what must hold of every history of a control plane and its gateways.

One function an invariant; each takes a history (`tests.oracles.history`) and fails with what broke it. A
history without the facts an oracle is about passes it; `docs/proofs.md` says where each is asked.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable
from typing import Any

from tests.oracles import history as h
from tests.oracles.history import History

Oracle = Callable[[History], None]


def i01_monotone_revision(seen: History) -> None:
    """At each gateway (epoch, generation) never goes back while its file stands."""
    highest: dict[str, tuple[int, int]] = {}
    for fact in seen.facts:
        if type(fact) is h.Booted:
            if fact.kept.digest is None:
                highest.pop(fact.gateway, None)
            now = fact.running
        elif type(fact) is h.Arrived:
            now = fact.after
        elif type(fact) is h.Heard and fact.running is not None:
            now = fact.running
        else:
            continue
        number = (now.epoch, now.generation)
        assert number >= highest.get(fact.gateway, (0, 0)), (seen.name, fact.gateway, number, highest)
        highest[fact.gateway] = number


def i02_immutable_revision(seen: History) -> None:
    """Under one (epoch, generation) a gateway holds one content for ever, while its file stands."""
    content: dict[tuple[str, int, int], str] = {}
    for fact in seen.facts:
        if type(fact) is h.Booted and fact.kept.digest is None:
            content = {key: digest for key, digest in content.items() if key[0] != fact.gateway}
        now = fact.after if type(fact) is h.Arrived else fact.running if type(fact) is h.Heard else None
        if isinstance(fact, h.Arrived | h.Heard) and now is not None and now.digest is not None:
            key = (fact.gateway, now.epoch, now.generation)
            assert content.setdefault(key, now.digest) == now.digest, (seen.name, key)


def i03_fencing(seen: History) -> None:
    """Every committed write was made under the epoch that led at that moment."""
    for fact in seen.of(h.Wrote):
        assert fact.epoch == fact.leading_epoch, (seen.name, fact)


def i04_no_split_brain_push(seen: History) -> None:
    """No push of an older epoch is taken after one of a newer, whoever sent them."""
    newest: dict[str, int] = {}
    for fact in seen.facts:
        if type(fact) is h.Booted and fact.kept.digest is None:
            newest.pop(fact.gateway, None)
        elif type(fact) is h.Arrived and fact.answer == "taken":
            assert fact.epoch >= newest.get(fact.gateway, 0), (seen.name, fact)
            newest[fact.gateway] = fact.epoch


def i05_last_good(seen: History) -> None:
    """What is refused changes nothing, and the refusal is recorded with its reason."""
    for fact in seen.of(h.Arrived):
        if fact.answer in ("invalid", "stale"):
            assert fact.after == fact.before, (seen.name, fact)
            assert fact.has_reason, (seen.name, fact)


def i06_no_torn_policy(seen: History) -> None:
    """A request is reserved, settled and refunded by the rules of exactly one revision."""
    for fact in seen.of(h.Asked):
        if fact.is_admitted:
            assert len(fact.rules) == 1, (seen.name, fact)


def i07_idempotent_push(seen: History) -> None:
    """Messages in any order and number leave a gateway at the newest of them, as once in order would."""
    expected: dict[str, tuple[tuple[int, int], str]] = {}
    for fact in seen.facts:
        if type(fact) is h.Booted:
            if fact.kept.digest is None:
                expected.pop(fact.gateway, None)
            else:
                number = (fact.kept.epoch, fact.kept.generation)
                expected[fact.gateway] = (number, fact.kept.digest)
        elif type(fact) is h.Arrived and fact.digest is not None and fact.answer != "invalid":
            number = (fact.epoch, fact.generation)
            held = expected.get(fact.gateway)
            if held is None or number > held[0]:
                expected[fact.gateway] = (number, fact.digest)
            now = fact.after
            assert ((now.epoch, now.generation), now.digest) == expected[fact.gateway], (seen.name, fact)


def i08_push_mints_no_capacity(seen: History) -> None:
    """Around a push no bucket rises, and leases and places in the queue stay as they were."""
    for fact in seen.of(h.Levels):
        if fact.cause == "push":
            for tenant, tokens in fact.tokens_after.items():
                assert tokens <= fact.tokens_before.get(tenant, tokens), (seen.name, fact)
            assert fact.held_after == fact.held_before, (seen.name, fact)


def i09_fail_static(seen: History) -> None:
    """Without a control plane a gateway decides as its twin that has one and sees no edits."""
    for alone, twin in _twins(seen):
        assert alone.decisions == twin.decisions, (seen.name, alone.gateway)


def i10_boot_gate(seen: History) -> None:
    """Nothing is admitted before a verified policy is in force, and none comes from nowhere."""
    verified: dict[str, set[str]] = {}
    for fact in seen.facts:
        if type(fact) is h.Booted:
            sound = {fact.kept.digest} - {None}
            verified[fact.gateway] = {str(digest) for digest in sound}
            assert fact.running.digest in (None, fact.kept.digest), (seen.name, fact)
        elif type(fact) is h.Arrived and fact.answer in ("taken", "same"):
            verified.setdefault(fact.gateway, set()).add(str(fact.digest))
        elif type(fact) is h.Asked and fact.is_admitted:
            assert fact.running.digest in verified.get(fact.gateway, set()), (seen.name, fact)


def i11_convergence(seen: History) -> None:
    """Three passes after the last fault every gateway runs what it should, and stays there."""
    after_calm = itertools.dropwhile(lambda fact: type(fact) is not h.Calm, seen.facts)
    passes = [fact for fact in after_calm if type(fact) is h.Passed]
    for fact in passes[3:]:
        assert fact.running == fact.desired, (seen.name, fact)


def i12_level_triggered(seen: History, without_losses: History) -> None:
    """Losing any of the messages costs time only: the end is that of the same history without losses."""
    ends = [list(one.of(h.Passed))[-1] for one in (seen, without_losses)]
    assert ends[0].running == ends[1].running, (seen.name, ends)


def i13_honest_status(seen: History) -> None:
    """ "Applied" is shown only on the gateway's own word for that content, newer than the last silence."""
    last: dict[str, h.Running | None] = {}
    for fact in seen.facts:
        if type(fact) is h.Heard:
            last[fact.gateway] = fact.running
        elif type(fact) is h.Told and fact.is_applied:
            said = last.get(fact.gateway)
            assert said is not None, (seen.name, fact)
            assert (said.digest, said.boot_id) == (fact.digest, fact.boot_id), (seen.name, fact, said)
            assert fact.has_age, (seen.name, fact)


def i14_audit_atomicity(seen: History) -> None:
    """A change and its line in the record are both there, or neither."""
    for fact in seen.of(h.Recorded):
        assert fact.is_changed == fact.is_recorded, (seen.name, fact)


def i15_no_lost_edit(seen: History) -> None:
    """Of all edits made from one revision exactly one wins; the others are told what changed."""
    numbers: dict[int, list[int]] = {}
    for fact in seen.of(h.Published):
        won = numbers.setdefault(fact.parent, [])
        if fact.number is not None:
            won.append(fact.number)
        else:
            assert fact.is_explained, (seen.name, fact)
    for parent, won in numbers.items():
        assert len(won) <= 1, (seen.name, parent, won)


def i16_one_action_rollback(seen: History) -> None:
    """One call from any state ends at the last good content everywhere within reach, within 5 s."""
    for fact in seen.of(h.RolledBack):
        assert set(fact.running.values()) == {fact.wanted}, (seen.name, fact)
        assert fact.seconds <= 5.0, (seen.name, fact)


def i17_blast_radius(seen: History) -> None:
    """An unbaked revision is meant for one stage only, runs nowhere else, and silence promotes nothing."""
    for fact in seen.facts:
        if type(fact) is h.Spread:
            assert fact.given <= max(1, fact.gateways // 4), (seen.name, fact)
            assert fact.runs <= fact.chosen, (seen.name, fact)
        elif type(fact) is h.Moved and fact.after == "all":
            assert fact.finding == "healthy", (seen.name, fact)


def i18_quota_conservation(seen: History) -> None:
    """Parts in use, by their giver's clock, never sum to more than the quota; a split to all of it."""
    for fact in seen.of(h.Shared):
        assert sum(fact.parts) <= fact.quota, (seen.name, fact)
        if fact.is_split:
            assert sum(fact.parts) == fact.quota, (seen.name, fact)


def i19_clock_tolerance(seen: History) -> None:
    """A jump of the wall clock moves no lease, no queue timeout and no bucket."""
    for fact in seen.of(h.Levels):
        if fact.cause == "wall clock":
            assert fact.tokens_after == fact.tokens_before, (seen.name, fact)
            assert fact.held_after == fact.held_before, (seen.name, fact)


def i20_bounded_policy(seen: History) -> None:
    """Each bound holds alike everywhere: at it accepted, one above it refused."""
    for fact in seen.of(h.Bounded):
        assert fact.is_accepted != fact.is_above, (seen.name, fact)


def i21_schema_safety(seen: History) -> None:
    """A field or schema that is not known is refused, and nothing of its document takes effect."""
    for fact in seen.of(h.Arrived):
        if fact.is_foreign:
            assert fact.answer == "invalid", (seen.name, fact)
            assert fact.after == fact.before, (seen.name, fact)


def i22_staleness_is_a_state(seen: History) -> None:
    """Nothing moves by itself on samples older than three scrape periods, or on none."""
    for fact in seen.of(h.Moved):
        if fact.finding in ("healthy", "breached"):
            assert fact.sample_age_s <= 3 * fact.scrape_s, (seen.name, fact)
        else:
            assert fact.after not in ("all", "live") or fact.before == "all", (seen.name, fact)


def i23_reservation_closure(seen: History) -> None:
    """Every reservation ends exactly once, and nothing is left when nothing runs."""
    begun = [fact.request_id for fact in seen.of(h.Reserved)]
    ended = [fact.request_id for fact in seen.of(h.Settled)]
    assert len(ended) == len(set(ended)), (seen.name, "a reservation ended twice")
    assert set(ended) == set(begun), (seen.name, set(begun) ^ set(ended))
    for fact in seen.of(h.Left):
        assert (fact.in_flight_requests, fact.in_flight_tokens) == (0, 0), (seen.name, fact)


def i24_gentle_recovery(seen: History) -> None:
    """After the control plane returns, no second has more than twice the calls of a steady one."""
    calls = sorted(fact.at_s for fact in seen.of(h.Called))
    for back in seen.of(h.Returned):
        after = [at_s for at_s in calls if at_s >= back.at_s]
        for number, at_s in enumerate(after):
            in_second = sum(1 for one in after[number:] if one < at_s + 1.0)
            assert in_second <= 2 * back.steady_calls_per_s, (seen.name, back, in_second)


def i25_separation(seen: History) -> None:
    """Losing dashboard, database or controller never raises the share of errors of a gateway."""
    for alone, twin in _twins(seen):
        assert alone.errors * twin.requests <= twin.errors * alone.requests, (seen.name, alone, twin)


def _twins(seen: History) -> list[tuple[h.Served, h.Served]]:
    served = list(seen.of(h.Served))
    with_all = {fact.gateway: fact for fact in served if not fact.is_alone}
    return [(fact, with_all[fact.gateway]) for fact in served if fact.is_alone]


def oracles() -> dict[str, Oracle]:
    """Return every invariant of one history, by name."""
    here: Any = sys.modules[__name__]
    found = {name: one for name, one in vars(here).items() if name[:1] == "i" and name[1:3].isdigit()}
    return {name: one for name, one in found.items() if len(inspect.signature(one).parameters) == 1}


ORACLES = oracles()


def judge(seen: History) -> None:
    """Ask every oracle."""
    for oracle in ORACLES.values():
        oracle(seen)


def broken(seen: History) -> set[str]:
    """Return the names of the oracles a history breaks."""
    found: set[str] = set()
    for name, oracle in ORACLES.items():
        try:
            oracle(seen)
        except AssertionError:
            found.add(name)
    return found
