"""How long a request that joins the queue now would wait, from what drains and what stands before it.

Tokens are counts, rates tokens per second, times seconds. Tiers share by weight only while they wait: one
that is empty in a moment does not take its share for the whole wait. Prevents: a request of a low tier
refused in a short burst as if it had its share and no more for ever, and one let in that cannot start.
Source: generalized processor sharing, Parekh and Gallager (IEEE/ACM Transactions on Networking 1, 1993).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

#: A tier in which something has waited for longer is taken to go on so: this is no burst.
LASTING_S: Final = 30.0
#: Weight, waiting tokens, and seconds after which all of them have started or left, of another tier.
Rival = tuple[float, float, float]


def wait_s(
    ahead_tokens: float, weight: float, rivals: Sequence[Rival], rate: float, lasting_weight: float = 0.0
) -> float:
    """Return the seconds until `ahead_tokens` of a tier of `weight` are served, if nothing more comes.

    `rate`: what all tiers get together (> 0). `lasting_weight`: of rivals that go on waiting all the while;
    one of `rivals` with infinite tokens and seconds is the same.
    """
    passed_s = 0.0
    while rivals:
        weights, step_s = weight + lasting_weight, math.inf
        for one, _, _ in rivals:
            weights += one
        pace = rate / weights  # tokens per second and weight
        for one, tokens, gone_s in rivals:
            served_s = tokens / (one * pace)
            if served_s > gone_s:
                served_s = gone_s
            if served_s < step_s:
                step_s = served_s
        here = weight * pace * step_s
        if ahead_tokens <= here:
            return passed_s + ahead_tokens / (weight * pace)
        passed_s += step_s
        ahead_tokens -= here
        left = [(one, tokens - one * pace * step_s, gone_s - step_s) for one, tokens, gone_s in rivals]
        rivals = [rival for rival in left if rival[1] > 1e-6 and rival[2] > 1e-9]
    return passed_s + ahead_tokens * (weight + lasting_weight) / (weight * rate)
