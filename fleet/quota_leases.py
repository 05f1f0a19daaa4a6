"""Who may use how much of a quota, and for how long: the sums behind quota leases. Pure.

Counts are tokens or requests, times seconds on the granter's monotonic clock. A gateway's *safe* share is
its even part from the assignment: the safe shares sum to the quota. A *lease* puts another share in its
place: more than the safe share for `LEASE_S`, or less for `HOLD_S`, which is longer, so that who borrowed
has given back before who lent takes back. A *claim* is the most a gateway may be using: what it holds,
what was sent to it and not confirmed, and what it returns to by itself. Prevents: gateways that together
use more than a quota while demand moves, messages are lost, or the granter changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fleet.messages import QuotaShare
from fleet.quota_shares import FIELDS, counts_tuple
from fleet.shares import split

#: A share above the safe one ends so long after it was sent, at the latest.
LEASE_S = 15.0
#: A share below the safe one rises again so long after it was sent, at the earliest less one call.
HOLD_S = 25.0
#: Leases are renewed this often.
RENEW_S = 5.0
#: After shares moved needs are looked at again so soon: what was heard was partly of the time before.
AGAIN_S = 2.5
#: Two clocks may drift by so much while a lease lasts (3 %).
DRIFT_S = 0.5
#: The part of its safe share that a gateway without need keeps, so that its first requests find some.
KEPT = 10


class Holder(NamedTuple):
    """One gateway's standing with one quota."""

    safe: int  # its even part; the parts sum to the quota
    claim: int  # the most it may use until what is sent now has run out
    need: int  # what it could use, from what it was asked for lately
    is_open: bool = True  # it answers now and may be given another share


