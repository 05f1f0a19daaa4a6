"""What the leader of quota leases knows of one gateway, and what a gateway is assigned. Pure.

Times are seconds: `heard_s` and the ends on the leader's monotonic clock, `at_s` on the gateway's own.
Prevents: two readings of one report in two places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from control.reconcile_store import Place
from fleet.kv_shares import KV_ROOM, with_room
from fleet.messages import QuotaReport, QuotaShare
from fleet.quota_leases import DRIFT_S
from fleet.quota_shares import FIELDS, Counted, counts_of, in_use, is_same


@dataclass(slots=True)
class Known:
    """What the leader knows of one gateway. Shares, needs and use are by tenant, and of the nodes' room."""

    boot_id: str | None = None
    digest: str | None = None
    at_s: float = 0.0
    heard_s: float = 0.0
    shares: dict[str, QuotaShare] = field(default_factory=dict[str, QuotaShare])  # the most it may hold
    needs: dict[str, QuotaShare] = field(default_factory=dict[str, QuotaShare])
    in_use: dict[str, QuotaShare] = field(default_factory=dict[str, QuotaShare])  # may be above the share
    ends_s: float = 0.0
    rises_s: float = 0.0
    left_s: float = 0.0  # of its leases, as it said; 0: it holds none
    is_heard: bool = False  # in this pass
    is_renewed: bool = False
    ask_again_s: float = 0.0
    has_room: bool = False  # it can be lent a part of the nodes' room

    def holds_lease(self, assigned: Mapping[str, Counted]) -> bool:
        """Say whether any share differs from the assignment's."""
        return any(
            name in assigned and not is_same(held, assigned[name]) for name, held in self.shares.items()
        )

    def take_in(self, report: QuotaReport, sent_s: float, heard_s: float) -> None:
        """Note what a gateway answered at `heard_s` to what was sent at `sent_s`."""
        self.boot_id, self.digest, self.at_s = report.boot_id, report.digest, report.at_s
        self.heard_s, self.is_heard = heard_s, True
        self.has_room = report.kv_room is not None
        uses = report.tenants if report.kv_room is None else {**report.tenants, KV_ROOM: report.kv_room}
        self.shares = {name: use.share for name, use in uses.items()}
        self.needs = {name: use.need for name, use in uses.items()}
        self.in_use = {name: in_use(use) for name, use in uses.items()}
        self.ends_s = heard_s + report.ends_in_s + DRIFT_S
        self.rises_s = sent_s + report.rises_in_s
        self.left_s = report.rises_in_s


def assigned_shares(place: Place) -> Mapping[str, Counted]:
    """Return what a gateway is assigned: by tenant, and its part of the nodes' room."""
    return {} if place.target is None else with_room(place.target.assignment)


def assigned_share(place: Place, tenant: str) -> QuotaShare:
    """Return one of `assigned_shares`."""
    return counts_of(assigned_shares(place)[tenant])


def is_one_quota(places: Sequence[Place], tenant: str) -> bool:
    """Say whether all gateways are assigned parts of one and the same quota."""
    assignments = [place.target.assignment for place in places if place.target is not None]
    if tenant == KV_ROOM:
        return len({one.kv_share_ratio for one in assignments}) == 1
    return (
        len({tuple(getattr(one.policy.tenants[tenant], part) for part in FIELDS) for one in assignments})
        == 1
    )
