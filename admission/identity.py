"""Who is calling: tenant and key from the bearer credential, tier from one request header.

Keys are looked up by their sha256, those that were used before by a quicker digest; the key itself is
never stored or logged. Prevents: a tenant, tier or priority claimed by a header, a doubled header read one
way here and another way behind us.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fleet.errors import Forbidden, InvalidInput, Unauthenticated
from fleet.messages import Credential
from fleet.outcomes import Tier
from fleet.policy import Policy

Headers = list[tuple[bytes, bytes]]

AUTHORIZATION: Final = b"authorization"
TIER_HEADER: Final = b"x-rhodeck-tier"
MAX_CALLERS: Final = 20_000  # kept ready; a key ring lives as long as its assignment
_digest: Final = hashlib.blake2b


def single_header(headers: Headers, name: bytes) -> str | None:
    """Return the header's value, or None. Raises InvalidInput if it is given twice or is not ASCII."""
    found: bytes | None = None
    for key, value in headers:
        if key == name:
            if found is not None:
                raise InvalidInput(f"header {name.decode()} is given more than once", hint="Send it once")
            found = value
    if found is None:
        return None
    try:
        return found.decode("ascii").strip()
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"header {name.decode()} is not plain ASCII") from exc


def bearer(headers: Headers) -> str:
    """Return the bearer token of a request. Raises Unauthenticated if there is none."""
    value = single_header(headers, AUTHORIZATION) or ""
    scheme, _, token = value.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated(
            "no API key in the request", hint="Send the header Authorization: Bearer <your key>"
        )
    return token


class KeyRing:
    """The credentials of one assignment."""

    def __init__(self, credentials: Iterable[Credential]) -> None:
        self._by_digest = {credential.sha256: credential for credential in credentials}
        #: By the blake2b of the credential as it was sent, and the tier as it was asked for.
        self.callers: dict[tuple[bytes, bytes | None], Caller] = {}

    def holder(self, digest: str) -> Credential:
        """Return whose key has this digest. Raises Unauthenticated for an unknown one."""
        found = self._by_digest.get(digest)
        if found is None:
            raise Unauthenticated("this API key is not known", hint="Ask the operator for a key")
        return found


def is_same_secret(given: str, expected: str) -> bool:
    """Compare two tokens in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())


@dataclass(frozen=True, slots=True)
class Caller:
    """A request's standing: everything the gate must know about who asks."""

    tenant: str
    key_id: str
    label: str  # the tenant's name in metrics: its own if the policy lists it, else the default tenant's
    tier: Tier  # asked for, or the tenant's own


def caller_of(headers: Headers, keys: KeyRing, policy: Policy) -> Caller:
    """Return who asks. Whether the tenant may use the tier is the gate's question.

    Raises Unauthenticated without a known key, Forbidden for a tenant the policy refuses (unlisted and
    no default), InvalidInput for doubled headers or a tier that does not exist.
    """
    given: bytes | None = None
    asked: bytes | None = None
    is_clear = True
    for name, value in headers:
        if name == AUTHORIZATION:
            is_clear = is_clear and given is None
            given = value
        elif name == TIER_HEADER:
            is_clear = is_clear and asked is None
            asked = value
    if given is None or not is_clear:
        return _caller(headers, keys, policy)  # which says what is wrong
    short = _digest(given).digest()  # half the time of sha256
    known = keys.callers.get((short, asked))
    if known is None:
        known = _caller(headers, keys, policy)
        if len(keys.callers) < MAX_CALLERS:
            keys.callers[short, asked] = known
    return known


def _caller(headers: Headers, keys: KeyRing, policy: Policy) -> Caller:
    key = bearer(headers).encode()
    asked = single_header(headers, TIER_HEADER)
    credential = keys.holder(hashlib.sha256(key).hexdigest())
    quota = policy.tenant(credential.tenant)
    if quota is None:
        raise Forbidden(
            f"tenant {credential.tenant} has no quota here", hint="Ask the operator to add it to the policy"
        )
    label = credential.tenant if credential.tenant in policy.tenants else policy.default_tenant or ""
    if asked is None:
        return Caller(credential.tenant, credential.key_id, label, quota.tier)
    try:
        tier = Tier(asked.lower())
    except ValueError as exc:
        raise InvalidInput(
            f"tier {asked[:40]!r} does not exist",
            field=TIER_HEADER.decode(),
            hint=f"Tiers: {', '.join(Tier)}",
        ) from exc
    return Caller(credential.tenant, credential.key_id, label, tier)
