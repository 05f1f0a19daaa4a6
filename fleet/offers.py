"""What goes into the gate and what comes out of it: plain values, one lease, one ticket.

Tokens are counts, times ending in `_s` are seconds on the caller's monotonic clock. `None` in a
`NodeState` means the node did not say; it closes the node, it is never read as 0. Prevents: a release
that returns something else than what was booked, and a refusal without a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.limiters import Limiter
from fleet.outcomes import Outcome, Tier

if TYPE_CHECKING:
    from fleet.accounts import Account
    from fleet.budget import NodeBudget
    from fleet.fairflows import Flow
    from fleet.lines import Line


@dataclass(slots=True)
class Request:
    """One request at the door, already authenticated.

    Like all that is made once for each request it is not frozen: that would take three times as long.
    """

    request_id: str
    tenant: str  # from the credential, never from a header the caller can set
    tier: Tier | None  # None: the tenant's own tier
    model: str
    endpoint: str  # "chat", "completions", "embeddings", "responses"
    prompt_tokens: int  # estimate or exact, >= 0
    max_tokens: int | None  # the client's bound on output; None: it did not say; 0: no output
    prefix_key: str | None = None  # same key, same prompt prefix
    avoid: tuple[str, ...] = ()  # nodes that failed this request before; used only if no other has room
    choices: int = 1  # answers asked for in one call (n, best_of, several prompts), >= 1


@dataclass(frozen=True, slots=True)
class NodeState:
    """What one node said at its last poll."""

    name: str
    healthy: bool  # it answered its health check
    seen_at_s: float  # monotonic time of the poll
    kv_capacity_tokens: int | None = None
    kv_used_ratio: float | None = None  # 0..1
    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None  # since the engine started
    most_requests: int | None = None  # of ours at once, while it is on trial; None: as many as fit


@dataclass(frozen=True, slots=True)
class Holding:
    """What a request holds at a random moment of its time in an engine."""

    tokens: int  # mean, rounded up
    variance: float  # tokens squared


@dataclass(slots=True, eq=False)
class Ticket:
    """What a request is taken to need, and its place. It ends in one `Dispatch`, `Started`, `Evicted`,
    `Refused` or `Gate.cancel`."""

    ticket_id: int
    request: Request
    holder: Account  # whose quota it counts against
    line: Line  # where requests of its model and tier stand
    tier: Tier  # it is served in; may differ from the one asked for (over budget)
    size_class: str | None
    weight: int  # its tenant's, when it came
    prompt_tokens: int
    output_tokens: int
    tokens: int  # what will be booked: prompt + reserved output
    room_tokens: int  # the room it needs on a node: `tokens`, or what it holds on average
    output_basis: str  # what `output_tokens` comes from
    arrived_at_s: float
    deadline_s: float  # evicted when it has not started by then
    key: float  # order inside its flow; smaller starts first
    is_waiting: bool = True
    is_parked: bool = False  # it was next and did not fit; others may pass it, within bounds
    is_ghost: bool = False  # a limit of its tenant in shadow let it through
    is_charged: bool = True  # to the tenant's rate
    passed_tokens: int = 0  # started past it, since it was parked, on nodes that serve its model
    would_refuse: tuple[Limiter, ...] = ()  # limits that let it through though they were met
    ahead_requests: int | None = None  # in its tier's queue when it joined; None: it did not
    ahead_tokens: int = 0
    expected_wait_s: float | None = None  # at that moment; None: drain rate not known
    held: Holding | None = None  # what it holds on average, under overbooking
    flow: Flow | None = None  # where it waits
    requeues: int = 0  # times it was started and taken back

    @property
    def account(self) -> str:
        """Return the tenant whose quota it counts against."""
        return self.holder.name


@dataclass(slots=True, eq=False)
class Lease:
    """Tokens held on a node from dispatch to the end. Only `Gate.release` closes it, once."""

    ticket: Ticket  # what it was admitted by; the lease may grow, the ticket does not
    book: NodeBudget
    output_tokens: int  # reserved output
    tokens: int  # what is booked: prompt + reserved output
    queued_s: float  # time spent in the queue
    opened_at_s: float
    rule: str  # by which the node was chosen
    candidates: int  # nodes that had room
    room_tokens: int  # left on the node after it
    held: Holding | None  # booked on the node when not all that is reserved (overbooking)
    is_open: bool = True

    @property
    def lease_id(self) -> int:
        """Return its number, the same as its ticket's."""
        return self.ticket.ticket_id

    @property
    def request(self) -> Request:
        """Return what was asked."""
        return self.ticket.request

    @property
    def account(self) -> str:
        """Return the tenant whose quota it counts against."""
        return self.ticket.holder.name

    @property
    def tier(self) -> Tier:
        """Return the tier it is served in."""
        return self.ticket.tier

    @property
    def node(self) -> str:
        """Return the node it runs on."""
        return self.book.name

    @property
    def size_class(self) -> str | None:
        """Return its size class; None: the node alone bounds it."""
        return self.ticket.size_class

    @property
    def prompt_tokens(self) -> int:
        """Return the booked prompt."""
        return self.ticket.prompt_tokens

    @property
    def would_refuse(self) -> tuple[Limiter, ...]:
        """Return the limits that let it through though they were met."""
        return self.ticket.would_refuse

    @property
    def is_ghost(self) -> bool:
        """Say whether one of them was the tenant's."""
        return self.ticket.is_ghost


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit a refusal ran into, for headers and the error body."""

    name: str  # "tokens_per_minute", "in_flight_tokens", "concurrent_requests", "queued_requests", ...
    quota: int  # this gateway's part of it
    used: int  # at the moment of the refusal; may exceed `quota` after a cut
    needed: int  # what the request asked for
    reset_s: float | None = None  # when enough is free again; None: not known
    left: int | None = None  # of a rate: what its bucket holds now, negative in debt; None: quota - used


@dataclass(slots=True)
class Dispatch:
    """Send it to `node` now; close `lease` when it has ended, however it ended."""

    node: str
    lease: Lease


@dataclass(slots=True)
class Queued:
    """It waits. `Gate.poll` says when it starts or is evicted."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Refused:
    """It was refused at the door and used nothing."""

    outcome: Outcome
    reason: str  # one sentence with the numbers
    retry_after_s: int | None  # None: a retry does not help
    retry_after_ms: int | None  # the same wait, finer
    limit: Limit | None = None
    ticket: Ticket | None = None  # what it was taken to need; None: refused before that was asked


