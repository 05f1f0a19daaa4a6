"""Lends quotas between gateways: every five seconds asks what each needs, cuts first, grants then.

Owns the leader's memory of who holds what; nothing of it is stored, for a successor asks the gateways.
Times are seconds on the monotonic clock, counts tokens and requests. Only gateways that hold a lease are
renewed and only those whose share changes get another message. Prevents: a lost message, a gateway out of
reach or a new leader making gateways use more than a quota together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from control import gateways, reconcile_store
from control.deps import Deps
from control.quota_known import Known, assigned_share, assigned_shares, is_one_quota
from control.reconcile_store import Place
from fleet.errors import FleetError, StaleAssignment
from fleet.kv_shares import KV_ROOM
from fleet.messages import QuotaLease, QuotaReport, QuotaShare
from fleet.quota_leases import (
    AGAIN_S,
    DRIFT_S,
    HOLD_S,
    LEASE_S,
    RENEW_S,
    Grip,
    Standing,
    columns_of,
    is_share_worth_moving,
    share_cuts,
    share_grants,
    share_targets,
)
from fleet.quota_shares import (
    NOTHING,
    Counted,
    counts_of,
    counts_tuple,
    is_above,
    is_same,
    least,
    most,
    raised,
)

log = logging.getLogger(__name__)

Send = Callable[[Place, QuotaLease], Awaitable[QuotaReport | None]]
Load = Callable[[], Awaitable[Sequence[Place]]]
#: A gateway of a release without leases is asked again after so long.
ASK_OLD_AGAIN_S = 60.0


class QuotaLeases:
    """The lending of one controller process."""

    def __init__(
        self,
        deps: Deps,
        *,
        send: Send | None = None,
        load: Load | None = None,
        lease_s: float = LEASE_S,
        hold_s: float = HOLD_S,
    ) -> None:
        """`send` and `load` stand for network and database; the times as in `fleet.quota_leases`."""
        self._deps = deps
        self._send_one = send or self._post
        self._load = load or self._read
        self._lease_s = lease_s
        self._hold_s = hold_s
        self._epoch: int | None = None
        self._number = 0
        self._learns_until_s = 0.0
        self._due_s = 0.0
        self._digests: dict[str, str | None] = {}
        self._safe: dict[tuple[str, str], tuple[Counted, QuotaShare]] = {}
        self._known: dict[str, Known] = {}

    async def tick(self) -> str:
        """Make a pass if it is time and return the line to log: '2 of 3 gateways hold leases'.

        Call it every `AGAIN_S`: a pass is due every `RENEW_S`, and at the next call after shares moved.
        """
        deps = self._deps
        epoch = deps.leadership.current(deps.clock)
        if epoch is None:
            self._epoch = None
            return ""
        if epoch != self._epoch:  # what the one before granted is not known: nothing more until it ran out
            self._epoch, self._number, self._known = epoch, 0, {}
            self._learns_until_s, self._due_s = self._now_s() + self._lease_s + DRIFT_S, 0.0
        if self._now_s() < self._due_s:
            return ""
        self._due_s = self._now_s() + RENEW_S - AGAIN_S / 2
        places = await self._load()
        if len(places) < 2 or any(place.target is None for place in places):
            return ""
        try:
            return await self._pass(places)
        except StaleAssignment as exc:
            log.warning("quota lease refused as stale", extra={"epoch": epoch, "reason": exc.message})
            return "another controller lends"

    async def _pass(self, places: Sequence[Place]) -> str:
        assigned = {place.name: assigned_shares(place) for place in places}
        self._forget(assigned)
        await self._ask(places, assigned)
        await self._hold(places, assigned)
        wanted: dict[str, tuple[QuotaShare, ...]] = {}
        if self._now_s() >= self._learns_until_s:
            wanted = self._wanted(places, assigned)
        await self._send(places, self._changes(places, assigned, wanted, is_grant=False))
        await self._renew(places, assigned)
        await self._send(places, self._changes(places, assigned, wanted, is_grant=True))
        holding = sum(self._known[place.name].holds_lease(assigned[place.name]) for place in places)
        if wanted:
            self._due_s = 0.0
            log.debug("quotas moved", extra={"tenants": ", ".join(sorted(wanted)[:20])})
        return f"{holding} of {len(places)} gateways hold leases" if holding else ""

    def _now_s(self) -> float:
        return self._deps.clock.monotonic_s()

    def _forget(self, assigned: Mapping[str, Mapping[str, Counted]]) -> None:
        """Drop gateways that left the registry once what was lent to them has run out."""
        now_s = self._now_s()
        for name in [name for name in self._known if name not in assigned]:
            if self._known[name].ends_s <= now_s:
                del self._known[name]
        for name in assigned:
            self._known.setdefault(name, Known())

    # -- talking ------------------------------------------------------------------------------------

    async def _ask(self, places: Sequence[Place], assigned: Mapping[str, Mapping[str, Counted]]) -> None:
        """Hear every gateway; renew on the way what may stay as it is.

        One that did not answer last time is only asked: what it holds is to run out.
        """
        now_s = self._now_s()
        may_renew = self._stands(places, now_s) or self._fits(places, assigned)
        due = [place for place in places if self._known[place.name].ask_again_s <= now_s]
        renewed = {name for name, known in self._known.items() if may_renew and known.is_heard}
        for known in self._known.values():
            known.is_heard = known.is_renewed = False
        await asyncio.gather(
            *(
                self._call(place, {}, lease_s=self._lease_s if place.name in renewed else None)
                for place in due
            )
        )

    async def _hold(self, places: Sequence[Place], assigned: Mapping[str, Mapping[str, Counted]]) -> None:
        """Have those who lent go on without it, before anybody is renewed on the strength of that."""
        until_s = self._now_s() + self._lease_s + DRIFT_S
        late = [
            place
            for place in places
            if (known := self._known[place.name]).is_heard
            and known.rises_s < until_s
            and known.holds_lease(assigned[place.name])
        ]
        await asyncio.gather(*(self._call(place, {}, lease_s=0.0) for place in late))

    async def _renew(self, places: Sequence[Place], assigned: Mapping[str, Mapping[str, Counted]]) -> None:
        """Renew what is held and was not renewed on the way."""
        left = [
            place
            for place in places
            if (known := self._known[place.name]).is_heard
            and not known.is_renewed
            and known.holds_lease(assigned[place.name])
        ]
        if left and self._fits(places, assigned):
            await asyncio.gather(*(self._call(place, {}, lease_s=self._lease_s) for place in left))

    async def _send(self, places: Sequence[Place], changes: Mapping[str, dict[str, QuotaShare]]) -> None:
        changed = [place for place in places if changes.get(place.name)]
        await asyncio.gather(
            *(self._call(place, changes[place.name], lease_s=self._lease_s) for place in changed)
        )

    async def _call(self, place: Place, shares: dict[str, QuotaShare], *, lease_s: float | None) -> None:
        """Send one message and take in the report. A failure leaves the most that may be held.

        `lease_s` None only asks; 0 prolongs what is below the assigned share and nothing above it.
        """
        known, sent_s = self._known[place.name], self._now_s()
        self._number += 1
        message = QuotaLease(gateway=place.name, epoch=self._epoch or 0, number=self._number)
        if lease_s is not None and known.boot_id is not None:
            age_s = sent_s - known.heard_s
            message = message.model_copy(
                update={
                    "boot_id": known.boot_id,
                    "digest": known.digest,
                    "asked_at_s": known.at_s,
                    "lease_s": lease_s + age_s if lease_s else 0.0,
                    "hold_s": self._hold_s + age_s,
                    "shares": shares,
                }
            )
            if KV_ROOM in shares:
                tenants = {name: share for name, share in shares.items() if name != KV_ROOM}
                message = message.model_copy(update={"shares": tenants, "kv_room": shares[KV_ROOM]})
            for tenant, share in shares.items():
                held = known.shares.get(tenant) or assigned_share(place, tenant)
                known.shares[tenant] = most(held, share)
            if lease_s:
                known.ends_s = max(known.ends_s, sent_s + lease_s + DRIFT_S)
        try:
            report = await self._send_one(place, message)
        except StaleAssignment:
            raise
        except FleetError as exc:
            if known.is_heard or known.heard_s:
                log.debug("no quota report", extra={"gateway": place.name, "reason": exc.message})
            known.is_heard = False
            return
        if report is None:
            known.ask_again_s = sent_s + ASK_OLD_AGAIN_S
            return
        known.take_in(report, sent_s, self._now_s())
        known.is_renewed |= bool(lease_s) and message.boot_id is not None

    async def _post(self, place: Place, message: QuotaLease) -> QuotaReport | None:
        deps = self._deps
        return await gateways.lease(
            deps.http(),
            place.name,
            place.url,
            message,
            token=deps.admin_token,
            deadline_s=deps.call_deadline_s,
        )

    async def _read(self) -> Sequence[Place]:
        return await asyncio.to_thread(reconcile_store.load, self._deps, self._deps.clock.now())

    # -- deciding -----------------------------------------------------------------------------------

    def _standings(
        self, places: Sequence[Place], assigned: Mapping[str, Mapping[str, Counted]], tenant: str
    ) -> list[Standing]:
        """Return each gateway's standing with a tenant's quota, those that left last."""
        now_s = self._now_s()
        made = [self._standing(place, assigned[place.name], tenant, now_s) for place in places]
        for name, known in self._known.items():
            if name not in assigned and tenant in known.shares:
                made.append(Standing(NOTHING, known.shares[tenant], NOTHING, is_open=False))
        return made

    def _standing(
        self, place: Place, assigned: Mapping[str, Counted], tenant: str, now_s: float
    ) -> Standing:
        known, safe = self._known[place.name], self._safe_of(place.name, tenant, assigned[tenant])
        need = known.needs.get(tenant, NOTHING) if known.is_heard else NOTHING
        held = known.shares.get(tenant)
        if tenant == KV_ROOM and not known.has_room:  # not heard yet, or of another release
            return Standing(safe, safe, NOTHING, is_open=False)
        if known.is_heard and known.digest != place.digest:  # an assignment is on its way to it
            return Standing(safe, most(held or safe, safe), need, is_open=False)
        if held is None:
            return Standing(safe, safe, need, is_open=known.is_heard)
        claim = Grip(held, known.ends_s, known.rises_s).claim(safe, now_s, self._lease_s)
        if known.is_heard or now_s < known.ends_s:  # what runs is not stopped: it counts until it has ended
            running = known.in_use.get(tenant, NOTHING)
            claim = claim if running is NOTHING else most(claim, running)
        return Standing(safe, claim, need, is_open=known.is_heard)

    def _safe_of(self, name: str, tenant: str, assigned: Counted) -> QuotaShare:
        """Return the counts of an assigned share, made once while it is the same."""
        kept = self._safe.get((name, tenant))
        if kept is None or kept[0] is not assigned:
            kept = self._safe[(name, tenant)] = (assigned, counts_of(assigned))
        return kept[1]

    def _fits(self, places: Sequence[Place], assigned: Mapping[str, Mapping[str, Counted]]) -> bool:
        """Say whether what is held may stay: no quota is claimed beyond what it is."""
        for tenant in self._lent(assigned):
            standings = self._standings(places, assigned, tenant)
            claimed = zip(*(counts_tuple(standing.claim) for standing in standings), strict=True)
            safe = zip(*(counts_tuple(standing.safe) for standing in standings), strict=True)
            if any(sum(claims) > sum(parts) for claims, parts in zip(claimed, safe, strict=True)):
                return False
        return True

    def _stands(self, places: Sequence[Place], now_s: float) -> bool:
        """Say whether all is as the last pass left it, which fitted: all heard, nothing split anew."""
        until_s = now_s + self._lease_s + DRIFT_S
        digests = {place.name: place.digest for place in places}
        before, self._digests = self._digests, digests
        return before == digests and all(
            known.is_heard and (known.rises_s >= until_s or not known.left_s)
            for known in self._known.values()
        )

    def _lent(self, assigned: Mapping[str, Mapping[str, Counted]]) -> list[str]:
        """Return the tenants whose quota is not split as assigned."""
        found = {
            tenant
            for name, known in self._known.items()
            for tenant, held in known.shares.items()
            if name not in assigned
            or (tenant in assigned[name] and not is_same(held, assigned[name][tenant]))
        }
        return sorted(tenant for tenant in found if all(tenant in shares for shares in assigned.values()))

    def _wanted(
        self, places: Sequence[Place], assigned: Mapping[str, Mapping[str, Counted]]
    ) -> dict[str, tuple[QuotaShare, ...]]:
        """Return the shares to come to of each tenant whose quota should move."""
        short = {
            tenant
            for known in self._known.values()
            if known.is_heard
            for tenant, need in known.needs.items()
            if is_above(need, known.shares[tenant])
        }
        made: dict[str, tuple[QuotaShare, ...]] = {}
        for tenant in sorted(short.union(self._lent(assigned))):
            if not all(tenant in shares for shares in assigned.values()):
                continue
            standings = self._standings(places, assigned, tenant)
            columns = columns_of(standings)
            if is_one_quota(places, tenant):
                wanted = share_targets(standings, columns)
            else:  # a rollout changes it: until it is through each has its even part
                wanted = tuple(standing.safe for standing in standings)
            if is_share_worth_moving(standings, wanted, columns):
                made[tenant] = wanted
        return made

    def _changes(
        self,
        places: Sequence[Place],
        assigned: Mapping[str, Mapping[str, Counted]],
        wanted: Mapping[str, tuple[QuotaShare, ...]],
        *,
        is_grant: bool,
    ) -> dict[str, dict[str, QuotaShare]]:
        """Return the shares to send in a wave, by gateway and tenant."""
        changes: dict[str, dict[str, QuotaShare]] = {}
        rule = share_grants if is_grant else share_cuts
        for tenant, goal in wanted.items():
            standings = self._standings(places, assigned, tenant)
            for place, standing, share in zip(places, standings, rule(standings, goal), strict=False):
                if not standing.is_open:
                    continue
                held = self._known[place.name].shares.get(tenant, standing.safe)
                new = raised(held, standing.claim, share) if is_grant else least(held, share)
                if new != held:
                    changes.setdefault(place.name, {})[tenant] = new
        return changes
