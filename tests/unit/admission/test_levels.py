"""Bucket levels over a restart: what flowed back meanwhile, and not what a wall clock made up."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from admission.levels import FILE_NAME, LevelKeeper
from fleet.accounts import Accounts
from fleet.messages import Assignment
from tests.gateway_process import FakeEngine, assignment
from tests.oracles import history as h
from tests.oracles.history import History
from tests.oracles.invariants import i19_clock_tolerance

TENANT, PER_MINUTE, BURST = "acme", 600, 1_000  # 10 tokens/s


class JumpyClock:
    """A monotonic clock that goes on from process to process, and wall time that may jump."""

    def __init__(self) -> None:
        self.elapsed_s = 5_000.0
        self.jumped_s = 0.0

    def now(self) -> datetime:
        return datetime(2026, 3, 2, 12, tzinfo=UTC) + timedelta(seconds=self.elapsed_s + self.jumped_s)

    def unix_s(self) -> float:
        return self.now().timestamp()

    def monotonic_s(self) -> float:
        return self.elapsed_s


def begun(folder: Path, clock: JumpyClock, *, boot: str | None = "this life") -> LevelKeeper:
    """Return the keeper of a gateway process that starts now."""
    document = assignment([FakeEngine("node-1")])
    share = {"tokens_per_minute": PER_MINUTE, "burst_tokens": BURST}
    document["shares"][TENANT] |= share
    document["policy"]["tenants"][TENANT] |= share
    made = Assignment.model_validate(document)
    accounts = Accounts()
    accounts.apply(made, clock.monotonic_s())
    keeper = LevelKeeper(folder, accounts, clock, boot)
    keeper.restore(made)
    return keeper


def left(keeper: LevelKeeper, clock: JumpyClock) -> int:
    return keeper.accounts.levels(clock.monotonic_s()).get(TENANT, BURST)


def spend(keeper: LevelKeeper, clock: JumpyClock, tokens: int) -> None:
    account = keeper.accounts.find(TENANT)
    assert account is not None
    assert account.exceeded(tokens, clock.monotonic_s()) is None
    account.accept(tokens)


@pytest.mark.parametrize("jump_s", [0.0, 3_600.0, -3_600.0])
def test_a_restart_gives_back_what_flowed_back_whatever_the_wall_clock_says(
    tmp_path: Path, jump_s: float
) -> None:
    clock = JumpyClock()
    keeper = begun(tmp_path, clock)
    spend(keeper, clock, 900)
    keeper.save()
    clock.elapsed_s += 20.0
    clock.jumped_s = jump_s
    again = begun(tmp_path, clock)
    seen = History()
    # 100 were left, and 20 s at 10 tokens/s came back
    seen.add(h.Levels("gw", "wall clock", {TENANT: 300}, {TENANT: left(again, clock)}, (), ()))
    i19_clock_tolerance(seen)


def test_after_a_reboot_wall_time_counts_and_never_backwards(tmp_path: Path) -> None:
    clock = JumpyClock()
    keeper = begun(tmp_path, clock)
    spend(keeper, clock, 900)
    keeper.save()
    clock.elapsed_s = 3.0  # the new life's clock begins near 0
    clock.jumped_s = 5_000.0 - 3.0 + 20.0
    assert left(begun(tmp_path, clock, boot="another life"), clock) == 300
    clock.jumped_s = 0.0  # an hour and more before the file was written
    assert left(begun(tmp_path, clock, boot="another life"), clock) == 100


def test_a_file_of_a_release_that_knew_wall_time_only_is_read(tmp_path: Path) -> None:
    clock = JumpyClock()
    content = {"at_s": clock.now().timestamp() - 20, "tokens": {TENANT: 100}}
    (tmp_path / FILE_NAME).write_text(json.dumps(content))
    assert left(begun(tmp_path, clock), clock) == 300