Decision = Dispatch | Queued | Refused


@dataclass(slots=True)
class Started:
    """A queued request goes to `node` now."""

    ticket: Ticket
    node: str
    lease: Lease


@dataclass(frozen=True, slots=True)
class Evicted:
    """A queued request leaves without service and used nothing."""

    ticket: Ticket
    outcome: Outcome
    reason: str
    retry_after_s: int | None
    retry_after_ms: int | None


Event = Started | Evicted


@dataclass(frozen=True, slots=True)
class TierQueue:
    """One tier's queue now."""

    requests: int
    tokens: int
    oldest_wait_s: float  # 0 when empty


@dataclass(frozen=True, slots=True)
class TenantUse:
    """What one tenant holds now: running and queued."""

    requests: int
    tokens: int
    queued_requests: int
    rate_tokens_left: int  # in the rate bucket; negative: in debt
    over_by_tokens: int  # held above the quota after a cut; 0 normally
    over_by_requests: int = 0  # the same in requests


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What this gate holds on one node, and whether the node takes more."""

    requests: int
    tokens: int
    budget_tokens: int | None  # None: capacity is not known
    closed_because: str | None  # None: open
    expected_tokens: int = 0  # held on average by what runs; under overbooking less than `tokens`
    measured_tokens: int | None = None  # KV tokens in use, all gateways' and others'; None: not known
    is_overbooked: bool = False  # room is measured by `expected_tokens`


@dataclass(frozen=True, slots=True)
class GateSnapshot:
    """The gate at one moment. In-flight figures are sums over open leases."""

    is_ready: bool
    in_flight_requests: int
    in_flight_tokens: int
    in_flight_tokens_by_tier: Mapping[Tier, int]
    queues: Mapping[Tier, TierQueue]
    dispatched_tokens_by_tier: Mapping[Tier, int]  # since the gate was made
    longest_wait_s_by_tier: Mapping[Tier, float]  # longest wait of any started request
    tenants: Mapping[str, TenantUse]
    nodes: Mapping[str, NodeUse]
    oldest_lease_age_s: float  # 0 when none is open
    most_passed_ratio_by_tier: Mapping[Tier, float]  # of a started request's own tokens; at most 1
    most_ahead_ratio_by_tier: Mapping[Tier, float]  # of other tiers past one that waited, to its bound
    jain_by_tier: Mapping[Tier, float | None]  # of backlogged tenants; None: fewer than two
    queue_timeout_s_by_tier: Mapping[Tier, float]  # nothing waits longer; empty before an assignment
