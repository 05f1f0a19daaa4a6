"""Random histories of faults and edits; what must hold at every step, and where they must end."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from control import audit, lease, reconcile, rollout
from control.commands_policy import rollback
from control.deps import Finding, Verdict
from control.tables import AssignmentRow, AuditRow, GatewayObservedRow, PolicyRevisionRow
from fleet.clock import ManualClock
from tests.integration.test_reconcile import HEALTHY, OPERATOR, Fleet, document, fleet_of, passes
from tests.oracles import history as h
from tests.oracles.invariants import judge
from tests.postgres_server import FreshDatabase
from tests.small_gateway import SmallGateway

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

EVENTS = 40
FINDINGS = [HEALTHY, HEALTHY, Finding(Verdict.NO_DATA, "none"), Finding(Verdict.BREACHED, "slow")]


class History:
    """One run: two controllers, three gateways, and a random stream of events."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.rng = random.Random(seed)
        self.controllers = [fleet.controller("a"), fleet.controller("b")]
        self.head = 1
        self.told: list[str] = []
        self.seen = h.History(f"seed {seed}")
        for place in fleet.places.values():
            place.seen = self.seen

    def act(self) -> None:
        """Let one thing happen."""
        rng, place = self.rng, self.rng.choice(list(self.fleet.places.values()))
        event = rng.choice(
            [
                "publish",
                "rollback",
                "restart",
                "forget",
                "by_hand",
                "deaf",
                "hears",
                "lost",
                "takeover",
                "samples",
            ]
        )
        self.told.append(f"{event} {place.name}")
        match event:
            case "publish":
                quota = 100_000 + self.head  # always a change
                strategy = rng.choice(["staged", "all_at_once"])
                self.head = self.fleet.publish(
                    self.head, document(quota), strategy=strategy, bake_s=rng.choice([0.0, 3.0])
                )
            case "rollback" if self.head > 1:
                made = self.fleet.do(rollback, to=self.head - 1, author=OPERATOR, note="back")
                self.head = made.number
            case "restart":
                place.restart(forgets=False)
            case "forget":
                place.restart(forgets=True)
                place.accepted.clear()
            case "by_hand" if place.held is not None:
                by_hand = place.held.model_copy(
                    update={"generation": place.held.generation + rng.randrange(4), "kv_share_ratio": 0.77}
                )
                place.replace_folder(by_hand)
                place.accepted[:] = [(by_hand.epoch, by_hand.generation)]
            case "deaf":
                place.is_deaf = True
            case "hears":
                place.is_deaf = False
            case "lost":
                place.loses_answers = 2
            case "takeover":
                self.fleet.force("UPDATE lease SET expires_at = clock_timestamp()")
                self.controllers.reverse()
            case "samples":
                self.fleet.finding = rng.choice(FINDINGS)
            case _:
                pass

    async def tick(self) -> None:
        """Let both controllers do their steps, the rightful one first or last."""
        self.fleet.clock.advance(self.rng.choice([0.5, 1.0, 5.0]))
        steps = [(step, deps) for deps in self.controllers for step in (reconcile.tick, rollout.tick)]
        await lease.tick(self.controllers[0])
        for step, deps in steps:
            await step(deps)
            self.check()
            if step is reconcile.tick and deps.leadership.current(self.fleet.clock) is not None:
                self.check_honesty()

    def check(self) -> None:
        """What must hold at any moment."""
        for place in self.fleet.places.values():
            self.check_order(place)
        rollout = self.fleet.rollout()
        if rollout.state in ("first", "baking", "paused"):
            running = {
                name
                for name, place in self.fleet.places.items()
                if place.held is not None and place.held.revision == rollout.revision
            }
            assert len(running) <= 2, self.told  # the first, and one that was lost while it was the first

    def check_honesty(self) -> None:
        """What is said right after a leader looked: converged gateways hold what is wanted, confirmed."""
        with Session(self.fleet.engine) as session:
            rows = session.scalars(select(AssignmentRow))
            wanted = {row.gateway: row.digest for row in rows}
            shown = {row.gateway: row.digest for row in session.scalars(select(GatewayObservedRow))}
        for name, state in self.fleet.states().items():
            is_applied = state.condition == "converged"
            has_age = state.age_s is not None
            self.seen.add(h.Told(name, is_applied, shown.get(name), state.boot_id, has_age))
            if state.condition == "converged":
                assert self.fleet.places[name].status().digest == wanted[name], (name, self.told)
                assert not self.fleet.places[name].is_deaf, (name, self.told)
                assert state.acked_at is not None

    def note_pass(self) -> None:
        with Session(self.fleet.engine) as session:
            desired = {row.gateway: row.digest for row in session.scalars(select(AssignmentRow))}
        running = {name: place.running().digest for name, place in self.fleet.places.items()}
        self.seen.add(h.Passed(dict(desired), running))

    def check_order(self, place: SmallGateway) -> None:
        """What a gateway took never goes back, within what it remembers."""
        for earlier, later in itertools.pairwise(place.accepted):
            assert later >= earlier, (place.name, place.accepted, self.told)


def recorded(session: Session) -> list[object]:
    """Return each revision beside its line in the record, and whose edit it was."""
    lines = Counter(
        row.subject
        for row in session.scalars(select(AuditRow))
        if row.action in (audit.PUBLISHED, "policy.rollback")
    )
    found: list[object] = []
    for row in session.scalars(select(PolicyRevisionRow).order_by(PolicyRevisionRow.number)):
        subject = f"revision {row.number}"
        found.append(h.Recorded(subject, is_changed=True, is_recorded=lines.pop(subject, 0) == 1))
        if row.parent is not None:
            found.append(h.Published(row.parent, row.number, row.digest))
    found += [h.Recorded(subject, is_changed=False, is_recorded=True) for subject in lines]
    return found


@pytest.mark.parametrize("seed", range(4))
def test_every_history_ends_converged_and_never_goes_back(
    database: FreshDatabase, clock: ManualClock, seed: int
) -> None:
    async def run() -> None:
        async with fleet_of(database, clock, "gw-1", "gw-2", "gw-3") as fleet:
            history = History(fleet, seed)
            for controller in history.controllers:
                object.__setattr__(controller, "call_deadline_s", 0.3)
            await history.tick()
            for _ in range(EVENTS):
                history.act()
                await history.tick()
            await end_faults(fleet, history)
            held = [place.held for place in fleet.places.values()]
            assert all(one is not None for one in held), history.told
            assert set(fleet.conditions().values()) == {"converged"}, history.told
            assert fleet.rollout().state == "live"
            assert {one.revision for one in held if one is not None} == {history.head + 1}
            assert sum(fleet.held("tokens_per_minute")) == 999_999
            assert {one.kv_share_ratio for one in held if one is not None} == {1 / 3}
            with Session(fleet.engine) as session:
                assert audit.verify(session) is None
                for fact in recorded(session):
                    history.seen.add(fact)
            judge(history.seen)

    async def end_faults(fleet: Fleet, history: History) -> None:
        leader = history.controllers[0]
        for place in fleet.places.values():
            place.is_deaf = False
            place.loses_answers = 0
        fleet.finding = HEALTHY
        await lease.tick(leader)
        head = fleet.rollout().revision
        fleet.publish(head, document(999_999), strategy="all_at_once")
        history.seen.add(h.Calm())
        for _ in range(3):  # past the longest back-off: three passes must do
            await passes(fleet, leader, 1, step_s=16)
            history.note_pass()
        await passes(fleet, leader, 1)
        history.note_pass()

    asyncio.run(run())
