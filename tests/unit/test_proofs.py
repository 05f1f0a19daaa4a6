"""`docs/proofs.md` names tests that exist, every invariant, every oracle of the gate and every ending."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from fleet.outcomes import Outcome
from tests.oracles import invariants

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "proofs.md").read_text()


def defined() -> set[str]:
    """Return the names of all test functions."""
    return {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", TEXT))
    assert len(named) > 60
    assert sorted(named - defined()) == []


def test_every_invariant_is_shown() -> None:
    rows = dict(re.findall(r"^\| `(i\d\d_[a-z_]+)` \| (.+) \|$", TEXT, re.M))
    made = [name for name in vars(invariants) if re.match(r"i\d\d_", name)]
    assert [int(name[1:3]) for name in sorted(made)] == list(range(1, 26))
    assert set(rows) == set(made)
    assert all("test_" in row or "schedules" in row for row in rows.values())


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_way_a_request_leaves_is_shown(outcome: Outcome) -> None:
    row = next((line for line in TEXT.splitlines() if line.startswith("| ") and f"`{outcome}`" in line), "")
    assert "`test_" in row


def test_every_oracle_of_the_gate_is_named() -> None:
    source = (ROOT / "tests" / "unit" / "fleet" / "gate_oracles.py").read_text()
    for name in re.findall(r"^def (g\d)_", source, re.M):
        assert f"({name})" in TEXT or f"{name} to" in TEXT
