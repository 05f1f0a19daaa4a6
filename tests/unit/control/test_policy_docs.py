"""Every knob, condition and state is explained where operators look for it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from control.queries_policy import Condition, RolloutState
from fleet.policy import (
    Admission,
    OverBudget,
    Policy,
    RetryAfter,
    Routing,
    SizeClass,
    Slo,
    TenantPolicy,
    TierPolicy,
)

PAGE = (Path(__file__).parents[3] / "docs" / "policy.md").read_text()
PARTS: list[type[BaseModel]] = [
    TierPolicy,
    TenantPolicy,
    Admission,
    SizeClass,
    Routing,
    RetryAfter,
    Slo,
]
FIELDS = sorted({name for part in PARTS for name in part.model_fields})


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_explained(name: str) -> None:
    assert f"`{name}`" in PAGE or f"/{name}`" in PAGE


def test_every_part_state_and_condition_is_explained() -> None:
    for field, info in Policy.model_fields.items():
        assert f"/{info.alias or field}" in PAGE, field
    for word in (*get_args(RolloutState), *get_args(Condition), *OverBudget):
        assert f"`{word}`" in PAGE, word
