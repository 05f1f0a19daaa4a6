"""Output-length quantiles against sorting."""

from __future__ import annotations

import math
import random

import pytest

from fleet.lengths import ENOUGH, OutputLengths


@pytest.mark.parametrize("quantile", [0.5, 0.95, 0.999])
def test_quantiles_are_never_low_and_at_most_one_percent_high(quantile: float):
    rng = random.Random(3)
    lengths = OutputLengths()
    seen: list[int] = []
    for _ in range(6_400):
        seen.append(int(rng.lognormvariate(5.5, 0.8)))
        lengths.add("m", "chat", seen[-1])
    exact = sorted(seen)[math.ceil(quantile * len(seen)) - 1]
    got = lengths.quantile("m", "chat", quantile)
    assert got is not None
    assert exact <= got <= exact * 1.01 + 1


def test_history_is_believed_after_enough_completions_and_not_before():
    lengths = OutputLengths()
    for _ in range(ENOUGH - 1):
        lengths.add("m", "chat", 10)
    assert lengths.quantile("m", "chat", 0.95) is None
    lengths.add("m", "chat", 10)
    assert lengths.quantile("m", "chat", 0.95) == 10
    assert lengths.quantile("m", "embeddings", 0.95) is None


def test_old_traffic_fades():
    # 20,000 short answers, then as many long ones: the median follows
    lengths = OutputLengths()
    for length in [10] * 20_000 + [1_000] * 20_000:
        lengths.add("m", "chat", length)
    median = lengths.quantile("m", "chat", 0.5)
    assert median is not None
    assert 1_000 <= median <= 1_010
