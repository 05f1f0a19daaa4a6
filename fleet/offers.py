"""What goes into the gate and what comes out of it: plain values, one lease, one ticket.

Tokens are counts, times ending in `_s` are seconds on the caller's monotonic clock. `None` in a
`NodeState` means the node did not say; it closes the node, it is never read as 0. Prevents: a release
that returns something else than what was booked, and a refusal without a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.limiters import Limiter
from fleet.outcomes import Outcome, Tier


@dataclass(frozen=True, slots=True)
class Request:
    """One request at the door, already authenticated."""

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
class Lease:
    """Tokens held on a node from dispatch to the end. Only `Gate.release` closes it, once."""

    lease_id: int
    request: Request
    account: str  # tenant whose quota it counts against
    tier: Tier  # tier it is served in; may differ from the one asked for (over budget)
    node: str
    size_class: str | None
    prompt_tokens: int
    output_tokens: int  # reserved output
    charged_tokens: int  # taken from the tenant's rate bucket
    queued_s: float  # time spent in the queue
    opened_at_s: float
    is_open: bool = True
    would_refuse: tuple[Limiter, ...] = ()  # limits that let it through though they were met
    is_ghost: bool = False  # one of them was the tenant's: it does not count against the shadowed ones
    is_charged: bool = True  # to the tenant's rate
    ticket: Ticket | None = None  # what it was admitted by
    rule: str = ""  # by which the node was chosen
    candidates: int = 0  # nodes that had room
    room_tokens: int = 0  # left on the node after it
    held: Holding | None = None  # booked on the node when not all that is reserved (overbooking)

    @property
    def tokens(self) -> int:
        """Return what is booked: prompt + reserved output."""
        return self.prompt_tokens + self.output_tokens


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the queue. It ends in exactly one `Started`, `Evicted` or `Gate.cancel`."""

    ticket_id: int
    request: Request
    account: str
    weight: int  # its tenant's, when it came
    tier: Tier
    size_class: str | None
    prompt_tokens: int
    output_tokens: int
    tokens: int  # what will be booked: prompt + reserved output
    arrived_at_s: float
    deadline_s: float  # evicted when it has not started by then
    key: float  # order inside its flow; smaller starts first
    is_waiting: bool = True
    is_parked: bool = False  # it was next and did not fit; others may pass it, within bounds
    passed_tokens: int = 0  # started past it, since it was parked, on nodes that serve its model
    would_refuse: tuple[Limiter, ...] = ()
    is_ghost: bool = False
    is_charged: bool = True
    output_basis: str = ""  # what `output_tokens` comes from
    ahead_requests: int | None = None  # in its tier's queue when it joined; None: it did not
    ahead_tokens: int = 0
    expected_wait_s: float | None = None  # at that moment; None: drain rate not known
    held: Holding | None = None  # what it holds on average, under overbooking
    room_tokens: int = 0  # the room it needs on a node: `tokens`, or what it holds on average
    requeues: int = 0  # times it was started and taken back


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit a refusal ran into, for headers and the error body."""

    name: str  # "tokens_per_minute", "in_flight_tokens", "concurrent_requests", "queued_requests", ...
    quota: int  # this gateway's part of it
    used: int  # at the moment of the refusal; may exceed `quota` after a cut
    needed: int  # what the request asked for
    reset_s: float | None = None  # when enough is free again; None: not known


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send it to `node` now; close `lease` when it has ended, however it ended."""

    node: str
    lease: Lease


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
    jain_by_tier: Mapping[Tier, float | None]  # of backlogged tenants; None: fewer than two
    queue_timeout_s_by_tier: Mapping[Tier, float]  # nothing waits longer; empty before an assignment
