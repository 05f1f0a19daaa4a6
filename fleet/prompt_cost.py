"""What prompts add to the steps of one engine, and its windows as they were at the mean mix.

Step times seconds, prompt tokens computed (a cached prefix costs nothing), rates per second. Over minutes a
step carries b I / O prompt tokens; in ten seconds it may be half or twice that, and step time follows the
prompts, not the sequences. Prevents: a slope made of chance (prompts that came early look like a cost of
concurrency), and a full quarter of an hour of short answers taken for a smaller engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fleet.curve_fit import Vector, convex_cost
from fleet.saturation import Mix, Point

LEAST_WINDOWS = 24  # two a coefficient is too few: b and prompts move together
PROMPTS_MAX = 1e6  # prompt tokens no step carries
_ROUNDS = 2  # gamma and what requests met depend on one another, weakly


def prompts_per_step(points: Sequence[Point]) -> Vector | None:
    """Return p, prompt tokens a decode step carried in each window: b P / D. None where a window is silent.

    P and D are prompt tokens computed and decode steps of sequences in the window. Little's law for one
    token gives D = b / tau, so that P / D = p / b.
    """
    found: list[float] = []
    for point in points:
        prompts = computed(point)
        if prompts is None or point.decode_events <= 0:
            return None
        found.append(point.batch * prompts / point.decode_events)
    return np.asarray(found, np.float64)


def computed(point: Point) -> float | None:
    """Return prompt tokens computed in the window; all of them where cached ones are not told apart."""
    known = point.prompt_tokens_computed
    return known if known is not None else point.prompt_tokens


def latency_at_mix(points: Sequence[Point], mix: Mix, budget: int | None) -> Vector:
    """Return each window's inter-token latency, seconds, had it carried the prompts of the mean mix.

    tau = alpha + beta b + gamma p; gamma is fitted beside a convex cost of b, all of them >= 0, and every
    window is moved by gamma (b I / O - p). `budget` is tokens a step may carry: where it is known, p is
    what decoding requests met. As measured where prompts are not counted, or in under 24 windows.
    """
    latency = np.asarray([p.itl_s for p in points], np.float64)
    prompts, share = prompts_per_step(points), mix.prompts_per_event
    if prompts is None or share is None or not mix.decode_events:
        return latency
    batch = np.asarray([p.batch for p in points], np.float64)
    sane = prompts <= PROMPTS_MAX
    if int(sane.sum()) < LEAST_WINDOWS:
        return latency
    met = prompts
    gamma = convex_cost(batch[sane], latency[sane], met[sane])
    for _ in range(_ROUNDS if budget is not None else 0):
        more = extra_steps(batch, prompts, gamma / latency, budget or 0, share * mix.decode_events)
        met = prompts * (1 + more / mix.decode_events)
        gamma = convex_cost(batch[sane], latency[sane], met[sane])
    moved = latency + gamma * (batch * share - met)
    return np.where(sane & (moved > 0), moved, latency)


def extra_steps(
    batch: Vector, prompts: Vector, gamma_steps: Vector, budget: float, prompt: float
) -> Vector:
    """Return for how many mean steps longer than it decodes a request meets the prompts of others.

    A request joins at the end of the step with its own prompt. What arrived during that longer step is
    computed while it decodes; what arrives during its last, common step is not. A full step exceeds a mean
    one by gamma (room), room being what the budget leaves beside batch and mean prompts, at most one's own
    prompt. A prompt of k > 1 steps leaves k full steps of arrivals behind and meets, of a prompt begun
    before, (k - 1) / 2 steps fewer as the budget fills up. Nothing is left of it when every step is full.
    `gamma_steps` is gamma over the mean step time, `prompt` I in tokens. Source: Little's law on arrivals
    in first-come order, counted at the join and at the end.
    """
    free = np.maximum(budget - batch, 1.0)
    room = np.clip(free - prompts, 0.0, np.minimum(prompt, free))
    steps = np.maximum(1.0, prompt / free)
    return steps * gamma_steps * room + (steps - 1) / 2 * room / free


def rates_at_mix(points: Sequence[Point], mix: Mix) -> Vector:
    """Return decode steps of sequences/s of a full engine in each window, at the mean mix.

    A full engine's second is spent: 1 = gamma P + epsilon D, epsilon = alpha / b + beta. With both from
    least squares over the windows, it does (gamma P + epsilon D) / (gamma I + epsilon O) requests/s, times
    O. As counted where prompts are unknown or nothing tells the two apart.
    """
    seconds = np.asarray([p.length_s for p in points], np.float64)
    decoded = np.asarray([p.decode_events for p in points], np.float64) / seconds
    counts, share = [computed(p) for p in points], mix.prompts_per_event
    told = [c for c in counts if c is not None]
    if share is None or len(told) < len(counts):
        return decoded
    prompts = np.asarray(told, np.float64) / seconds
    gamma, epsilon = _spent(prompts, decoded)
    price = gamma * share + epsilon  # engine-seconds a decode step and its share of a prompt
    return (gamma * prompts + epsilon * decoded) / price if price > 0 else decoded


def _spent(prompts: Vector, decoded: Vector) -> tuple[float, float]:
    """Return (gamma, epsilon) >= 0 that come closest to 1 = gamma P + epsilon D in every window."""
    pp, dd, pd = float(prompts @ prompts), float(decoded @ decoded), float(prompts @ decoded)
    p, d = float(prompts.sum()), float(decoded.sum())
    determinant = pp * dd - pd * pd
    if determinant <= 1e-9 * pp * dd:
        return 0.0, 1.0
    gamma, epsilon = (p * dd - d * pd) / determinant, (d * pp - p * pd) / determinant
    if gamma <= 0:
        return 0.0, 1.0
    return (gamma, epsilon) if epsilon > 0 else (1.0, 0.0)
