"""What each gateway is to run, from policy, fleet and keys. Pure.

Quotas are split into whole shares that add up exactly; node budgets are split evenly. Tokens are counts,
ratios 0..1. Prevents: gateways that together hand out more than a quota, and a gateway list order that
gives every small tenant's only unit to the same gateway.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.errors import Conflict
from fleet.messages import Assignment, Credential, NodeTarget, TenantShare
from fleet.policy import Policy, canonical_json, parse
from fleet.shares import split

#: The counts of a tenant's quota that are split over gateways.
SPLIT_FIELDS = ("tokens_per_minute", "burst_tokens", "max_in_flight_tokens", "max_concurrent_requests")


def build(
    policy: Policy,
    revision: int,
    gateways: Sequence[str],
    nodes: Sequence[NodeTarget],
    credentials: Sequence[Credential],
    over_budget: Collection[str],
) -> dict[str, Assignment]:
    """Return the assignment of each gateway, with epoch 0 and generation 1; `Target.body` has real ones.

    `gateways` are the names that share the quotas, `over_budget` the tenants whose budget is spent. The
    same inputs give the same digests, whatever the order of gateways, nodes and credentials.
    """
    names = sorted(gateways)
    shares: dict[str, dict[str, TenantShare]] = {name: {} for name in names}
    for tenant in policy.tenants:
        for name, share in _shares(policy, tenant, names, is_over=tenant in over_budget).items():
            shares[name][tenant] = share
    ordered_nodes = tuple(sorted(nodes, key=lambda node: node.name))
    ordered_keys = tuple(sorted(credentials, key=lambda key: key.key_id))
    return {
        name: Assignment.model_construct(  # parts are checked already; checking all again is quadratic
            gateway=name,
            epoch=0,
            generation=1,
            revision=revision,
            policy=policy,
            shares=shares[name],
            kv_share_ratio=1 / len(names),
            nodes=ordered_nodes,
            credentials=ordered_keys,
        )
        for name in names
    }


@dataclass(frozen=True, slots=True)
class Target:
    """An assignment to be sent, with its digest and its canonical JSON in pieces, most of them shared."""

    assignment: Assignment
    digest: str
    pieces: tuple[bytes, ...]

    def body(self, *, epoch: int, generation: int) -> bytes:
        """Return the JSON to send: with the sender's fencing token and its generation."""
        return b'{"epoch":%d,"generation":%d,' % (epoch, generation) + b"".join(self.pieces)


def encode(built: Mapping[str, Assignment]) -> dict[str, Target]:
    """Return the assignments of one `build` with their bytes.

    Only name and shares differ between gateways: the rest is encoded once and its bytes are shared, which
    is what makes a push to a hundred gateways quick.
    """
    if not built:
        return {}
    any_one = next(iter(built.values()))
    common = content(any_one.model_copy(update={"shares": {}}))
    # Canonical JSON has its keys in order: credentials, gateway, kv_share_ratio ... schema, shares.
    first = canonical_json({"credentials": common.pop("credentials")})[1:-1] + b',"gateway":'
    del common["gateway"], common["shares"]
    middle = b"," + canonical_json(common)[1:-1] + b',"shares":'
    made: dict[str, Target] = {}
    for name, assignment in built.items():
        shares = {tenant: share.model_dump(mode="json") for tenant, share in assignment.shares.items()}
        pieces = (first, json.dumps(name).encode(), middle, canonical_json(shares), b"}")
        digest = hashlib.sha256(b"{")
        for piece in pieces:
            digest.update(piece)
        made[name] = Target(assignment, digest.hexdigest(), pieces)
    return made


