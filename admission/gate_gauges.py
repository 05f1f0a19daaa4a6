"""What the gate holds and how fair it is, as metric families.

Times are seconds, counts tokens, ratios 0..1. What is not known has no sample. Prevents: a bound that is
promised in the docs and measured nowhere, and an unknown shown as 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from admission.metrics import Family
from fleet.gate_snapshot import GateSnapshot, NodeUse
from fleet.limiters import Limiter, Limiters
from fleet.outcomes import Tier
from fleet.phases import Phases

_PREFIX = "rhodeck_gateway_"


def gate_families(snapshot: GateSnapshot, limiters: Limiters | None) -> Iterator[Family]:
    """Yield the families of one snapshot; `limiters` None: no policy is in force."""
    oldest = {tier: queue.oldest_wait_s for tier, queue in snapshot.queues.items()}
    queued = {tier: float(queue.tokens) for tier, queue in snapshot.queues.items()}
    jain = {tier: index for tier, index in snapshot.jain_by_tier.items() if index is not None}
    yield _by_tier("oldest_wait_seconds", "Longest wait of who waits now.", oldest)
    yield _by_tier("queued_tokens", "Tokens waiting at the gate.", queued)
    yield _by_tier(
        "longest_wait_seconds", "Longest wait of any started so far.", snapshot.longest_wait_s_by_tier
    )
    yield _by_tier(
        "wait_bound_seconds", "Nothing waits longer: the tier's timeout.", snapshot.queue_timeout_s_by_tier
    )
    yield _by_tier(
        "most_passed_ratio",
        "Most that started in its tier past one that waited, by its size; at most 1.",
        snapshot.most_passed_ratio_by_tier,
    )
    yield _by_tier(
        "most_ahead_ratio",
        "Furthest another tier was ahead of its share past one that waited, to its bound; at most 1.",
        snapshot.most_ahead_ratio_by_tier,
    )
    yield _by_tier(
        "dispatched_tokens_total", "Tokens started.", snapshot.dispatched_tokens_by_tier, "counter"
    )
    yield _by_tier("tenant_jain_index", "Jain's index of backlogged tenants' shares by weight.", jain)
    yield Family(
        _PREFIX + "node_kv_tokens", "KV tokens of nodes by kind.", ("node", "kind"), _kv(snapshot.nodes)
    )
    overbooked = {(name,): int(use.is_overbooked) for name, use in snapshot.nodes.items()}
    yield Family(
        _PREFIX + "node_overbooked", "1 while averages are booked on the node.", ("node",), overbooked
    )
    modes = {} if limiters is None else {(one.value, limiters.mode(one).value): 1 for one in Limiter}
    yield Family(_PREFIX + "limiter", "1 for the mode each limit is in.", ("limiter", "mode"), modes)


def phase_families(phases: Phases) -> Iterator[Family]:
    """Yield the families of prefill phases."""
    results = {(result,): number for result, number in phases.results.items()}
    yield Family(
        _PREFIX + "prefills_total", "Prefill phases by how they ended.", ("result",), results, "counter"
    )
    states = {("waiting",): phases.waiting, ("running",): phases.running}
    yield Family(_PREFIX + "prefills", "Prefill phases now, by state.", ("state",), states)


def _by_tier(name: str, help_text: str, values: Mapping[Tier, float], kind: str = "gauge") -> Family:
    return Family(
        _PREFIX + name, help_text, ("tier",), {(tier.value,): value for tier, value in values.items()}, kind
    )


def _kv(nodes: Mapping[str, NodeUse]) -> dict[tuple[str, ...], float]:
    values: dict[tuple[str, ...], float] = {}
    for name, use in nodes.items():
        kinds = {
            "budget": use.budget_tokens,
            "booked": use.tokens,
            "expected": use.expected_tokens,
            "measured": use.measured_tokens,
        }
        values |= {(name, kind): value for kind, value in kinds.items() if value is not None}
    return values
