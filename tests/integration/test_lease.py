"""One leader at a time, by the database's clock, with an epoch that never repeats."""

from __future__ import annotations

import asyncio
import threading

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from control import lease
from control.deps import Deps, Leadership
from control.gateways import new_session
from control.lease import LeaseLost
from fleet.clock import ManualClock
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

ROLE = "controller"


def take(database: FreshDatabase, owner: str, ttl_s: float = 60.0) -> int | None:
    with Session(database.engine) as session, session.begin():
        held = lease.take(session, role=ROLE, owner=owner, ttl_s=ttl_s)
    return held.epoch if held else None


def expire(database: FreshDatabase) -> None:
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE lease SET expires_at = clock_timestamp() - interval '1 ms'"))


def deps_of(database: FreshDatabase, clock: ManualClock, owner: str) -> Deps:
    return Deps(
        engine=database.engine,
        clock=clock,
        leadership=Leadership(owner),
        http=new_session,
        admin_token="unused-in-these-tests",
    )


def test_a_renewal_keeps_the_epoch_and_another_owner_waits(database: FreshDatabase) -> None:
    assert take(database, "a") == 1
    assert take(database, "a") == 1
    assert take(database, "b") is None


def test_a_new_owner_after_the_end_gets_the_next_epoch(database: FreshDatabase) -> None:
    assert take(database, "a") == 1
    expire(database)
    assert take(database, "b") == 2
    assert take(database, "a") is None


def test_an_owner_that_let_its_lease_run_out_gets_a_new_epoch(database: FreshDatabase) -> None:
    assert take(database, "a") == 1
    expire(database)
    assert take(database, "a") == 2


def test_of_many_at_the_same_moment_exactly_one_leads(database: FreshDatabase) -> None:
    owners = [f"owner-{number}" for number in range(8)]
    barrier = threading.Barrier(len(owners))
    won: dict[str, int | None] = {}

    def race(owner: str) -> None:
        barrier.wait()
        won[owner] = take(database, owner)

    for epoch in range(1, 6):
        threads = [threading.Thread(target=race, args=(owner,)) for owner in owners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [held for held in won.values() if held is not None] == [epoch]
        expire(database)


def test_a_write_under_an_old_epoch_is_refused_in_its_own_transaction(database: FreshDatabase) -> None:
    take(database, "a")
    with Session(database.engine) as session, session.begin():
        lease.require(session, 1)
    expire(database)
    with Session(database.engine) as session, pytest.raises(LeaseLost):
        lease.require(session, 1)
    take(database, "b")
    with Session(database.engine) as session, pytest.raises(LeaseLost):
        lease.require(session, 1)


def test_a_successor_waits_for_a_write_that_has_begun(database: FreshDatabase) -> None:
    # The old leader checked its epoch and is about to write when its lease ends.
    assert take(database, "a", ttl_s=0.2) == 1
    with Session(database.engine) as writing, writing.begin():
        lease.require(writing, 1)
        writing.execute(text("SELECT pg_sleep(0.3)"))
        with database.engine.connect() as other:
            other.execute(text("SET lock_timeout = '200ms'"))
            with pytest.raises(OperationalError, match="lock timeout"):
                lease.take(Session(other), role=ROLE, owner="b", ttl_s=60)
    assert take(database, "b") == 2


def test_an_epoch_lifted_over_a_gateways_is_the_only_one_that_writes(database: FreshDatabase) -> None:
    take(database, "a")
    with Session(database.engine) as session, session.begin():
        assert lease.raise_epoch(session, Leadership("a"), 1, above=41) == 42
    assert take(database, "a") == 42
    with Session(database.engine) as session, pytest.raises(LeaseLost):
        lease.require(session, 1)
    with Session(database.engine) as session, pytest.raises(LeaseLost):
        lease.raise_epoch(session, Leadership("b"), 42, above=50)


def test_leadership_ends_by_itself_before_the_lease_does(
    database: FreshDatabase, clock: ManualClock
) -> None:
    deps = deps_of(database, clock, "a")
    assert asyncio.run(lease.tick(deps)) == "leading with epoch 1"
    clock.advance(deps.lease_ttl_s - deps.lease_margin_s - 0.001)
    assert deps.leadership.current(clock) == 1
    clock.advance(0.001)
    assert deps.leadership.current(clock) is None


def test_a_leader_hands_over_at_shutdown(database: FreshDatabase, clock: ManualClock) -> None:
    first, second = deps_of(database, clock, "a"), deps_of(database, clock, "b")
    asyncio.run(lease.tick(first))
    assert asyncio.run(lease.tick(second)) == "standing by: another controller leads"
    asyncio.run(lease.release(first))
    assert first.leadership.current(clock) is None
    assert asyncio.run(lease.tick(second)) == "leading with epoch 2"
    assert asyncio.run(lease.tick(first)) == "standing by: another controller leads"
    with Session(database.engine) as session:
        found = lease.leader(session)
    assert found is not None
    assert (found.owner, found.epoch) == ("b", 2)
    assert found.left_s > 0
