"""What controller and gateway say to each other: assignment, status, usage. Versioned JSON.

A gateway takes an assignment iff (epoch, generation) is newer than what it holds, or equal with the
same digest. Times are Unix seconds in UTC, durations seconds, counts tokens. Prevents: a stalled old
leader overwriting a newer push, and usage counted twice.

    PUT  /admin/assignment        Assignment   -> 200 GatewayStatus, 409 StaleAssignment, 422 InvalidPolicy
    GET  /admin/status                         -> 200 GatewayStatus
    GET  /admin/usage?after=N&limit=M          -> 200 UsagePage
    POST /admin/usage/ack         UsageAck     -> 200 {} (records up to seq may be dropped)
    POST /admin/drain                          -> 200 GatewayStatus (stops admitting, finishes what runs)
    POST /admin/quota             QuotaLease   -> 200 QuotaReport, 409 StaleAssignment, 404 (an older one)

Every call carries `Authorization: Bearer <admin token>`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from fleet.errors import InvalidPolicy
from fleet.outcomes import Outcome, Tier
from fleet.policy import Name, Policy, Tokens, digest_of, pointer_of

MAX_ASSIGNMENT_BYTES = 8_000_000
MAX_WORDS = 1_000
#: No epoch or generation is above it: JSON's exact integers end here.
MAX_COUNTER = 2**53 - 1


def one_line(text: str) -> str:
    """Return `text` as at most `MAX_WORDS` printable characters; others become blanks."""
    return "".join(c if c.isprintable() else " " for c in text[:MAX_WORDS])


#: What a node's hours cost, and whether it may be taken away.
PriceClass = Literal["on_demand", "reserved", "spot"]
PRICE_CLASSES: tuple[PriceClass, ...] = get_args(PriceClass)

#: The phase of requests a node serves where prefill and decode run on different nodes.
Role = Literal["prefill", "decode"]
ROLES: tuple[Role, ...] = get_args(Role)

Count = Annotated[int, Field(ge=0)]
#: What ends up in log lines, metric labels and database rows.
Label = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
#: Words for people: kept to one printable line, never a reason to refuse a message.
Words = Annotated[str, AfterValidator(one_line)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
#: Unix seconds before the year 10000: more than that no date can hold.
Instant = Annotated[float, Field(ge=0, lt=253_402_300_800, allow_inf_nan=False)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TenantShare(_Message):
    """This gateway's integer part of one tenant's fleet-wide quota. The parts sum to the quota."""

    tokens_per_minute: Tokens
    burst_tokens: Tokens
    max_in_flight_tokens: Tokens
    max_concurrent_requests: Annotated[int, Field(ge=0, le=1_000_000)]
    over_budget: bool = False  # the month's spend has reached the tenant's budget


class NodeTarget(_Message):
    """A node this gateway may send to. Draining nodes are listed and take no new work."""

    name: Name
    pool: Name
    base_url: str  # http(s)://host:port without path
    models: Annotated[tuple[Label, ...], Field(min_length=1)]
    price_class: PriceClass = "on_demand"
    draining: bool = False
    kv_capacity_tokens: Annotated[int, Field(gt=0, le=10**12)] | None = None  # None: ask the node's metrics
    max_num_seqs: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    honours_priority: bool = False  # the engine schedules by priority
    role: Role | None = None  # one phase of each request only; None: both. Left out of the JSON when None

    @model_serializer(mode="wrap")
    def _without_no_role(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A gateway that knows no roles refuses the field; a fleet without roles need not name it."""
        made = handler(self)
        if made.get("role") is None:
            made.pop("role", None)
        return made


class Credential(_Message):
    """An API key of a tenant. The key itself exists only at the client."""

    key_id: Label
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    tenant: Name


