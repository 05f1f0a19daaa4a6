"""The policy document: who may use how much, and how the gate behaves. One document, one truth.

Tokens are counts, times are seconds, ratios are 0..1, money is USD as a decimal string. The same checks
run at page, API, database and gateway: `parse` is the only door. Prevents: a field that one side accepts
and another drops, and a policy that no gateway could enforce.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fleet.ejection import Ejection
from fleet.errors import InvalidPolicy
from fleet.limiters import Limiters
from fleet.outcomes import TIERS, Tier

SCHEMA = "rhodeck.policy/1"
MAX_DOCUMENT_BYTES = 1_000_000
MAX_TENANTS = 2_000
#: Three full tiers: more wait at no gateway, whatever is switched off.
MAX_QUEUED_REQUESTS = 300_000

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]
Tokens = Annotated[int, Field(ge=0, le=10**12, strict=True)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]  # no text, no true
Ratio = Annotated[Real, Field(gt=0, le=1)]
Flag = Annotated[bool, Field(strict=True)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class OverBudget(StrEnum):
    """What happens to a tenant whose monthly budget is spent."""

    WARN = "warn"
    DOWNGRADE = "downgrade"  # served as best_effort
    REFUSE = "refuse"


class TierPolicy(_Part):
    """How one tier shares dispatch and how long it may wait."""

    weight: Annotated[int, Field(ge=1, le=98, strict=True)]
    """Share of dispatched tokens in percent while every tier is backlogged. The three sum to 100."""
    queue_timeout_s: Annotated[Real, Field(ge=0.05, le=600)]
    """A request that cannot start within this time is refused with 429."""
    max_queued_requests: Annotated[int, Field(ge=1, le=100_000, strict=True)]
    """Bound of the tier's queue at one gateway."""
    engine_priority: Annotated[int, Field(ge=-1000, le=1000, strict=True)] = 0
    """Sent to the engine as `priority` (lower runs first); only a priority-scheduling engine heeds it."""
    max_requeues: Annotated[int, Field(ge=0, le=100, strict=True)] = 0
    """How often a started request, not yet answering, may be queued again for an interactive one."""


class TenantPolicy(_Part):
    """One tenant's quota and standing."""

    tier: Tier
    """Tier of a request that asks for none."""
    allowed_tiers: Annotated[tuple[Tier, ...], Field(min_length=1, max_length=3)]
    """Tiers a request of this tenant may ask for."""
    weight: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 1
    """Share against other tenants of the tier while both are backlogged."""
    tokens_per_minute: Tokens
    """Sustained quota over the whole fleet of gateways. 0 refuses every request."""
    burst_tokens: Tokens
    """Tokens that may be used at once above the sustained rate."""
    max_in_flight_tokens: Tokens
    """Reserved prompt + output tokens at once, over all gateways."""
    max_concurrent_requests: Annotated[int, Field(ge=0, le=1_000_000, strict=True)]
    """Requests running or queued at once, over all gateways."""
    monthly_budget_usd: Annotated[Decimal, Field(ge=0, max_digits=14, decimal_places=2)] | None = None
    """Spend per calendar month; None means no budget."""
    over_budget: OverBudget = OverBudget.WARN
    """What happens when the budget is spent."""
    quota_mode: Literal["leases", "exact"] = "leases"
    """How gateways share the quota: lent between them, or counted in one store at each request."""

    @model_validator(mode="after")
    def _tier_is_allowed(self) -> Self:
        if self.tier not in self.allowed_tiers:
            raise ValueError(f"tier {self.tier} is not among allowed_tiers; add it there")
        if len(set(self.allowed_tiers)) != len(self.allowed_tiers):
            raise ValueError("allowed_tiers names a tier twice")
        return self


class SizeClass(_Part):
    """Requests up to a size share a bounded part of a node's KV budget."""

    name: Name
    max_tokens: Annotated[int, Field(ge=1, le=10**8, strict=True)]
    """Upper bound of estimated prompt + output tokens for this class."""
    kv_share_ratio: Ratio
    """Largest part of each node's KV budget this class may hold."""
    pool: Name | None = None
    """Its requests run on this pool's nodes only, where no others run; None: on all other nodes."""


