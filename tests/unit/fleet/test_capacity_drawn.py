"""Engines drawn at random, fitted from an hour of their scrapes: benchmarks/capacity.py in small."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[3] / "benchmarks" / "capacity.py"


@pytest.fixture(scope="module")
def drawn() -> ModuleType:
    """The benchmark, as a module."""
    spec = importlib.util.spec_from_file_location("benchmark_capacity", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark_capacity"] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", [3001, 3004, 3007, 3010, 3013, 3016])
def test_the_interval_of_an_engine_never_seen_before_holds_its_capacity(drawn: ModuleType, seed: int):
    found = drawn.judge(seed)
    assert found["mu"] is not None
    assert found["low"] <= found["true"] <= found["high"]
    if drawn.reach_class(found) == "reach >= 0.8":
        assert found["mu"] == pytest.approx(found["true"], rel=0.03)


def test_drawn_engines_are_of_every_kind(drawn: ModuleType):
    cases = [drawn.drawn(seed) for seed in range(2000, 2100)]
    assert {case.shape for case in cases} == set(drawn.SHAPES)
    assert {(case.prompt, case.output) for case in cases} == set(drawn.MIXES)
    assert 20 <= sum(case.profile.knee_seqs is not None for case in cases) <= 50
    assert min(case.profile.alpha_s for case in cases) < 0.006
    assert max(case.profile.alpha_s for case in cases) > 0.028