class Assignment(_Message):
    """All a gateway needs to admit alone: policy, its shares, nodes and credentials."""

    schema_: Literal["rhodeck.assignment/1"] = Field(default="rhodeck.assignment/1", alias="schema")
    gateway: Name
    epoch: Annotated[int, Field(ge=0, le=MAX_COUNTER)]  # fencing token of the controller that sent it
    generation: Annotated[int, Field(ge=1, le=MAX_COUNTER)]  # rises with every change for this gateway
    revision: Annotated[int, Field(ge=1, lt=2**31)]  # policy revision it was made from
    policy: Policy
    shares: dict[Name, TenantShare]
    kv_share_ratio: Annotated[float, Field(gt=0, le=1)]  # part of each node's KV budget that is ours
    nodes: tuple[NodeTarget, ...]
    credentials: tuple[Credential, ...]

    @field_validator("shares")
    @classmethod
    def _every_tenant_has_a_share(
        cls, shares: dict[str, TenantShare], info: ValidationInfo
    ) -> dict[str, TenantShare]:
        policy: Policy | None = info.data.get("policy")  # absent when it is wrong itself
        missing = sorted(set(policy.tenants) - set(shares)) if policy is not None else []
        if missing:
            raise ValueError(f"no share for tenants {', '.join(missing[:5])}")
        return shares

    def digest(self) -> str:
        """Return the sha256 of the content, hex: everything but epoch and generation."""
        return digest_of(self.model_dump(mode="json", by_alias=True, exclude={"epoch", "generation"}))

    def is_newer_than(self, epoch: int, generation: int) -> bool:
        """Say whether this push is newer than (epoch, generation)."""
        return (self.epoch, self.generation) > (epoch, generation)


class QuotaShare(_Message):
    """A part of one tenant's quota, as `TenantShare` without what the month's budget says."""

    tokens_per_minute: Tokens
    burst_tokens: Tokens
    max_in_flight_tokens: Tokens
    max_concurrent_requests: Annotated[int, Field(ge=0, le=1_000_000)]


class QuotaLease(_Message):
    """Other parts than the assignment's for a while; without `boot_id` it grants nothing and only asks.

    Times count from `asked_at_s`, the gateway's own monotonic clock as it told in an earlier report: a
    lease that arrives late ends no later. Tenants not named keep what they hold, for the new time. Its
    shares are parts of the split that `digest` names: with another one in force it grants nothing.
    """

    schema_: Literal["rhodeck.quota_lease/1"] = Field(default="rhodeck.quota_lease/1", alias="schema")
    gateway: Name
    epoch: Annotated[int, Field(ge=0, le=MAX_COUNTER)]
    number: Annotated[int, Field(ge=0, le=MAX_COUNTER)]  # rises with every message of an epoch
    boot_id: Label | None = None  # the process that reported
    digest: Label | None = None  # the assignment it reported
    asked_at_s: Seconds = 0.0
    lease_s: Seconds = 0.0  # what is above the assignment's share ends after it
    hold_s: Seconds = 0.0  # what is below it rises again after it
    shares: dict[Name, QuotaShare] = {}
    kv_room: QuotaShare | None = None  # part of the nodes' room, see fleet.kv_shares; None: as it is


class QuotaUse(_Message):
    """What one tenant may use at a gateway, and could."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    share: QuotaShare  # in force
    need: QuotaShare  # asked for lately, refused requests included; burst 0: bursts follow rates
    held_tokens: Count = 0  # running and queued now; above the share after a cut
    held_requests: Count = 0


class QuotaReport(_Message):
    """What a gateway holds of the quotas. Tenants absent use nothing and have the assignment's share."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_: Literal["rhodeck.quota_report/1"] = Field(default="rhodeck.quota_report/1", alias="schema")
    gateway: Name
    boot_id: Label
    at_s: Seconds  # its own monotonic clock
    digest: Label | None  # of the assignment in force
    tenants: dict[Label, QuotaUse] = {}
    ends_in_s: Seconds = 0.0  # until shares above the assignment's end
    rises_in_s: Seconds = 0.0  # until shares below it rise
    kv_room: QuotaUse | None = None  # of the nodes; None: a release that cannot be lent any


class QueueState(_Message):
    """One tier's queue at one gateway."""

    requests: int
    tokens: int
    oldest_wait_s: Seconds