def targets(holders: Sequence[Holder]) -> tuple[int, ...]:
    """Return the share each gateway should come to; with the claims of closed ones they sum to the quota.

    Each open gateway keeps a tenth of its safe share. Where everybody's safe share is enough they get that;
    where what they hold is enough nothing moves. Else needs are met smallest first (max-min fairness), and
    what nobody needs is spread evenly. A closed gateway's entry is its claim. If closed ones claim the
    whole quota, the open ones get 0.
    Source: max-min fairness, Bertsekas and Gallager, Data Networks (1992), 6.5.2.
    """
    quota = sum(holder.safe for holder in holders)
    open_places = [place for place, holder in enumerate(holders) if holder.is_open]
    left = max(0, quota - sum(holder.claim for holder in holders if not holder.is_open))
    made = [holder.claim for holder in holders]
    if not open_places:
        return tuple(made)
    safe = [holders[place].safe for place in open_places]
    needs = [holders[place].need for place in open_places]
    floors = [-(-holders[place].safe // KEPT) for place in open_places]
    if sum(floors) > left:
        floors = [0] * len(open_places)
    least = [max(need, floor) for need, floor in zip(needs, floors, strict=True)]
    for enough in (safe, [holders[place].claim for place in open_places]):
        if sum(enough) == left and all(part <= has for part, has in zip(least, enough, strict=True)):
            for place, share in zip(open_places, enough, strict=True):
                made[place] = share
            return tuple(made)
    wanted = [max(0, need - floor) for need, floor in zip(needs, floors, strict=True)]
    shares = fair_shares(left - sum(floors), wanted)
    for place, floor, share in zip(open_places, floors, shares, strict=True):
        made[place] = floor + share
    return tuple(made)


def fair_shares(total: int, needs: Sequence[int]) -> tuple[int, ...]:
    """Return whole parts of `total` (>= 0) that sum to it: max-min fair in `needs`, the rest spread evenly.

    No part falls when its own need rises.
    """
    made = [0] * len(needs)
    left = total
    order = sorted(range(len(needs)), key=lambda place: (needs[place], place))
    for position, place in enumerate(order):
        made[place] = min(needs[place], left // (len(needs) - position))
        left -= made[place]
    for place, extra in enumerate(split(left, [1] * len(needs)) if left else ()):
        made[place] += extra
    return tuple(made)


def is_worth_moving(holders: Sequence[Holder], wanted: Sequence[int]) -> bool:
    """Say whether shares should move: claims are above the quota, or somebody gains what it needs.

    Gains of less than a twentieth of a safe share are not worth the messages.
    """
    if sum(holder.claim for holder in holders) > sum(holder.safe for holder in holders):
        return True
    if all(share == holder.safe for holder, share in zip(holders, wanted, strict=True)):
        return any(holder.claim != holder.safe for holder in holders)
    return any(
        min(holder.need, share) - holder.claim > holder.safe // 20
        for holder, share in zip(holders, wanted, strict=True)
        if holder.is_open
    )


def cuts(holders: Sequence[Holder], wanted: Sequence[int]) -> tuple[int, ...]:
    """Return the shares of the first wave: who is to have less gets that, the others what they have."""
    return tuple(
        min(holder.claim, share) if holder.is_open else holder.claim
        for holder, share in zip(holders, wanted, strict=True)
    )


def grants(holders: Sequence[Holder], wanted: Sequence[int]) -> tuple[int, ...]:
    """Return the shares of the second wave, by claims as they are after the first.

    What is handed out is what the quota has left above all claims, so that with them it never exceeds
    the quota: only what has run out or was given up moves.
    """
    left = max(0, sum(holder.safe for holder in holders) - sum(holder.claim for holder in holders))
    made = [holder.claim for holder in holders]
    for place, holder in enumerate(holders):
        if holder.is_open and wanted[place] > holder.claim:
            more = min(left, wanted[place] - holder.claim)
            made[place] += more
            left -= more
    return tuple(made)


class Standing(NamedTuple):
    """One gateway's standing with all counts of one tenant's quota."""

    safe: QuotaShare
    claim: QuotaShare
    need: QuotaShare  # its burst is not looked at: bursts follow the rates
    is_open: bool = True


Columns = Mapping[str, Sequence[Holder]]


def columns_of(standings: Sequence[Standing]) -> Columns:
    """Return the standings count by count."""
    rows = [
        (counts_tuple(one.safe), counts_tuple(one.claim), counts_tuple(one.need), one.is_open)
        for one in standings
    ]
    return {
        field: [Holder(safe[at], claim[at], need[at], is_open) for safe, claim, need, is_open in rows]
        for at, field in enumerate(FIELDS)
    }


def share_targets(standings: Sequence[Standing], columns: Columns | None = None) -> tuple[QuotaShare, ...]:
    """Return the shares the gateways should come to, all counts of one quota; see `targets`.

    `columns` are those of the standings, where they are made already.
    """
    columns = columns or columns_of(standings)
    made = {field: targets(columns[field]) for field in FIELDS if field != "burst_tokens"}
    made["burst_tokens"] = _bursts(columns, made["tokens_per_minute"])
    return _shares(made, standings)


def is_share_worth_moving(
    standings: Sequence[Standing], wanted: Sequence[QuotaShare], columns: Columns | None = None
) -> bool:
    """Say whether any count of the quota should move; see `is_worth_moving`."""
    columns = columns or columns_of(standings)
    rows = [counts_tuple(share) for share in wanted]
    return any(
        is_worth_moving(columns[field], [row[at] for row in rows]) for at, field in enumerate(FIELDS)
    )


def share_cuts(standings: Sequence[Standing], wanted: Sequence[QuotaShare]) -> tuple[QuotaShare, ...]:
    """Return the first wave's shares; see `cuts`."""
    return _wave(cuts, standings, wanted)


def share_grants(standings: Sequence[Standing], wanted: Sequence[QuotaShare]) -> tuple[QuotaShare, ...]:
    """Return the second wave's shares; see `grants`."""
    return _wave(grants, standings, wanted)


def _wave(
    rule: Callable[[Sequence[Holder], Sequence[int]], tuple[int, ...]],
    standings: Sequence[Standing],
    wanted: Sequence[QuotaShare],
) -> tuple[QuotaShare, ...]:
    columns, rows = columns_of(standings), [counts_tuple(share) for share in wanted]
    made = {field: rule(columns[field], [row[at] for row in rows]) for at, field in enumerate(FIELDS)}
    return _shares(made, standings)


def _bursts(columns: Columns, rates: Sequence[int]) -> tuple[int, ...]:
    """Return bursts in proportion to the rates of the open gateways; closed ones keep their claims."""
    holders = columns["burst_tokens"]
    bursts = [holder.claim for holder in holders]
    total = sum(holder.safe for holder in holders)
    open_places = [place for place, holder in enumerate(holders) if holder.is_open]
    left = max(0, total - sum(holder.claim for holder in holders if not holder.is_open))
    claimed = columns["tokens_per_minute"]
    is_kept = all(rate == holder.claim for rate, holder in zip(rates, claimed, strict=True))
    if not open_places or (is_kept and sum(bursts) == total):
        return tuple(bursts)
    weights = [rates[place] for place in open_places]
    parts = split(left, weights if any(weights) else [1] * len(weights))
    for place, part in zip(open_places, parts, strict=True):
        bursts[place] = part
    return tuple(bursts)


def _shares(columns: Mapping[str, Sequence[int]], standings: Sequence[Standing]) -> tuple[QuotaShare, ...]:
    """Return the rows of columns as shares; one that is as claimed is that object."""
    rows = zip(*(columns[field] for field in FIELDS), strict=True)
    return tuple(
        one.claim if row == counts_tuple(one.claim) else QuotaShare(**dict(zip(FIELDS, row, strict=True)))
        for one, row in zip(standings, rows, strict=True)
    )


@dataclass(slots=True)
class Grip:
    """What the granter knows of one share at a gateway, and how long it stands."""

    share: QuotaShare  # the most of what it said and what was sent since
    ends_s: float  # what is above the safe share is over by then
    rises_s: float  # what is below it stays until then

    def claim(self, safe: QuotaShare, now_s: float, lease_s: float = LEASE_S) -> QuotaShare:
        """Return the most the gateway may use from `now_s` until anything granted now has run out."""
        is_over = now_s >= self.ends_s
        may_rise = now_s + lease_s + DRIFT_S > self.rises_s
        if not is_over and not may_rise:
            return self.share
        counts: dict[str, int] = {}
        for field in FIELDS:
            has, even = int(getattr(self.share, field)), int(getattr(safe, field))
            if has > even:
                counts[field] = even if is_over else has
            else:
                counts[field] = even if may_rise else has
        return QuotaShare(**counts)