class Admission(_Part):
    """How the gate counts and orders."""

    kv_target_ratio: Annotated[Real, Field(ge=0.1, le=0.98)] = 0.85
    """Part of a node's KV cache that may be reserved."""
    output_reservation_quantile: Annotated[Real, Field(ge=0.5, le=0.999)] = 0.95
    """Quantile of the endpoint's own output history that is reserved."""
    reservation: Literal["quantile", "overbook"] = "quantile"
    """What a node's room is measured by: all that is reserved, or what running requests hold on average."""
    overflow_probability: Annotated[Real, Field(ge=1e-6, le=0.1)] = 0.001
    """Under `overbook`: how likely what is held may exceed a node's budget at a random moment."""
    overbook_guard_ratio: Annotated[Real, Field(ge=0.5, le=1)] = 0.92
    """Under `overbook`: a node whose KV cache is fuller than this takes nothing new."""
    order: Literal["sjf_aging", "fifo"] = "sjf_aging"
    """Order inside one tenant's flow."""
    aging_rate: Annotated[Real, Field(ge=0, le=1e6)] = 200.0
    """Tokens of advantage a waiting request gains per second (sjf_aging)."""
    size_classes: Annotated[tuple[SizeClass, ...], Field(max_length=8)] = ()
    """Optional bounds that keep long contexts from standing before short requests."""
    max_waiting_requests: Annotated[int, Field(ge=1, le=MAX_QUEUED_REQUESTS, strict=True)] | None = None
    """Bound of all tiers' queues together at one gateway; None: only the tiers' own bounds."""
    max_waiting_tokens: Annotated[int, Field(ge=1, le=10**12, strict=True)] | None = None
    """The same in tokens."""


class Routing(_Part):
    """How a node is chosen among those with room."""

    strategy: Literal["least_loaded", "kv_room", "cost_aware"] = "least_loaded"
    """Rule that picks a node."""
    spot_tiers: tuple[Tier, ...] = (Tier.BATCH, Tier.BEST_EFFORT)
    """Tiers that may run on spot nodes."""
    prefix_affinity: Flag = False
    """Prefer the prompt's home: one node for equal beginnings at every gateway, while it is not hot."""
    ejection: Ejection = Ejection()
    """When nodes that fail requests are taken out, and how they come back."""
    adapters: Literal["listed", "discovered"] = "listed"
    """Which names a node serves: those it is registered with, or its LoRA adapters of them as well."""
    client_kv_transfer_params: Literal["drop", "pass"] = "drop"
    """What becomes of `kv_transfer_params` a client sends itself: they name engines and memory."""


class RetryAfter(_Part):
    """Bounds of the Retry-After sent with a refusal."""

    floor_s: Annotated[int, Field(ge=1, le=3600, strict=True)] = 1
    """Smallest value sent, whole seconds."""
    cap_s: Annotated[int, Field(ge=1, le=3600, strict=True)] = 60
    """Largest value sent, whole seconds."""
    jitter_ratio: Annotated[Real, Field(ge=0, le=1)] = 0.5
    """Values are spread by plus and minus this part, so that clients do not return together."""

    @model_validator(mode="after")
    def _floor_below_cap(self) -> Self:
        if self.floor_s > self.cap_s:
            raise ValueError(f"floor_s {self.floor_s} is above cap_s {self.cap_s}")
        return self


class Slo(_Part):
    """What users were promised; drives goodput and the stop of a rollout."""

    ttft_s: Annotated[Real, Field(gt=0, le=600)] = 0.5
    """Time to first token that counts as good."""
    attainment_ratio: Ratio = 0.95
    """Part of requests that must be good."""


class Tiers(_Part):
    """The three tiers, fixed names."""

    interactive: TierPolicy
    batch: TierPolicy
    best_effort: TierPolicy

    def __getitem__(self, tier: Tier) -> TierPolicy:
        return {
            Tier.INTERACTIVE: self.interactive,
            Tier.BATCH: self.batch,
            Tier.BEST_EFFORT: self.best_effort,
        }[tier]

    @model_validator(mode="after")
    def _interactive_stays(self) -> Self:
        if self.interactive.max_requeues:
            raise ValueError("interactive requests are not taken back for others; set max_requeues to 0")
        return self

    @model_validator(mode="after")
    def _weights_sum_to_100(self) -> Self:
        weights = {tier: self[tier].weight for tier in TIERS}
        total = sum(weights.values())
        if total != 100:
            listed = ", ".join(f"{tier} {weight}" for tier, weight in weights.items())
            raise ValueError(f"tier weights sum to {total}: {listed}; they must sum to 100")
        return self

    @model_validator(mode="after")
    def _interactive_waits_least(self) -> Self:
        interactive, batch = self.interactive.queue_timeout_s, self.batch.queue_timeout_s
        if interactive > batch:
            raise ValueError(
                f"interactive waits {interactive:g} s but batch only {batch:g} s; "
                "interactive must not wait longer than batch"
            )
        return self


