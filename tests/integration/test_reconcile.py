"""Gateways come to run what they should, whatever happened to them, and only a leader may say so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from control import gateways, lease, queries_policy, reconcile, reconcile_store, rollout
from control.cli_status import as_text
from control.commands_fleet import add_node, add_pool
from control.commands_policy import ensure_first_revision, publish, rollback
from control.commands_rollout import abort, pause, promote
from control.deps import Bake, Deps, Finding, Leadership, Verdict
from control.gateway_registry import add_gateway, remove_gateway
from control.queries_policy import GatewayState
from control.roles import Actor, Role
from control.status_report import status_report
from control.tables import AckRow
from fleet.clock import Clock, ManualClock
from fleet.errors import InvalidInput, StaleAssignment, Unavailable
from fleet.messages import MAX_COUNTER
from fleet.policy import default_policy
from tests.oracles import history as h
from tests.oracles.invariants import i16_one_action_rollback
from tests.postgres_server import FreshDatabase
from tests.small_gateway import TOKEN, SmallGateway

pytestmark = pytest.mark.postgres

OPERATOR = Actor("ada", Role.OPERATOR, "cli")
HEALTHY = Finding(Verdict.HEALTHY, "200 of 200 requests were good")


def document(tokens_per_minute: int = 601, requests: int = 3) -> dict[str, Any]:
    made = default_policy().as_document()
    made["tenants"] = {
        "acme": {
            "tier": "interactive",
            "allowed_tiers": ["interactive"],
            "tokens_per_minute": tokens_per_minute,
            "burst_tokens": 1_000,
            "max_in_flight_tokens": 10_000,
            "max_concurrent_requests": requests,
        }
    }
    return made


class Fleet:
    """A database, small gateways and controllers, driven by hand."""

    def __init__(self, engine: Engine, clock: ManualClock, http: aiohttp.ClientSession) -> None:
        self.engine = engine
        self.clock = clock
        self.http = http
        self.places: dict[str, SmallGateway] = {}
        self.finding = HEALTHY

    def controller(self, owner: str, clock: Clock | None = None) -> Deps:
        return Deps(
            engine=self.engine,
            clock=clock or self.clock,
            leadership=Leadership(owner),
            http=lambda: self.http,
            admin_token=TOKEN,
            verdict=self._verdict,
            rng=random.Random(1),
            call_deadline_s=4.0,  # less than a lease: a gateway that hangs is given up in time
        )

    def _verdict(self, _session: Session, _bake: Bake) -> Finding:
        return self.finding

    def do(self, command: Callable[..., Any], **arguments: Any) -> Any:
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            return command(session, now=self.clock.now(), **arguments)

    def publish(self, parent: int, made: dict[str, Any], **more: Any) -> int:
        return self.do(publish, document=made, parent=parent, author=OPERATOR, note="why", **more).number

    def states(self) -> dict[str, GatewayState]:
        with Session(self.engine) as session:
            return {s.name: s for s in queries_policy.gateway_states(session, self.clock.now())}

    def conditions(self) -> dict[str, str]:
        return {name: state.condition for name, state in self.states().items()}

    def rollout(self) -> queries_policy.Rollout:
        with Session(self.engine) as session:
            found = queries_policy.current_rollout(session)
            assert found is not None
            return found

    def force(self, statement: str, **values: Any) -> None:
        """Do something behind the commands' back."""
        with self.engine.begin() as connection:
            connection.execute(text(statement), values)

    def held(self, field: str) -> list[int]:
        return [getattr(place.held.shares["acme"], field) for place in self.places.values() if place.held]


async def lead(deps: Deps) -> int:
    await lease.tick(deps)
    epoch = deps.leadership.current(deps.clock)
    assert epoch is not None
    return epoch


async def passes(fleet: Fleet, deps: Deps, count: int, *, step_s: float = 1.0) -> None:
    for _ in range(count):
        fleet.clock.advance(step_s)
        await lease.tick(deps)
        await reconcile.tick(deps)
        await rollout.tick(deps)


