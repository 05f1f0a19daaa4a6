"""Ten thousand schedules of faults and edits, each judged by every invariant; and safeguards taken out.

A schedule is a seed: play it again with `play(seed)`. `Mutant` proves that the oracles can fail.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Generator
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.oracles import history as h
from tests.oracles.invariants import broken, i12_level_triggered, judge
from tests.oracles.push_world import SOUND, Mutant, Wires

SCHEDULES, PARTS = 10_000, 20


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Wires]:
    gc.disable()  # thousands of small objects live for one schedule only
    try:
        yield Wires(monkeypatch, tmp_path)
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_ten_thousand_schedules_break_no_invariant(wires: Wires, part: int) -> None:
    answers: Counter[str] = Counter()
    kinds: Counter[str] = Counter()

    async def study() -> None:
        for seed in range(part, SCHEDULES, PARTS):
            seen = await wires.play(seed)
            judge(seen)
            kinds.update(type(fact).__name__ for fact in seen.facts)
            answers.update(fact.answer for fact in seen.of(h.Arrived))
            if seed % 500 == part:
                gc.collect()

    asyncio.run(study())
    print(f"{SCHEDULES // PARTS} schedules, {dict(answers)}, {dict(kinds)}")
    # they were no calm seas: each way to meet a push was met many times
    assert min(answers[answer] for answer in ("taken", "same", "stale", "invalid")) > 10
    assert kinds["Spread"] > 200


@pytest.mark.slow
def test_losing_messages_costs_time_and_nothing_else(wires: Wires) -> None:
    async def study() -> None:
        for seed in range(300):
            lossy = await wires.play(seed)
            calm = await wires.play(seed, loses=False)
            i12_level_triggered(lossy, calm)

    asyncio.run(study())


class Proof(NamedTuple):
    """A safeguard and the invariants that must notice when it is gone."""

    safeguard: str
    noticed_by: set[str]


PROOFS = (
    Proof("fences_pushes", {"i01_monotone_revision", "i04_no_split_brain_push"}),
    Proof("fences_writes", {"i03_fencing"}),
    Proof("checks_hash", {"i02_immutable_revision"}),
    Proof("checks_disk", {"i10_boot_gate"}),
    Proof("has_boot_gate", {"i10_boot_gate"}),
    Proof("checks_schema", {"i21_schema_safety"}),
    Proof("keeps_levels", {"i08_push_mints_no_capacity"}),
    Proof("waits_for_shares", {"i18_quota_conservation"}),
    Proof("forgets_silence", {"i13_honest_status"}),
)


@pytest.mark.parametrize("proof", PROOFS, ids=[proof.safeguard for proof in PROOFS])
def test_a_safeguard_that_is_taken_out_is_missed(wires: Wires, proof: Proof) -> None:
    mutant = Mutant(**{proof.safeguard: False})

    async def study() -> set[str]:
        noticed: set[str] = set()
        for seed in range(400):
            noticed |= broken(await wires.play(seed, mutant))
            if proof.noticed_by <= noticed:
                break
        return noticed

    assert proof.noticed_by <= asyncio.run(study())


def test_every_safeguard_has_its_proof() -> None:
    assert {proof.safeguard for proof in PROOFS} == {part.name for part in fields(SOUND)}