class PromptFit(_Message):
    """How prompts of one model are estimated from their bytes, and how far off that was."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    bytes_per_token: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    error_ratio: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]  # of the tokens counted


class OverQuota(_Message):
    """By how much a tenant holds more than the gateway's part of its quota. Nothing is stopped for it."""

    tokens: int
    requests: int


class LastRejection(_Message):
    """The last assignment this gateway refused, and why."""

    revision: int | None
    generation: int | None
    at_s: Instant
    message: Words
    pointer: Words


class NodeOut(_Message):
    """Why this gateway took a node out, since when, and when it tries it again. Past that: on trial."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    because: Label  # a `fleet.ejection.Because`; a newer gateway may know more
    since_s: Instant
    until_s: Instant


class GatewayStatus(_Message):
    """What a gateway runs now. `digest` is of the assignment in force; None before the first."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # a newer gateway may say more

    schema_: Literal["rhodeck.status/1"] = Field(default="rhodeck.status/1", alias="schema")
    gateway: Name
    boot_id: Label  # new at every start of the process
    version: Label
    ready: bool
    draining: bool = False
    epoch: int
    generation: int  # 0 before the first assignment
    revision: Annotated[int, Field(ge=1, le=MAX_COUNTER)] | None
    digest: Label | None
    from_disk: bool  # the assignment in force was loaded from disk and not confirmed since
    unsupported: tuple[Words, ...] = ()  # JSON pointers into the policy this gateway does not enforce
    shares: dict[Label, TenantShare] = {}
    prompts: dict[Label, PromptFit] = {}  # by model; those whose engines counted something
    over: dict[Label, OverQuota] = {}  # tenants that hold more than they may, after a cut
    in_flight_requests: int
    in_flight_tokens: int
    queues: dict[Tier, QueueState]
    nodes_usable: int
    nodes_total: int
    nodes_apart: dict[Label, Words] = {}  # why nodes take no work, or only a trial; the others are open
    nodes_out: dict[Label, NodeOut] = {}  # those it ejected, and those on trial after that
    usage_spool: Label  # id of the spool; changes only if the spool was lost
    usage_last_seq: int
    clock_at_s: Instant
    started_at_s: Instant
    last_rejection: LastRejection | None = None


class UsageRecord(_Message):
    """One request that reached an engine. Refusals are counted in metrics, not here."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    seq: Annotated[int, Field(ge=1, le=MAX_COUNTER)]
    request_id: str
    tenant: str
    key_id: str
    tier: Tier
    model: str
    endpoint: str  # "chat", "completions", "embeddings", "responses"
    node: str
    pool: str
    outcome: Outcome
    prompt_tokens: Count
    cached_tokens: Count | None
    output_tokens: Count
    exact: bool  # True: counted by the engine; False: our estimate, the engine did not say
    reserved_tokens: Count
    queued_s: Seconds
    ttft_s: Seconds | None
    engine_s: Seconds  # dispatch to the end
    finished_at_s: Instant


class UsagePage(_Message):
    """Records after a sequence number, in order, without holes."""

    schema_: Literal["rhodeck.usage/1"] = Field(default="rhodeck.usage/1", alias="schema")
    gateway: Name
    spool: Label
    records: tuple[UsageRecord, ...]
    last_seq: int  # newest in the spool


class UsageAck(_Message):
    """The controller holds everything up to `seq`, committed."""

    spool: Label
    seq: Annotated[int, Field(ge=0, le=MAX_COUNTER)]


def parse_assignment(body: bytes) -> Assignment:
    """Return the assignment, or raise InvalidPolicy with the JSON pointer of the first bad field."""
    if len(body) > MAX_ASSIGNMENT_BYTES:
        raise InvalidPolicy(
            f"assignment is {len(body)} bytes; at most {MAX_ASSIGNMENT_BYTES} are read", field=""
        )
    try:
        return Assignment.model_validate_json(body, strict=True)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        pointer = pointer_of(first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise InvalidPolicy(f"{pointer or 'assignment'}: {message}", field=pointer) from exc
