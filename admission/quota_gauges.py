"""How this gateway shares quotas with the others, as metric families.

Counts are tokens, requests or events. Prevents: a fleet that runs on parts of its quotas, or past a store
that is gone, without anybody seeing it.
"""

from __future__ import annotations

from collections.abc import Iterator

from admission.exact_quota import ExactQuotas
from admission.metrics import Family
from admission.quota_lease import QuotaLeases
from fleet.gate_snapshot import GateSnapshot
from fleet.kv_shares import KV_ROOM
from fleet.messages import OverQuota
from fleet.quota_shares import FIELDS

_PREFIX = "rhodeck_gateway_"


def over_quota(snapshot: GateSnapshot) -> dict[str, OverQuota]:
    """Return by how much tenants hold more than this gateway's part, after a cut, until it drains."""
    return {
        name: OverQuota(tokens=use.over_by_tokens, requests=use.over_by_requests)
        for name, use in snapshot.tenants.items()
        if use.over_by_tokens or use.over_by_requests
    }


def quota_families(
    snapshot: GateSnapshot, leases: QuotaLeases, exact: ExactQuotas | None
) -> Iterator[Family]:
    """Yield the families; `exact` None: no store is configured."""
    shares = {
        (tenant, part): float(getattr(share, part))
        for tenant, share in leases.lent.items()
        if tenant != KV_ROOM
        for part in FIELDS
    }
    yield Family(
        _PREFIX + "quota_lease", "Shares in force that are not the even part.", ("tenant", "limit"), shares
    )
    if (ratio := leases.room_ratio) is not None:
        words = "Part of each node's KV budget that may be booked here, the lent one where it is lent."
        yield Family(_PREFIX + "kv_share_ratio", words, (), {(): ratio})
    over = over_quota(snapshot)
    yield Family(
        _PREFIX + "over_quota_tokens",
        "Tokens held above this gateway's part of the quota.",
        ("tenant",),
        {(tenant,): by.tokens for tenant, by in over.items()},
    )
    if exact is None:
        return
    yield Family(
        _PREFIX + "quota_store_trusted",
        "1 while the store decides on exact quotas, 0 while leases do.",
        (),
        {(): int(exact.is_trusted)},
    )
    counts = exact.counts
    results = {
        ("reserved",): counts.reserved,
        ("refused",): counts.refused,
        ("by_lease",): counts.by_lease,
    }
    yield Family(
        _PREFIX + "exact_quota_total", "Requests of exact quotas.", ("result",), results, "counter"
    )
    yield Family(
        _PREFIX + "quota_store_failures_total",
        "Times the store was given up.",
        (),
        {(): counts.failures},
        "counter",
    )