class Policy(_Part):
    """The whole document."""

    schema_: Literal["rhodeck.policy/1"] = Field(default=SCHEMA, alias="schema")
    """Version of the document's shape."""
    tiers: Tiers
    """The three tiers."""
    tenants: Annotated[dict[Name, TenantPolicy], Field(max_length=MAX_TENANTS)]
    """Quotas by tenant name."""
    default_tenant: Name | None = None
    """Tenant whose quota an unlisted tenant shares; None refuses unlisted tenants."""
    admission: Admission = Admission()
    """How the gate counts and orders."""
    limiters: Limiters = Limiters()
    """Which limits refuse, which only count, which are off."""
    routing: Routing = Routing()
    """How a node is chosen."""
    retry_after: RetryAfter = RetryAfter()
    """Bounds of the Retry-After sent with a refusal."""
    slo: Slo = Slo()
    """What users were promised."""

    @field_validator("default_tenant")
    @classmethod
    def _default_tenant_exists(cls, name: str | None, info: ValidationInfo) -> str | None:
        tenants = info.data.get("tenants")  # absent when they are wrong themselves
        if name is not None and tenants is not None and name not in tenants:
            raise ValueError(f"{name!r} is not among the tenants; add it there or name another")
        return name

    def tenant(self, name: str) -> TenantPolicy | None:
        """Return the quota that applies to `name`, or None when such a tenant must be refused."""
        found = self.tenants.get(name)
        if found is None and self.default_tenant is not None:
            return self.tenants[self.default_tenant]
        return found

    def as_document(self) -> dict[str, Any]:
        """Return the JSON form, complete with defaults."""
        return self.model_dump(mode="json", by_alias=True)

    def digest(self) -> str:
        """Return the sha256 of the canonical JSON, hex."""
        return digest_of(self.as_document())


def canonical_json(document: Mapping[str, Any]) -> bytes:
    """Return the one byte form of a JSON document: sorted keys, no blanks, UTF-8, no NaN."""
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest_of(document: Mapping[str, Any]) -> str:
    """Return the sha256 of a document's canonical JSON, hex."""
    return hashlib.sha256(canonical_json(document)).hexdigest()


def parse(document: object) -> Policy:
    """Return the policy, or raise InvalidPolicy naming the field as a JSON pointer.

    Accepts a decoded JSON object, or its text. Bounded: at most MAX_DOCUMENT_BYTES of canonical JSON and
    MAX_TENANTS tenants, at page, API, database and gateway alike.
    """
    if isinstance(document, (str, bytes)):
        if len(document) > MAX_DOCUMENT_BYTES:
            raise _too_large(len(document))
        try:
            document = json.loads(document, object_pairs_hook=_once)
        except (ValueError, RecursionError) as exc:
            raise InvalidPolicy(f"policy is not JSON: {exc}", field="", hint="Send a JSON object") from exc
    if not isinstance(document, dict):
        raise InvalidPolicy("policy is not a JSON object", field="", hint="Send a JSON object")
    try:
        policy = Policy.model_validate(document)
    except ValidationError as exc:
        raise _invalid(exc) from exc
    size = len(canonical_json(policy.as_document()))
    if size > MAX_DOCUMENT_BYTES:
        raise _too_large(size)
    return policy


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members. Raises InvalidPolicy for a name given twice: which one holds?"""
    found = dict(members)
    if len(found) != len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidPolicy(f"{twice[:100]!r} is given twice", field=twice[:100], hint="Keep one of them")
    return found


def _too_large(size: int) -> InvalidPolicy:
    return InvalidPolicy(
        f"policy is {size} bytes; at most {MAX_DOCUMENT_BYTES} are carried",
        field="",
        hint="Remove tenants that no longer send requests, or give them one default_tenant",
    )


def pointer_of(location: tuple[str | int, ...]) -> str:
    """Return a pydantic error location as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in location)


def _invalid(exc: ValidationError) -> InvalidPolicy:
    errors = exc.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    pointer = pointer_of(tuple(part for part in first["loc"] if part != "[key]"))
    message = first["msg"].removeprefix("Value error, ")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return InvalidPolicy(
        f"{pointer or 'policy'}: {message}{more}", field=pointer, hint=f"Correct {pointer}"
    )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return changed leaves as (JSON pointer, old, new), sorted by pointer; None for an absent side."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    return [
        (pointer, before.get(pointer), after.get(pointer))
        for pointer in sorted(before.keys() | after.keys())
        if before.get(pointer) != after.get(pointer)
    ]


def _leaves(document: Mapping[str, Any], at: tuple[str | int, ...] = ()) -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for key, value in document.items():
        nested: Mapping[str, Any] = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
        leaves += _leaves(nested, (*at, key)) if nested else [(pointer_of((*at, key)), value)]
    return leaves


def default_policy() -> Policy:
    """Return the policy a new installation starts with: three tiers at 70/25/5, no tenants yet."""
    return parse(
        {
            "tiers": {
                "interactive": {
                    "weight": 70,
                    "queue_timeout_s": 1.5,
                    "max_queued_requests": 200,
                    "engine_priority": 0,
                },
                "batch": {
                    "weight": 25,
                    "queue_timeout_s": 30,
                    "max_queued_requests": 1000,
                    "engine_priority": 10,
                },
                "best_effort": {
                    "weight": 5,
                    "queue_timeout_s": 30,
                    "max_queued_requests": 1000,
                    "engine_priority": 20,
                },
            },
            "tenants": {},
        }
    )
