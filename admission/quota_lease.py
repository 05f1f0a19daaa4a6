"""The leases this gateway holds on quotas: taken, ended by its own clock, kept over a restart.

Owns what stands in the place of the assignment's shares, and `quota_lease.json` in the state folder. Times
are seconds on the monotonic clock. A share above the assignment's ends first, one below it rises later
(see `fleet.quota_leases`). Prevents: a larger share that outlives the controller that lent it, one that a
late message prolongs, and a restart that takes back what was lent to another gateway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from admission.durable import write_whole
from fleet.accounts import Accounts
from fleet.clock import Clock
from fleet.errors import InvalidInput, StaleAssignment, Unavailable
from fleet.gate_snapshot import GateSnapshot
from fleet.kv_shares import KV_ROOM, lent_ratio, parts_of, room_use, with_room
from fleet.messages import Assignment, QuotaLease, QuotaReport, QuotaShare, QuotaUse, TenantShare
from fleet.policy import pointer_of
from fleet.quota_leases import HOLD_S
from fleet.quota_needs import Needs
from fleet.quota_shares import FIELDS, counts_of, is_same, least

log = logging.getLogger(__name__)

FILE_NAME = "quota_lease.json"
MAX_LEASE_BYTES = 2_000_000
#: Ends of leases are looked for this often.
LOOK_S = 0.2


class Kept(BaseModel):
    """What the file holds: shares that were lent, for a process that starts again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shares: dict[str, QuotaShare] = Field(max_length=100_000)