@asynccontextmanager
async def fleet_of(database: FreshDatabase, clock: ManualClock, *names: str) -> AsyncGenerator[Fleet]:
    """A fleet whose gateways are registered and run revision 1."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(gateways.new_session())
        fleet = Fleet(database.engine, clock, http)
        fleet.do(ensure_first_revision, author=OPERATOR)
        for name in names:
            place = await stack.enter_async_context(SmallGateway(name).serving())
            fleet.places[name] = place
            fleet.do(add_gateway, name=name, url=place.url, actor=OPERATOR)
        yield fleet


Story = Callable[[Fleet, Deps], Awaitable[None]]


def play(database: FreshDatabase, clock: ManualClock, story: Story, *names: str) -> None:
    """Run a story on a fleet whose controller leads and has made everything live."""

    async def run() -> None:
        async with fleet_of(database, clock, *(names or ("gw-1", "gw-2"))) as fleet:
            deps = fleet.controller("first")
            await passes(fleet, deps, 3)
            assert set(fleet.conditions().values()) == {"converged"}
            assert fleet.rollout().state == "live"
            await story(fleet, deps)

    asyncio.run(run())


def test_a_published_policy_is_acknowledged_by_every_gateway(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.publish(1, document(601, 3), bake_s=2.0)
        assert fleet.conditions() == {"gw-1": "converged", "gw-2": "converged"}  # nobody should change yet
        await passes(fleet, deps, 8)
        assert fleet.rollout().state == "live"
        for state in fleet.states().values():
            assert (state.condition, state.revision_observed, state.revision_desired) == ("converged", 2, 2)
            assert state.acked_at is not None
        assert sum(fleet.held("tokens_per_minute")) == 601  # 301 + 300: the quota, exactly
        assert sum(fleet.held("max_concurrent_requests")) == 3
        with Session(fleet.engine) as session:
            acked = session.execute(
                select(AckRow.gateway).where(AckRow.revision == 2, AckRow.accepted)
            ).all()
        assert sorted(name for (name,) in acked) == ["gw-1", "gw-2"]

    play(database, clock, story)


def test_the_role_of_a_pool_reaches_the_gateways_and_plain_pools_say_none(
    database: FreshDatabase, clock: ManualClock
) -> None:
    admin = Actor("root", Role.ADMIN, "cli")

    async def story(fleet: Fleet, deps: Deps) -> None:
        for number, (pool, role) in enumerate((("both", None), ("pre", "prefill"), ("dec", "decode"))):
            fleet.do(add_pool, actor=admin, name=pool, models=["m"], role=role)
            url = f"http://10.0.0.{number + 1}:8000"
            fleet.do(add_node, actor=admin, name=f"{pool}-1", url=url, pool=pool)
        with pytest.raises(InvalidInput, match="role 'both' does not exist"):
            fleet.do(add_pool, actor=admin, name="odd", models=["m"], role="both")
        await passes(fleet, deps, 3)
        for place in fleet.places.values():
            assert place.held is not None
            assert {node.name: node.role for node in place.held.nodes} == {
                "both-1": None,
                "pre-1": "prefill",
                "dec-1": "decode",
            }

    play(database, clock, story)


def test_a_second_pass_sends_nothing(database: FreshDatabase, clock: ManualClock) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        before = [list(place.pushes) for place in fleet.places.values()]
        await passes(fleet, deps, 3)
        assert [place.pushes for place in fleet.places.values()] == before

    play(database, clock, story)


def test_a_gateway_that_stays_as_it_is_is_written_every_few_seconds_and_a_change_at_once(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.clock.advance(reconcile_store.CONFIRMED_EVERY_S)
        await passes(fleet, deps, 1, step_s=0.0)
        assert fleet.states()["gw-1"].age_s == 0.0
        await passes(fleet, deps, 2)
        assert fleet.states()["gw-1"].age_s == 2.0  # seen since, and nothing new
        fleet.places["gw-2"].restart(forgets=False)
        await passes(fleet, deps, 1)
        assert fleet.states()["gw-2"].age_s == 0.0
        assert fleet.states()["gw-1"].age_s == 0.0  # three seconds

    play(database, clock, story)


def test_a_lost_answer_is_repeated_and_changes_nothing(database: FreshDatabase, clock: ManualClock) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        place = fleet.places["gw-1"]
        place.loses_answers = 2  # the HTTP client itself repeats once on a kept connection
        fleet.publish(1, document(), strategy="all_at_once")
        fleet.clock.advance(1)
        await lease.tick(deps)
        await reconcile.tick(deps)
        assert fleet.conditions()["gw-1"] == "unreachable"  # applied, but nobody knows
        assert fleet.states()["gw-1"].acked_at is None
        taken = list(place.accepted)
        await passes(fleet, deps, 3)
        assert fleet.conditions()["gw-1"] == "converged"
        assert place.accepted == taken

    play(database, clock, story)


def test_a_gateway_that_restarted_empty_is_healed(database: FreshDatabase, clock: ManualClock) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        place = fleet.places["gw-1"]
        held = place.held
        place.restart(forgets=True)
        await passes(fleet, deps, 1)
        assert place.held == held
        assert fleet.conditions() == {"gw-1": "converged", "gw-2": "converged"}
        with Session(fleet.engine) as session:
            last = session.scalars(select(AckRow).order_by(AckRow.id.desc()).limit(1)).one()
        assert last.message.startswith("healed: found generation 0")

    play(database, clock, story)


@pytest.mark.parametrize("ahead", [0, 1, 40])
def test_a_push_by_hand_is_healed_over(database: FreshDatabase, clock: ManualClock, ahead: int) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        place = fleet.places["gw-1"]
        assert place.held is not None
        by_hand = place.held.model_copy(
            update={"generation": place.held.generation + ahead, "kv_share_ratio": 0.9}
        )
        place.held = by_hand
        await passes(fleet, deps, 1)
        assert place.held.kv_share_ratio == 0.5
        assert place.held.generation > by_hand.generation
        assert fleet.conditions()["gw-1"] == "converged"

    play(database, clock, story)


@pytest.mark.parametrize("short_of_the_last", [0, 1_000_000, 1_000_001])
def test_a_generation_without_room_above_it_is_overtaken_by_an_epoch(
    database: FreshDatabase, clock: ManualClock, short_of_the_last: int
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        place = fleet.places["gw-1"]
        assert place.held is not None
        spent = MAX_COUNTER - short_of_the_last
        place.held = place.held.model_copy(update={"generation": spent, "kv_share_ratio": 0.9})
        await passes(fleet, deps, 2)
        assert place.held.kv_share_ratio == 0.5
        assert fleet.conditions() == {"gw-1": "converged", "gw-2": "converged"}
        fleet.publish(1, document(tokens_per_minute=700))
        for _ in range(3):
            await passes(fleet, deps, 1)
        assert place.held.policy.tenants["acme"].tokens_per_minute == 700  # and later ones find room again

    play(database, clock, story)


def test_an_epoch_nobody_can_overtake_stops_its_own_gateway_only(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        place = fleet.places["gw-1"]
        assert place.held is not None
        epoch = deps.leadership.epoch
        place.held = place.held.model_copy(update={"epoch": MAX_COUNTER})
        await passes(fleet, deps, 2)
        assert fleet.conditions() == {"gw-1": "unreachable", "gw-2": "converged"}
        assert deps.leadership.epoch == epoch
        place.restart(forgets=True)  # its last-good file was emptied, as the message says
        fleet.clock.advance(60)
        assert await lead(deps)
        await passes(fleet, deps, 1)
        assert fleet.conditions() == {"gw-1": "converged", "gw-2": "converged"}

    play(database, clock, story)


def test_an_epoch_above_the_leaders_is_overtaken_by_the_rightful_leader(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        place = fleet.places["gw-1"]
        assert place.held is not None
        place.held = place.held.model_copy(update={"epoch": 77, "kv_share_ratio": 0.9})
        await passes(fleet, deps, 2)
        assert place.held.epoch == 78
        assert place.held.kv_share_ratio == 0.5
        assert deps.leadership.current(fleet.clock) == 78
        assert fleet.conditions() == {"gw-1": "converged", "gw-2": "converged"}

    play(database, clock, story)


def test_a_gateway_out_of_reach_is_not_called_applied_and_others_go_on(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.places["gw-2"].is_deaf = True
        fleet.publish(1, document(), strategy="all_at_once")
        await passes(fleet, deps, 1)
        states = fleet.states()
        assert states["gw-1"].condition == "converged"
        assert (states["gw-2"].condition, states["gw-2"].acked_at) == ("unreachable", None)
        assert "no answer within 4 s" in states["gw-2"].message
        assert fleet.rollout().state == "all"
        assert "missing: gw-2" in fleet.rollout().reason
        fleet.places["gw-2"].is_deaf = False
        await passes(fleet, deps, 2, step_s=15)
        assert fleet.conditions() == {"gw-1": "converged", "gw-2": "converged"}
        await passes(fleet, deps, 1)
        assert fleet.rollout().state == "live"

    play(database, clock, story)


def test_a_gateway_that_refuses_stops_the_rollout_and_keeps_what_it_has(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        place = fleet.places["gw-1"]
        held = place.held
        place.rejects = "/admission/order"
        fleet.publish(1, document())
        fleet.clock.advance(1)
        await lease.tick(deps)
        await rollout.tick(deps)  # chooses gw-1
        await reconcile.tick(deps)
        state = fleet.states()["gw-1"]
        assert (state.condition, state.pointer, state.message) == (
            "rejected",
            "/admission/order",
            "not supported here",
        )
        assert place.held == held
        pushes = len(place.pushes)
        await reconcile.tick(deps)
        assert len(place.pushes) == pushes  # a refused content is not sent again
        await rollout.tick(deps)
        stopped = fleet.rollout()
        assert (stopped.state, stopped.reason) == ("aborted", "gw-1 refused it: not supported here")
        place.rejects = None
        await passes(fleet, deps, 1)
        assert fleet.conditions() == {"gw-1": "converged", "gw-2": "converged"}
        assert place.held is not None
        assert place.held.revision == 1

    play(database, clock, story)


@pytest.mark.parametrize("place", ["gw-1", "gw-2"])
def test_an_older_gateway_that_does_not_know_a_field_is_named_with_its_release_and_the_field(
    database: FreshDatabase, clock: ManualClock, place: str
) -> None:
    """Revision 1 has no such field; whoever goes first, what happened can be read within a minute."""

    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.places[place].lacks = ("policy", "tenants", "acme", "burst_tokens")
        fleet.publish(1, document(), bake_s=2.0)
        began = fleet.clock.now()
        said = "release 0.1.0 does not know /tenants/acme/burst_tokens; it goes on by its last policy"

        def is_said() -> bool:
            reason = fleet.rollout().reason
            return reason.startswith(f"{place} refused it: {said}")

        while not is_said():
            await passes(fleet, deps, 1)
            assert (fleet.clock.now() - began).total_seconds() < 60, fleet.rollout().reason
        stopped = fleet.rollout()
        assert stopped.state == ("aborted" if place == "gw-1" else "all")  # never live
        with Session(fleet.engine) as session:
            report = status_report(session, fleet.clock.now())
        assert any(f"{place} refused it: {said}" in line for line in as_text(report).splitlines())
        assert any(said in problem for problem in report.problems), report.problems
        held = fleet.places[place].held
        assert held is not None
        assert held.revision == 1

    play(database, clock, story)


def test_an_invalid_document_forced_into_the_database_reaches_no_gateway(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        held = [place.held for place in fleet.places.values()]
        fleet.force(
            "INSERT INTO policy_revision (number, parent, digest, document, author, note, created_at) "
            "SELECT 2, 1, 'x', jsonb_set(document, '{tiers,batch,weight}', '20'), 'eve', 'x', :now "
            "FROM policy_revision WHERE number = 1",
            now=fleet.clock.now(),
        )
        fleet.force(
            "INSERT INTO rollout "
            "(revision, base_revision, state, strategy, bake_s, started_at, updated_at) "
            "VALUES (2, 1, 'first', 'staged', 1, :now, :now)",
            now=fleet.clock.now(),
        )
        fleet.clock.advance(1)
        await lease.tick(deps)
        await rollout.tick(deps)
        await reconcile.tick(deps)
        state = fleet.states()["gw-1"]
        assert (state.condition, state.pointer) == ("rejected", "/tiers")
        assert "tier weights sum to 95" in state.message
        await rollout.tick(deps)
        assert fleet.rollout().state == "aborted"
        assert "tier weights sum to 95" in fleet.rollout().reason
        await passes(fleet, deps, 1)
        assert [place.held for place in fleet.places.values()] == held
        assert fleet.conditions() == {"gw-1": "converged", "gw-2": "converged"}

    play(database, clock, story)


def test_only_the_first_gateway_runs_a_revision_until_it_has_baked(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.publish(1, document(), bake_s=10.0)
        await passes(fleet, deps, 9)
        assert fleet.rollout().state == "baking"
        assert [place.held.revision for place in fleet.places.values() if place.held] == [2, 1, 1]
        await passes(fleet, deps, 6)
        assert fleet.rollout().state == "live"
        assert [place.held.revision for place in fleet.places.values() if place.held] == [2, 2, 2]

    play(database, clock, story, "gw-1", "gw-2", "gw-3")


def test_without_samples_a_rollout_pauses_until_an_operator_promotes(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.finding = Finding(Verdict.NO_DATA, "no samples")
        fleet.publish(1, document(), bake_s=2.0)
        await passes(fleet, deps, 10)
        assert fleet.rollout().state == "baking"  # samples may still come
        await passes(fleet, deps, 5, step_s=10)
        assert fleet.rollout().state == "paused"
        assert [place.held.revision for place in fleet.places.values() if place.held] == [2, 1]
        fleet.do(promote, actor=OPERATOR, note="looked at the graphs myself")
        await passes(fleet, deps, 2)
        assert fleet.rollout().state == "live"

    play(database, clock, story)


def test_a_breach_takes_the_revision_back(database: FreshDatabase, clock: ManualClock) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.publish(1, document(), bake_s=60.0)
        await passes(fleet, deps, 4)
        fleet.finding = Finding(Verdict.BREACHED, "80 of 100 requests were good, 95 were promised")
        await passes(fleet, deps, 2)
        assert fleet.rollout().state == "aborted"
        assert [place.held.revision for place in fleet.places.values() if place.held] == [1, 1]

    play(database, clock, story)


@pytest.mark.parametrize("after_passes", [0, 2, 5, 30])
def test_one_rollback_ends_at_the_old_content_from_any_state(
    database: FreshDatabase, clock: ManualClock, after_passes: int
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.publish(1, document(), bake_s=20.0)
        await passes(fleet, deps, after_passes)
        before, began_s = fleet.rollout().state, fleet.clock.monotonic_s()
        fleet.do(rollback, to=1, author=OPERATOR, note="back")
        await passes(fleet, deps, 2)
        assert fleet.rollout().state == "live"
        digests = {
            name: place.held.policy.digest()
            for name, place in fleet.places.items()
            if place.held is not None
        }
        took_s = fleet.clock.monotonic_s() - began_s
        seen = h.History("one call")
        seen.add(h.RolledBack(str(before), default_policy().digest(), digests, took_s))
        i16_one_action_rollback(seen)
        for place in fleet.places.values():
            assert place.held is not None
            assert place.held.policy.as_document() == default_policy().as_document()
            assert place.held.revision == 3

    play(database, clock, story)


@pytest.mark.parametrize("is_paused", [True, False])
def test_abort_takes_every_gateway_back(
    database: FreshDatabase, clock: ManualClock, is_paused: bool
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.publish(1, document(), bake_s=60.0)
        await passes(fleet, deps, 4)
        if is_paused:
            fleet.do(pause, actor=OPERATOR, note="wait")
            await passes(fleet, deps, 1)
        fleet.do(abort, actor=OPERATOR, note="no")
        await passes(fleet, deps, 1)
        assert [place.held.revision for place in fleet.places.values() if place.held] == [1, 1]
        assert fleet.conditions() == {"gw-1": "converged", "gw-2": "converged"}

    play(database, clock, story)


def test_quotas_never_add_up_to_more_while_a_gateway_joins(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.publish(1, document(600, 6), strategy="all_at_once")
        await passes(fleet, deps, 2)
        async with SmallGateway("gw-3").serving() as joining:
            fleet.do(add_gateway, name="gw-3", url=joining.url, actor=OPERATOR)
            fleet.places["gw-3"] = joining
            deaf = fleet.places["gw-2"]
            deaf.is_deaf = True  # it still admits at 300 a minute, and cannot be told otherwise
            await passes(fleet, deps, 2)
            assert sum(fleet.held("tokens_per_minute")) <= 600
            assert joining.held is None
            assert fleet.states()["gw-3"].message.startswith("waits for shares")
            deaf.is_deaf = False
            await passes(fleet, deps, 2, step_s=15)
            assert fleet.held("tokens_per_minute") == [200, 200, 200]
            fleet.do(remove_gateway, name="gw-3", actor=OPERATOR)
            del fleet.places["gw-3"]
            await passes(fleet, deps, 1)
            assert fleet.held("tokens_per_minute") == [300, 300]

    play(database, clock, story)


def test_a_larger_share_whose_answer_was_lost_counts_as_held(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.publish(1, document(600, 6), strategy="all_at_once")
        await passes(fleet, deps, 2)
        assert fleet.held("tokens_per_minute") == [200, 200, 200]
        fleet.do(remove_gateway, name="gw-3", actor=OPERATOR)
        unheard = fleet.places["gw-2"]
        unheard.loses_answers = 1
        await passes(fleet, deps, 1)
        unheard.is_deaf = True
        assert unheard.held is not None
        assert unheard.held.shares["acme"].tokens_per_minute == 300  # which the controller was never told
        async with SmallGateway("gw-4").serving() as joining:
            fleet.do(add_gateway, name="gw-4", url=joining.url, actor=OPERATOR)
            fleet.places = {name: fleet.places[name] for name in ("gw-1", "gw-2")} | {"gw-4": joining}
            await passes(fleet, deps, 2)
            assert sum(fleet.held("tokens_per_minute")) <= 600
            unheard.is_deaf = False
            await passes(fleet, deps, 2, step_s=15)
            assert fleet.held("tokens_per_minute") == [200, 200, 200]

    play(database, clock, story, "gw-1", "gw-2", "gw-3")


def test_a_gateway_gone_for_good_holds_a_newcomer_up_for_a_while_only(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.publish(1, document(600, 6), strategy="all_at_once")
        await passes(fleet, deps, 2)
        fleet.places["gw-2"].is_deaf = True
        async with SmallGateway("gw-3").serving() as joining:
            fleet.do(add_gateway, name="gw-3", url=joining.url, actor=OPERATOR)
            await passes(fleet, deps, 4, step_s=deps.hold_s / 2)
            assert joining.held is not None
            assert joining.held.shares["acme"].tokens_per_minute == 200

    play(database, clock, story)


def test_quotas_of_one_that_trade_places_do_not_block_each_other(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        made = document(1, 1)
        for number in range(8):  # with one unit each, joining moves units in both directions
            made["tenants"][f"tenant-{number}"] = made["tenants"]["acme"]
        fleet.publish(1, made, strategy="all_at_once")
        await passes(fleet, deps, 2)
        async with SmallGateway("gw-0").serving() as joining:
            fleet.do(add_gateway, name="gw-0", url=joining.url, actor=OPERATOR)
            await passes(fleet, deps, 2)
            assert set(fleet.conditions().values()) == {"converged"}

    play(database, clock, story)


def test_the_wrong_gateway_at_an_address_is_not_believed(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.places["gw-1"].name = "gw-9"
        await passes(fleet, deps, 1)
        state = fleet.states()["gw-1"]
        assert state.condition == "unreachable"
        assert "a gateway called gw-9 answers" in state.message

    play(database, clock, story)


def test_conditions_are_not_repeated_when_no_controller_looks(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.clock.advance(queries_policy.SILENT_S + 1)
        state = fleet.states()["gw-1"]
        assert (state.condition, state.acked_at) == ("unknown", None)
        silent_s = queries_policy.SILENT_S + 1
        assert state.age_s is not None
        assert silent_s <= state.age_s <= silent_s + reconcile_store.CONFIRMED_EVERY_S

    play(database, clock, story)


def test_a_leader_that_lost_its_lease_writes_nothing_and_its_push_is_refused(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        old_epoch = deps.leadership.epoch
        assert old_epoch is not None
        fleet.force("UPDATE lease SET expires_at = clock_timestamp()")  # it slept through its lease
        successor = fleet.controller("second")
        assert await lead(successor) == old_epoch + 1
        await reconcile.tick(successor)
        held = fleet.places["gw-1"].held
        assert held is not None
        assert held.epoch == old_epoch + 1  # the new leader taught its epoch at once
        late = held.model_copy(update={"epoch": old_epoch, "generation": held.generation + 5})
        url, body = fleet.places["gw-1"].url, late.model_dump_json(by_alias=True).encode()
        with pytest.raises(StaleAssignment):
            await gateways.push(fleet.http, "gw-1", url, body, token=TOKEN, deadline_s=60.0)
        fleet.publish(1, document(), strategy="all_at_once")
        assert (await reconcile.tick(deps)).startswith("stepped down")
        assert deps.leadership.current(fleet.clock) is None
        assert await reconcile.tick(deps) == "standing by"
        assert fleet.places["gw-1"].held == held
        await reconcile.tick(successor)
        assert [place.held.revision for place in fleet.places.values() if place.held] == [2, 2]

    play(database, clock, story)


def test_a_push_that_is_refused_as_stale_makes_the_sender_step_down(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        # The lease passes to another leader between this one's write and its push.
        successor = fleet.controller("second")

        place = fleet.places["gw-1"]
        take = place.take

        def take_after_takeover(body: bytes) -> None:
            assert place.held is not None
            place.take = take  # type: ignore[method-assign]
            fleet.force("UPDATE lease SET owner = 'second', epoch = epoch + 1")
            place.held = place.held.model_copy(update={"epoch": place.held.epoch + 1})
            take(body)

        place.take = take_after_takeover  # type: ignore[method-assign]
        fleet.publish(1, document(), strategy="all_at_once")
        pushes = len(place.pushes)
        assert (await reconcile.tick(deps)).startswith("stepped down")
        assert len(place.pushes) == pushes + 1  # refused once, not sent again
        assert deps.leadership.current(fleet.clock) is None
        await lead(successor)
        await reconcile.tick(successor)
        assert set(fleet.conditions().values()) == {"converged"}

    play(database, clock, story)


@pytest.mark.parametrize("step", ["store_generations", "record"])
def test_a_database_lost_at_any_step_costs_a_pass_and_nothing_else(
    database: FreshDatabase, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def story(fleet: Fleet, deps: Deps) -> None:
        fleet.publish(1, document(), strategy="all_at_once")
        before = [list(place.accepted) for place in fleet.places.values()]

        def lost(*_: object) -> None:
            raise Unavailable("Postgres cannot be reached")

        with monkeypatch.context() as patch:
            patch.setattr(reconcile_store, step, lost)
            with pytest.raises(Unavailable):
                await reconcile.tick(deps)
        await passes(fleet, deps, 2)
        assert set(fleet.conditions().values()) == {"converged"}
        assert fleet.rollout().state == "live"
        after = [list(place.accepted) for place in fleet.places.values()]
        assert [len(a) - len(b) for a, b in zip(after, before, strict=True)] == [1, 1]  # one push each

    play(database, clock, story)


def test_a_fleet_without_gateways_or_leader_has_nothing_to_do(
    database: FreshDatabase, clock: ManualClock
) -> None:
    async def run() -> None:
        async with gateways.new_session() as http:
            fleet = Fleet(database.engine, clock, http)
            deps = fleet.controller("only")
            assert await reconcile.tick(deps) == "standing by"
            await lead(deps)
            assert await reconcile.tick(deps) == "no gateways are registered"
            assert await rollout.tick(deps) == "no rollout"

    asyncio.run(run())