class Targets:
    """Assignments as they were last built, kept while nothing they were made from changes.

    A policy of 2,000 tenants over 16 gateways takes about two seconds to build and digest, and passes
    come every second. Holds the newest four builds. Not for use by two threads at once.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], dict[str, Target]] = {}
        self._read: dict[int, tuple[object, Policy, str]] = {}  # by revision: document, policy, its digest

    def policy(self, revision: int, document: object) -> Policy:
        """Return what `parse` makes of a revision's document, the same object while that is the same.

        Raises InvalidPolicy as `parse` does.
        """
        kept = self._read.get(revision)
        if kept is not None and kept[0] == document:
            return kept[1]
        policy = parse(document)
        while len(self._read) >= 4:
            del self._read[next(iter(self._read))]
        self._read[revision] = (document, policy, policy.digest())
        return policy

    def of(
        self,
        policy: Policy,
        revision: int,
        gateways: Sequence[str],
        nodes: Sequence[NodeTarget],
        credentials: Sequence[Credential],
        over_budget: Collection[str],
    ) -> dict[str, Target]:
        """Return what `build` makes of the same arguments, with digests."""
        kept = self._read.get(revision)
        key = (
            kept[2] if kept is not None and kept[1] is policy else policy.digest(),
            revision,
            frozenset(gateways),
            frozenset(nodes),
            frozenset(credentials),
            frozenset(over_budget),
        )
        found = self._kept.pop(key, None)
        if found is None:
            found = encode(build(policy, revision, gateways, nodes, credentials, over_budget))
        self._kept[key] = found  # newest last
        while len(self._kept) > 4:
            del self._kept[next(iter(self._kept))]
        return found


def content(assignment: Assignment) -> dict[str, Any]:
    """Return the JSON form without epoch and generation: what is stored, and what the digest covers."""
    return assignment.model_dump(mode="json", by_alias=True, exclude={"epoch", "generation"})


def must_wait(
    desired: Mapping[str, Mapping[str, TenantShare]], held: Mapping[str, Mapping[str, TenantShare]]
) -> set[str]:
    """Return the gateways whose larger shares would, with what others still hold, exceed what is desired.

    Both map gateway to tenant to share. A gateway absent from `held` holds nothing. Push to the others
    first; ask again with what they hold then.
    """
    waiting: set[str] = set()
    tenants = {tenant for shares in desired.values() for tenant in shares}
    for tenant in tenants:
        for field in SPLIT_FIELDS:
            wanted = {name: _count(shares, tenant, field) for name, shares in desired.items()}
            has = {name: _count(held.get(name, {}), tenant, field) for name in desired}
            total, used = sum(wanted.values()), sum(has.values())
            waiting |= {
                name
                for name, count in wanted.items()
                if count > has[name] and used - has[name] + count > total
            }
    return waiting


def may_hold(held: Mapping[str, TenantShare], sent: Mapping[str, TenantShare]) -> dict[str, TenantShare]:
    """Return the most a gateway may hold after a push whose outcome is not known: before or after it."""
    found = dict(held)
    for tenant, share in sent.items():
        before = held.get(tenant)
        if before is None:
            found[tenant] = share
        else:
            counts = {part: max(getattr(before, part), getattr(share, part)) for part in SPLIT_FIELDS}
            found[tenant] = before.model_copy(update=counts)
    return found


def must_give_up(
    desired: Mapping[str, Mapping[str, TenantShare]], held: Mapping[str, Mapping[str, TenantShare]]
) -> set[str]:
    """Return the gateways that hold more of some quota than is desired for them."""
    return {
        name
        for name, shares in desired.items()
        for tenant in {*shares, *held.get(name, {})}
        for field in SPLIT_FIELDS
        if _count(held.get(name, {}), tenant, field) > _count(shares, tenant, field)
    }


def _count(shares: Mapping[str, TenantShare], tenant: str, field: str) -> int:
    share = shares.get(tenant)
    return 0 if share is None else int(getattr(share, field))


def _shares(policy: Policy, tenant: str, names: Sequence[str], *, is_over: bool) -> dict[str, TenantShare]:
    """Split one tenant's quota. The first place rotates by tenant, so leftover units spread out."""
    if not names:
        raise Conflict(
            "there is no gateway to share the quotas", hint="Add one with `rhodeck gateways add`"
        )
    quota = policy.tenants[tenant]
    start = zlib.crc32(tenant.encode()) % len(names)
    rotated = [*names[start:], *names[:start]]
    parts = {field: split(getattr(quota, field), [1] * len(names)) for field in SPLIT_FIELDS}
    return {
        name: TenantShare(**{field: parts[field][place] for field in SPLIT_FIELDS}, over_budget=is_over)
        for place, name in enumerate(rotated)
    }