@dataclass(slots=True)
class QuotaLeases:
    """The leases of one gateway process."""

    name: str
    boot_id: str
    folder: Path
    accounts: Accounts
    clock: Clock
    ends_s: float = 0.0  # shares above the assigned ones end
    rises_s: float = 0.0  # shares below them rise
    lent: dict[str, QuotaShare] = field(default_factory=dict[str, QuotaShare])
    room: Callable[[], GateSnapshot] | None = None  # how full nodes are; None: their room is not lent
    on_room: Callable[[Assignment], None] | None = None  # another part of it is in force
    _ratio: float = 0.0  # the part of the nodes' room that the gate has
    _whole: frozenset[str] = frozenset()  # tenants whose quota is counted elsewhere
    _needs: Needs = field(default_factory=Needs)
    _assignment: Assignment | None = None
    _digest: str | None = None
    _newest: tuple[int, int] = (-1, -1)
    _kept: dict[str, QuotaShare] | None = None  # as on disk
    _taking: asyncio.Lock = field(default_factory=asyncio.Lock)

    # -- messages -----------------------------------------------------------------------------------

    async def take(self, lease: QuotaLease) -> QuotaReport:
        """Put a lease in force, unless it only asks, and report.

        Raises StaleAssignment for a message older than the newest, InvalidInput for one that is not ours,
        Unavailable if the disk refuses it; then nothing changed. One for another process of this name or
        another assignment, or that came too late, changes nothing: the report says what is held.
        """
        async with self._taking:
            self._check(lease)
            now_s = self.clock.monotonic_s()
            self.look(now_s)
            ends_s = max(self.ends_s, lease.asked_at_s + lease.lease_s)
            rises_s = max(self.rises_s, lease.asked_at_s + lease.hold_s)
            if self._is_meant(lease) and now_s < rises_s and ends_s <= rises_s:
                room = {} if lease.kv_room is None else {KV_ROOM: lease.kv_room}
                lent = self._known({**self.lent, **lease.shares, **room})
                await self._keep(lent)
                if self._is_meant(lease):  # an assignment may have come while the disk was written
                    self.lent, self.ends_s, self.rises_s = lent, ends_s, rises_s
                    self._apply(self.clock.monotonic_s())
                    self.look(self.clock.monotonic_s())
            return self.report()

    def _is_meant(self, lease: QuotaLease) -> bool:
        """Say whether a lease is for this process and for the split it runs now."""
        return lease.boot_id == self.boot_id and lease.digest == self._digest

    def _check(self, lease: QuotaLease) -> None:
        if lease.gateway != self.name:
            raise InvalidInput(
                f"the lease is for gateway {lease.gateway!r}, this one is {self.name!r}", field="/gateway"
            )
        if lease.asked_at_s > self.clock.monotonic_s():
            raise InvalidInput(
                "the lease answers a report that is not made yet", field="/asked_at_s", hint="Ask first"
            )
        held = self._assignment
        if (lease.epoch, lease.number) <= self._newest or (held is not None and lease.epoch < held.epoch):
            raise StaleAssignment(
                f"lease {lease.epoch}/{lease.number} is older than what was taken",
                hint="A newer controller has taken over; do not lend again from this one",
            )
        self._newest = (lease.epoch, lease.number)

    def report(self) -> QuotaReport:
        """Return what is held and needed now."""
        now_s = self.clock.monotonic_s()
        return QuotaReport.model_construct(
            gateway=self.name,
            boot_id=self.boot_id,
            at_s=now_s,
            digest=self._digest,
            tenants=self._needs.uses(self.accounts, self._held(), now_s),
            ends_in_s=max(0.0, self.ends_s - now_s) if self.lent else 0.0,
            rises_in_s=max(0.0, self.rises_s - now_s) if self.lent else 0.0,
            kv_room=self._room_use(),
        )

    def _room_use(self) -> QuotaUse | None:
        if self.room is None or self._assignment is None:
            return None
        assigned = parts_of(self._assignment.kv_share_ratio)
        return room_use(self.room(), self.lent.get(KV_ROOM, assigned))

    @property
    def room_ratio(self) -> float | None:
        """Return the part of each node's room in force; None before an assignment."""
        return None if self._assignment is None else self._ratio

    def in_force(self, assignment: Assignment) -> Assignment:
        """Return an assignment with the part of the nodes' room that is lent in the place of its own."""
        ratio = lent_ratio(self.lent, assignment)
        if ratio == assignment.kv_share_ratio:
            return assignment
        return assignment.model_copy(update={"kv_share_ratio": ratio})

    def _held(self) -> dict[str, QuotaShare]:
        """Return the shares of tenants whose account shows something else, or that are not as assigned."""
        if self._assignment is None:
            return self.lent
        assigned = self._assignment.shares
        whole = {name: counts_of(assigned[name]) for name in self._whole if name in assigned}
        return whole | self.lent

    # -- assignments --------------------------------------------------------------------------------

    def rebase(self, assignment: Assignment, digest: str) -> None:
        """Take in a new assignment, before the gate does.

        Where it splits a quota anew, what was lent above the new share or the old lease is void: others
        may be given it now. At the first one since the start, what an earlier process had lent away stays
        away as long as it may be in use.
        """
        now_s, before = self.clock.monotonic_s(), self._assignment
        self._assignment, self._digest = assignment, digest
        if before is None:
            parts = with_room(assignment)
            self.lent = {
                name: least(share, parts[name]) for name, share in self._load().items() if name in parts
            }
            self.ends_s, self.rises_s = now_s, now_s + HOLD_S
        else:
            self.look(now_s, before)
            parts = with_room(assignment)
            self.lent = {
                name: least(share, parts[name]) if _is_resplit(name, before, assignment) else share
                for name, share in self.lent.items()
                if name in parts
            }
        self.lent = self._known(self.lent)
        self._ratio = lent_ratio(self.lent, assignment)  # the gate takes it in with the assignment
        self.accounts.lend(self._shares(), before.shares if before else {}, now_s, self._whole)

    def look(self, now_s: float, assignment: Assignment | None = None) -> None:
        """End what has run out."""
        held = assignment or self._assignment
        if held is None or not self.lent:
            return
        if now_s >= self.rises_s:
            log.info("quota leases ended", extra={"tenants": len(self.lent)})
            self.lent = {}
        else:
            if now_s < self.ends_s:
                return
            parts = with_room(held)
            left = {name: least(share, parts[name]) for name, share in self.lent.items()}
            if left == self.lent:
                return
            self.lent = self._known(left)
        self.accounts.lend(self._shares(), held.shares, now_s, self._whole)
        if assignment is None:  # else the gate takes in a new one right after
            self._say_room()

    def _known(self, lent: Mapping[str, QuotaShare]) -> dict[str, QuotaShare]:
        """Return the leases that differ from the assignment's shares."""
        assigned = {} if self._assignment is None else with_room(self._assignment)
        return {
            name: share
            for name, share in lent.items()
            if name in assigned and not is_same(share, assigned[name])
        }

    def _apply(self, now_s: float) -> None:
        if self._assignment is not None:
            self.accounts.lend(self._shares(), self._assignment.shares, now_s, self._whole)
            self._say_room()

    def _say_room(self) -> None:
        """Have the gate take in another part of the nodes' room."""
        if self._assignment is None or self.on_room is None:
            return
        ratio = lent_ratio(self.lent, self._assignment)
        if ratio != self._ratio:
            self._ratio = ratio
            self.on_room(self._assignment)

    def set_whole(self, tenants: frozenset[str]) -> None:
        """Have the gate hold these tenants to their whole quota: somebody else counts it."""
        self._whole = tenants
        self._apply(self.clock.monotonic_s())

    def _shares(self) -> dict[str, TenantShare]:
        if self._assignment is None:
            return {}
        assigned, tenants = self._assignment.shares, self._assignment.policy.tenants
        whole = {
            name: TenantShare(
                **{part: getattr(tenants[name], part) for part in FIELDS},
                over_budget=assigned[name].over_budget,
            )
            for name in self._whole
            if name in tenants
        }
        return whole | {
            name: TenantShare(
                **{part: getattr(share, part) for part in FIELDS}, over_budget=assigned[name].over_budget
            )
            for name, share in self.lent.items()
            if name not in whole and name in assigned
        }

    # -- over a restart -----------------------------------------------------------------------------

    async def _keep(self, lent: dict[str, QuotaShare]) -> None:
        """Have the leases on disk before they are confirmed."""
        if lent == self._kept or (not lent and self._kept is None):
            return
        content = Kept.model_construct(shares=lent).model_dump_json().encode()
        try:
            await asyncio.to_thread(write_whole, self.folder / FILE_NAME, content)
        except OSError as exc:
            raise Unavailable(
                f"the lease cannot be kept on disk: {exc.strerror}", hint="Free space in --state-dir"
            ) from exc
        self._kept = lent

    def _load(self) -> dict[str, QuotaShare]:
        try:
            self._kept = dict(Kept.model_validate_json((self.folder / FILE_NAME).read_bytes()).shares)
        except FileNotFoundError:
            return {}
        except (OSError, ValidationError) as exc:
            log.error("quota leases cannot be read; none are held", extra={"reason": type(exc).__name__})
            return {}
        return self._kept

    async def run(self) -> None:
        """End what has run out, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look(self.clock.monotonic_s())


async def answer_lease(leases: QuotaLeases, body: bytes) -> bytes:
    """Return the report to a lease as JSON. Raises InvalidInput, and what `QuotaLeases.take` raises."""
    try:
        lease = QuotaLease.model_validate_json(body, strict=True)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        raise InvalidInput(f"not a quota lease: {first['msg']}", field=pointer_of(first["loc"])) from exc
    return (await leases.take(lease)).model_dump_json(by_alias=True).encode()


def _is_resplit(name: str, before: Assignment, after: Assignment) -> bool:
    """Say whether a tenant's quota, or the number of gateways that share it, changed."""
    if before.kv_share_ratio != after.kv_share_ratio:
        return True
    if name == KV_ROOM:
        return False
    if name not in before.shares:
        return True
    if not is_same(before.shares[name], after.shares[name]):
        return True
    old, new = before.policy.tenants.get(name), after.policy.tenants.get(name)
    return old is None or new is None or not is_same(old, new)
