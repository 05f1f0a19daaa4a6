"""Which requests a policy leaves without a node, although nodes hold their model.

Pure. Tokens are counts. Nodes that drain or compute prompts only serve nobody here. Prevents: a size class
bound to the pool of a model's only nodes, which has every other request of that model refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fleet.messages import NodeTarget
from fleet.outcomes import TIERS, Tier
from fleet.placement import price_rank
from fleet.policy import Policy
from fleet.pool_names import class_of, classes_by_pool, pool_names


def newly_unserved(before: Policy | None, after: Policy, nodes: Iterable[NodeTarget]) -> list[str]:
    """Return, in words, what no node takes under `after` and some node took under `before`, by model.

    `before` None: all that no node takes.
    """
    listed = [node for node in nodes if not node.draining and node.role != "prefill"]
    known = set[tuple[str, str, Tier]]() if before is None else set(_unserved(before, listed))
    left: dict[tuple[str, str], list[Tier]] = {}
    for model, part, tier in _unserved(after, listed):
        if (model, part, tier) not in known:
            left.setdefault((model, part), []).append(tier)
    return [_words(model, part, tiers, after) for (model, part), tiers in left.items()]


def _unserved(policy: Policy, nodes: list[NodeTarget]) -> list[tuple[str, str, Tier]]:
    """Return model, size class bound to a pool ("": none) and tier of requests that no node takes."""
    classes = policy.admission.size_classes
    bound = classes_by_pool(classes)
    parts = ["", *(one.name for one in classes if one.pool is not None)]
    served = _served(policy, nodes, bound)
    return [
        (model, part, tier)
        for model in sorted({model for node in nodes for model in node.models})
        for part in parts
        for tier in TIERS
        if (class_of(model, part) if part else model, tier) not in served
    ]


def _served(
    policy: Policy, nodes: list[NodeTarget], bound: Mapping[str, list[str]]
) -> set[tuple[str, Tier]]:
    return {
        (name, tier)
        for node in nodes
        for name in pool_names(node, bound)
        for tier in TIERS
        if price_rank(node, tier, policy.routing) is not None
    }


def _words(model: str, part: str, tiers: list[Tier], policy: Policy) -> str:
    who = "" if len(tiers) == len(TIERS) else " of " + " and ".join(tiers)
    taken = "they are refused as no_nodes, those that wait now as well"
    if part:
        one = next(one for one in policy.admission.size_classes if one.name == part)
        return (
            f"No node of {model} is in pool {one.pool}, to which size class {part} is bound{who}: {taken}."
        )
    bound = sorted({one.pool for one in policy.admission.size_classes if one.pool is not None})
    if not bound:
        return f"No node takes requests{who} for {model}: {taken}."
    pools = ", ".join(bound)
    return f"No node of {model} takes requests{who} outside the size classes bound to {pools}: {taken}."
