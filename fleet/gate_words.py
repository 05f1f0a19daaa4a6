"""Why a month through the gate differs from one queue before the same nodes, in sentences.

Shares are of offered requests, waits seconds. Prevents: two columns side by side without a reason.
"""

from __future__ import annotations

from collections import Counter

from fleet.gate_month import GateRun
from fleet.gate_rules import LEAST_WAIT_S, MOST_WAIT_S, whole_weights
from fleet.month_result import MonthResult
from fleet.outcomes import TIERS, Outcome
from fleet.percentages import percent


def explained(run: GateRun, events: MonthResult) -> list[str]:
    """Return in sentences what the gate does that one queue before the same nodes does not."""
    gate = run.result()
    points = 100 * (gate.refused_share - events.refused_share)
    lines = [
        f"The gate refuses {points:+.2f} points of the requests against one queue before the same slots, "
        f"with the same requests and nodes; cost is the same. {_served(run, events)}"
    ]
    tiers = run.tiers()
    refused = sum((Counter(one.refused_by) for one in tiers), Counter[Outcome]())
    early = refused[Outcome.REJECTED_TOO_LATE]
    if early:
        lines.append(
            f"{percent(early / refused.total())} of what it refuses is refused at the door: it "
            "expects too long "
            "a wait, instead of letting them wait for nothing. It expects from what drained lately."
        )
    if len(tiers) > 1 and refused:
        shares = ", ".join(f"{one.tier.words} {percent(one.refused_share, 2)}" for one in tiers)
        whole = whole_weights([run.rules.tier_weights.get(one.value, 0.0) for one in TIERS])
        weights = "/".join(str(whole[TIERS.index(one.tier)]) for one in tiers)
        lines.append(
            f"It divides what the nodes serve by the tiers' weights ({weights}): refused {shares}."
        )
    kv_tokens = run.kv_tokens
    if kv_tokens is not None:
        lines.append(
            f"A node takes what fits into its {kv_tokens:,} KV tokens by the prompt and a high "
            "quantile of earlier answers; one queue counts slots only."
        )
    longest = run.events.strategy.max_wait_s
    if longest is None or not LEAST_WAIT_S <= longest <= MOST_WAIT_S:
        said = "no bound" if longest is None else f"{longest:g} s"
        lines.append(
            f"The longest wait asked for is {said}; a policy allows {LEAST_WAIT_S:g} to {MOST_WAIT_S:g} s."
        )
    return lines


def _served(run: GateRun, events: MonthResult) -> str:
    """Say what serves, and what that does to waits."""
    if run.preemptions is None:
        return "Service times are the same too: as drawn, however full a node is."
    gate = run.result()
    again = f"{run.preemptions:,} times" if run.preemptions else "never"
    return (
        "Behind it are engines, which answer faster while they have room, and serve mu only when full: "
        f"p95 of the wait {gate.wait_p95_s:.2f} s against {events.wait_p95_s:.2f} s. "
        f"For want of KV a sequence was computed again {again}."
    )
