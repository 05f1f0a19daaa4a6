"""The compiled gate keeps every promise the plain one keeps: the same suites, run by the machine code.

Left to plain Python: `test_gate_mutants.py` and the tests named in `PATCHES`, which break a rule of the
gate in place to see that it is noticed. Compiled classes cannot be patched.
"""

from __future__ import annotations

import pytest

from tests.compiled.conftest import RunSuite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FLEET = "tests/unit/fleet/"
SUITES = ("bounds", "machine", "replay", "theory", "worlds")
PARTS = (
    "bucket", "budgets", "engine_group", "fairness", "fairqueue", "lengths", "limiters", "overbooking",
    "phases", "placement", "places", "pools", "requeue", "retry_after", "tierstate", "turns",
    "wait_estimate",
)  # fmt: skip
PATCHES = (
    "test_fairqueue.py::test_other_tiers_run_ahead_of_one_that_waits_by_no_more_than_the_bound_and_it_is_measured",
)


def test_the_gates_own_suites_hold_among_them_twenty_thousand_steps_in_any_order(
    run_suite: RunSuite,
) -> None:
    suites = [f"{FLEET}test_gate.py", *(f"{FLEET}test_gate_{name}.py" for name in SUITES)]
    assert run_suite(*suites) >= 50


def test_the_suites_of_its_parts_hold(run_suite: RunSuite) -> None:
    left_out = [f"--deselect={FLEET}{name}" for name in PATCHES]
    assert run_suite(*left_out, *(f"{FLEET}test_{name}.py" for name in PARTS)) >= 100


def test_values_are_sent_to_other_processes_and_packed_as_by_plain_python(run_suite: RunSuite) -> None:
    suites = (f"{FLEET}test_replay_nodes_travel.py", "tests/unit/control/test_buffered_rounds.py")
    assert run_suite(*suites) >= 5
