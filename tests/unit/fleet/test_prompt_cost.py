"""Prompts as a part of the step time: windows moved to the mean mix, against laws written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fleet.capacity import Method, estimate_capacity
from fleet.plateau import plateau
from fleet.prompt_cost import extra_steps, latency_at_mix, prompts_per_step, rates_at_mix
from fleet.saturation import EngineLimits, Mix, Plateau, Point, mix_of

ALPHA, BETA, GAMMA = 0.02, 1e-4, 2e-5
PROMPT, OUTPUT = 4000, 100
MIX = Mix(10_000, float(OUTPUT), float(PROMPT), float(PROMPT), None)


def law(batch: float) -> float:
    """tau(b) = alpha + (beta + gamma I / O) b, the step time at the mean mix."""
    return ALPHA + (BETA + GAMMA * PROMPT / OUTPUT) * batch


def windows(seed: int, count: int = 360) -> list[Point]:
    """Windows of 10 s whose prompts come in numbers of their own: p = b I / O times a number around 1."""
    rng = np.random.default_rng(seed)
    found: list[Point] = []
    for i in range(count):
        batch = 45 + 15 * float(rng.normal())
        batch = min(max(batch, 10), 80)
        prompts = batch * PROMPT / OUTPUT * float(rng.uniform(0.6, 1.4))
        tau = ALPHA + BETA * batch + GAMMA * prompts
        steps = 10 / tau
        found.append(
            Point(
                10.0 * i, 10.0, batch, tau, batch * steps, completed=round(batch * steps / OUTPUT),
                prompt_tokens=round(prompts * steps), running=round(batch), waiting=0,
            )
        )  # fmt: skip
    return found


def test_prompts_of_a_step_follow_from_tokens_and_decode_steps():
    # 1,000 steps in 10 s, each with 40 sequences and 1,500 prompt tokens
    point = Point(10, 10, 40, 0.01, 40_000, prompt_tokens=2_000_000, prompt_tokens_computed=1_500_000)
    assert prompts_per_step([point]).tolist() == [1500]
    assert prompts_per_step([replace(point, prompt_tokens_computed=None)]).tolist() == [2000]
    assert (
        prompts_per_step([point, replace(point, prompt_tokens=None, prompt_tokens_computed=None)]) is None
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_windows_moved_to_the_mean_mix_lie_on_the_law_of_the_mean_mix(seed: int):
    points = windows(seed)
    moved = latency_at_mix(points, MIX, None)
    assert moved == pytest.approx([law(p.batch) for p in points], rel=1e-3)
    scattered = np.abs([p.itl_s / law(p.batch) - 1 for p in points])
    assert scattered.max() > 0.2


def test_a_prompt_token_never_makes_a_step_shorter():
    # latency falls where prompts rise: a coincidence, or a lie; the windows stay as they are
    points = [replace(p, itl_s=0.05 - 1e-6 * i) for i, p in enumerate(windows(4))]
    points = [replace(p, prompt_tokens=round((1 + i) * p.decode_events)) for i, p in enumerate(points)]
    assert latency_at_mix(points, MIX, None).tolist() == [p.itl_s for p in points]


def test_a_window_with_more_prompts_than_any_step_carries_moves_nothing():
    points = windows(5)
    honest = latency_at_mix(points[1:], MIX, None)
    found = latency_at_mix([replace(points[0], prompt_tokens=10**300), *points[1:]], MIX, None)
    assert found[0] == points[0].itl_s
    assert found[1:] == pytest.approx(honest)


def test_without_prompt_counts_or_with_few_windows_latency_is_as_measured():
    points = windows(6)
    silent = [replace(p, prompt_tokens=None) for p in points]
    assert latency_at_mix(silent, MIX, None).tolist() == [p.itl_s for p in points]
    assert latency_at_mix(points[:23], MIX, None).tolist() == [p.itl_s for p in points[:23]]


def test_a_full_engine_is_rated_at_the_mean_mix():
    # 90 full windows with 64 sequences; their prompts are a fifth longer than the mean of all windows
    rng = np.random.default_rng(7)
    full: list[Point] = []
    for i in range(90):
        prompts = 64 * PROMPT / OUTPUT * 1.2 * float(rng.uniform(0.8, 1.2))
        tau = ALPHA + BETA * 64 + GAMMA * prompts
        full.append(
            Point(
                10.0 * i, 10.0, 64, tau, 640 / tau, completed=7, prompt_tokens=round(prompts * 10 / tau),
                running=64, waiting=9,
            )
        )  # fmt: skip
    true = 64 / law(64)  # decode steps of sequences a second
    assert rates_at_mix(full, MIX) == pytest.approx([true] * 90, rel=1e-3)
    seen = plateau(full, 64, MIX)
    assert isinstance(seen, Plateau)
    assert seen.tokens_per_s == pytest.approx(true, rel=1e-3)
    # without the counts the long prompts pass for a smaller engine
    silent = plateau([replace(p, prompt_tokens=None) for p in full], 64, MIX)
    assert silent is not None
    assert silent.tokens_per_s < 0.9 * true


def test_where_prompts_never_vary_decode_steps_alone_are_counted():
    same = [Point(10.0 * i, 10.0, 64, 0.05, 12_800, completed=10, prompt_tokens=400_000) for i in range(9)]
    assert rates_at_mix(same, MIX) == pytest.approx([1280] * 9)


def test_a_request_meets_the_prompts_that_came_during_its_own():
    # 10 sequences, 200 prompt tokens a mean step of 25 ms, prompts of 4,000 tokens that fit one step: the
    # step that ends one's own prompt takes gamma x 4,000 = 80 ms more than a mean one, 3.2 mean steps
    b, p = np.array([10.0]), np.array([200.0])
    assert extra_steps(b, p, GAMMA / np.array([0.025]), 8192, 4000) == pytest.approx([3.2])
    # nothing more where every step is full, whatever the prompts
    full = np.array([8182.0])
    assert extra_steps(b, full, GAMMA / np.array([0.2]), 8192, 4000).tolist() == [0.0]
    assert extra_steps(b, full, GAMMA / np.array([0.2]), 8192, 40_000).tolist() == [0.0]


def test_a_line_through_lumpy_prompts_is_mended_by_what_they_cost():
    # b of a window follows its prompts, as prompts that came early push both up: the bare line is too steep
    rng = np.random.default_rng(8)
    points: list[Point] = []
    for i in range(360):
        lump = float(rng.normal(0, 0.15))
        batch = 45 * (1 + 0.5 * lump) + float(rng.normal(0, 2))
        prompts = 45 * PROMPT / OUTPUT * (1 + lump)
        tau = ALPHA + BETA * batch + GAMMA * prompts
        points.append(
            Point(
                10.0 * i, 10.0, batch, tau, batch * 10 / tau, completed=round(batch * 10 / tau / OUTPUT),
                prompt_tokens=round(prompts * 10 / tau), running=round(batch), waiting=0,
            )
        )  # fmt: skip
    limits = EngineLimits(max_num_seqs=64)
    found = estimate_capacity(points, limits, np.random.default_rng(1), draws=20)
    share = mix_of(points).prompts_per_event
    assert share is not None
    true = 64 / (ALPHA + (BETA + GAMMA * share) * 64)
    assert found.method is Method.CURVE
    assert found.tokens_per_s == pytest.approx(true, rel=0.01)
    bare = [replace(p, prompt_tokens=None) for p in points]
    blind = estimate_capacity(bare, limits, np.random.default_rng(1), draws=20)
    assert blind.tokens_per_s is not None
    assert abs(blind.tokens_per_s / true - 1) > 0.03
