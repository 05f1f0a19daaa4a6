"""Which part of the nodes' KV room a gateway may book, as parts that are lent like quotas. Pure.

Parts are millionths of every node's KV budget; a gateway's even part is its assignment's `kv_share_ratio`.
They travel as `max_in_flight_tokens` of a share of their own, under a name that no tenant can have, so that
they are lent by the same sums and bounds as quotas (`fleet.quota_leases`). Prevents: nodes half empty while
a gateway that got most of the traffic queues, and gateways that together book a node twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from fleet.gate_snapshot import GateSnapshot
from fleet.messages import Assignment, QuotaShare, QuotaUse
from fleet.quota_shares import NOTHING, Counted

#: The name of the share among tenants' shares. No tenant's: those have no slash.
KV_ROOM = "/kv_room"
PARTS = 1_000_000
#: A part is sized so much above what is used, and by so much above itself while requests wait for it.
_HEADROOM, _GROWTH = 1.1, 1.5


@lru_cache(maxsize=1_024)
def parts_of(kv_share_ratio: float) -> QuotaShare:
    """Return the share of a ratio (0..1), rounded down: the parts of N gateways never sum to more than all.

    Equal ratios give one object.
    """
    return NOTHING.model_copy(update={"max_in_flight_tokens": int(PARTS * kv_share_ratio)})


def with_room(assignment: Assignment) -> dict[str, Counted]:
    """Return the assignment's shares and, under `KV_ROOM`, its part of the nodes' room."""
    return {**assignment.shares, KV_ROOM: parts_of(assignment.kv_share_ratio)}


def lent_ratio(lent: Mapping[str, QuotaShare], assignment: Assignment) -> float:
    """Return the part of each node that is in force: the lent one, else the assignment's."""
    share = lent.get(KV_ROOM)
    # A millionth at least: an assignment has no part of 0.
    return assignment.kv_share_ratio if share is None else max(1, share.max_in_flight_tokens) / PARTS


def room_use(snapshot: GateSnapshot, share: QuotaShare) -> QuotaUse:
    """Return share, use and need of the nodes' room. Where requests wait, more than the share is needed.

    What is used is that of the fullest node: a share is one for all nodes.
    """
    part = max(1, share.max_in_flight_tokens)
    used = whole_tokens = 0.0
    for node in snapshot.nodes.values():
        if node.budget_tokens:
            whole = node.budget_tokens * PARTS / part
            used = max(used, node.tokens / whole)
            whole_tokens += whole
    waiting = sum(queue.tokens for queue in snapshot.queues.values())
    need = used * _HEADROOM
    if waiting and whole_tokens:
        need = max(used + waiting / whole_tokens, part / PARTS * _GROWTH)
    return QuotaUse(
        share=share,
        need=NOTHING.model_copy(update={"max_in_flight_tokens": min(PARTS, int(PARTS * need))}),
        held_tokens=int(PARTS * used),
    )
