"""What goes into the gate and what comes out of it: plain values, one lease, one ticket.

Tokens are counts, times ending in `_s` are seconds on the caller's monotonic clock. `None` in a
`NodeState` means the node did not say; it closes the node, it is never read as 0. Prevents: a release
that returns something else than what was booked, and a refusal without a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.limiters import Limiter
from fleet.outcomes import Outcome, Tier

if TYPE_CHECKING:
    from fleet.accounts import Account
    from fleet.budget import NodeBudget
    from fleet.fairflows import Flow
    from fleet.lines import Line


class Request:
    """One request at the door, already authenticated.

    Like all that is made once for each request it is a plain class and not frozen: a frozen one takes
    three times as long to make, and mypyc compiles no dataclass with slots.
    """

    __slots__ = (
        "avoid",
        "choices",
        "endpoint",
        "max_tokens",
        "model",
        "prefix_key",
        "prompt_tokens",
        "request_id",
        "tenant",
        "tier",
    )

    def __init__(
        self,
        request_id: str,
        tenant: str,
        tier: Tier | None,
        model: str,
        endpoint: str,
        prompt_tokens: int,
        max_tokens: int | None,
        prefix_key: str | None = None,
        avoid: tuple[str, ...] = (),
        choices: int = 1,
    ) -> None:
        self.request_id = request_id
        self.tenant = tenant  # from the credential, never from a header the caller can set
        self.tier = tier  # None: the tenant's own tier
        self.model = model
        self.endpoint = endpoint  # "chat", "completions", "embeddings", "responses"
        self.prompt_tokens = prompt_tokens  # estimate or exact, >= 0
        self.max_tokens = max_tokens  # the client's bound on output; None: it did not say; 0: no output
        self.prefix_key = prefix_key  # same key, same prompt prefix
        self.avoid = avoid  # nodes that failed it before; used only if no other has room
        self.choices = choices  # answers asked for in one call (n, best_of, several prompts), >= 1

    def asked_as(self, request_id: str, tenant: str, tier: Tier | None) -> Request:
        """Return the same request under another number, asked by another tenant."""
        return Request(
            request_id,
            tenant,
            tier,
            self.model,
            self.endpoint,
            self.prompt_tokens,
            self.max_tokens,
            self.prefix_key,
            self.avoid,
            self.choices,
        )


@dataclass(frozen=True)
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


class Holding:
    """What a request holds at a random moment of its time in an engine."""

    __slots__ = ("tokens", "variance")

    def __init__(self, tokens: int, variance: float) -> None:
        self.tokens = tokens  # mean, rounded up
        self.variance = variance  # tokens squared


class Ticket:
    """What a request is taken to need, and its place. It ends in one `Dispatch`, `Started`, `Evicted`,
    `Refused` or `Gate.cancel`."""

    __slots__ = (
        "ahead_requests",
        "ahead_tokens",
        "arrived_at_s",
        "deadline_s",
        "expected_wait_s",
        "failed_look",
        "flow",
        "held",
        "holder",
        "is_charged",
        "is_ghost",
        "is_parked",
        "is_waiting",
        "key",
        "line",
        "output_basis",
        "output_tokens",
        "passed_tokens",
        "place",
        "prompt_tokens",
        "request",
        "requeues",
        "room_tokens",
        "size_class",
        "ticket_id",
        "tier",
        "tokens",
        "weight",
        "would_refuse",
    )

    def __init__(
        self,
        ticket_id: int,
        request: Request,
        holder: Account,
        line: Line,
        tier: Tier,
        size_class: str | None,
        weight: int,
        prompt_tokens: int,
        output_tokens: int,
        tokens: int,
        output_basis: str,
        arrived_at_s: float,
        deadline_s: float,
        key: float,
    ) -> None:
        self.ticket_id = ticket_id
        self.request = request
        self.holder = holder  # whose quota it counts against
        self.line = line  # where requests of its model and tier stand
        self.tier = tier  # it is served in; may differ from the one asked for (over budget)
        self.size_class = size_class
        self.weight = weight  # its tenant's, when it came
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.tokens = tokens  # what will be booked: prompt + reserved output
        self.room_tokens = tokens  # the room it needs on a node: `tokens`, or what it holds on average
        self.output_basis = output_basis  # what `output_tokens` comes from
        self.arrived_at_s = arrived_at_s
        self.deadline_s = deadline_s  # evicted when it has not started by then
        self.key = key  # order inside its flow; smaller starts first
        self.is_waiting = True
        self.is_parked = False  # it was next and did not fit; others may pass it, within bounds
        self.is_ghost = False  # a limit of its tenant in shadow let it through
        self.is_charged = True  # to the tenant's rate
        self.failed_look = 0  # of the backlog, at which it did not fit, since it was parked
        self.passed_tokens = 0  # started past it, since it was parked, on nodes that serve its model
        self.would_refuse: tuple[Limiter, ...] = ()  # limits that let it through though they were met
        self.ahead_requests: int | None = None  # in its tier's queue when it joined; None: it did not
        self.ahead_tokens = 0
        self.expected_wait_s: float | None = None  # at that moment; None: drain rate not known
        self.held: Holding | None = None  # what it holds on average, under overbooking
        self.flow: Flow | None = None  # where it waits
        self.place = 0  # among those that wait in its tier, by age
        self.requeues = 0  # times it was started and taken back

    def again(self, ticket_id: int, now_s: float) -> Ticket:
        """Return the ticket of its request, which was started and waits again with its whole timeout."""
        ticket = Ticket(
            ticket_id,
            self.request,
            self.holder,
            self.line,
            self.tier,
            self.size_class,
            self.weight,
            self.prompt_tokens,
            self.output_tokens,
            self.tokens,
            self.output_basis,
            now_s,
            now_s + (self.deadline_s - self.arrived_at_s),
            self.key,
        )
        ticket.room_tokens, ticket.held = self.room_tokens, self.held
        ticket.is_ghost, ticket.is_charged = self.is_ghost, self.is_charged
        ticket.would_refuse, ticket.requeues = self.would_refuse, self.requeues + 1
        ticket.ahead_requests, ticket.ahead_tokens = self.ahead_requests, self.ahead_tokens
        ticket.expected_wait_s = self.expected_wait_s
        return ticket

    @property
    def account(self) -> str:
        """Return the tenant whose quota it counts against."""
        return self.holder.name


class Lease:
    """Tokens held on a node from dispatch to the end. Only `Gate.release` closes it, once."""

    __slots__ = (
        "book",
        "candidates",
        "held",
        "is_open",
        "opened_at_s",
        "output_tokens",
        "place",
        "queued_s",
        "room_tokens",
        "rule",
        "ticket",
        "tokens",
    )

    def __init__(
        self,
        ticket: Ticket,
        book: NodeBudget,
        output_tokens: int,
        tokens: int,
        queued_s: float,
        opened_at_s: float,
        rule: str,
        candidates: int,
        room_tokens: int,
        held: Holding | None,
    ) -> None:
        self.is_open = True
        self.place = 0  # among the open ones, by age
        self.ticket = ticket  # what it was admitted by; the lease may grow, the ticket does not
        self.book = book
        self.tokens = tokens  # what is booked: prompt + reserved output
        self.output_tokens = output_tokens  # reserved output
        self.queued_s = queued_s  # time spent in the queue
        self.opened_at_s = opened_at_s
        self.rule = rule  # by which the node was chosen
        self.candidates = candidates  # nodes that had room
        self.room_tokens = room_tokens  # left on the node after it
        self.held = held  # booked on the node when not all that is reserved (overbooking)

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


@dataclass(frozen=True)
class Limit:
    """The limit a refusal ran into, for headers and the error body."""

    name: str  # "tokens_per_minute", "in_flight_tokens", "concurrent_requests", "queued_requests", ...
    quota: int  # this gateway's part of it
    used: int  # at the moment of the refusal; may exceed `quota` after a cut
    needed: int  # what the request asked for
    reset_s: float | None = None  # when enough is free again; None: not known
    left: int | None = None  # of a rate: what its bucket holds now, negative in debt; None: quota - used
    whole: int | None = None  # the tenant's, over all gateways, where `quota` is a part of it


class Dispatch:
    """Send it to `node` now; close `lease` when it has ended, however it ended."""

    __slots__ = ("lease", "node")
    __match_args__ = ("node", "lease")

    def __init__(self, node: str, lease: Lease) -> None:
        self.node = node
        self.lease = lease


class Queued:
    """It waits. `Gate.poll` says when it starts or is evicted."""

    __slots__ = ("ticket",)
    __match_args__ = ("ticket",)

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket


@dataclass(frozen=True)
class Refused:
    """It was refused at the door and used nothing."""

    outcome: Outcome
    reason: str  # one sentence with the numbers
    retry_after_s: int | None  # None: a retry does not help
    retry_after_ms: int | None  # the same wait, finer
    limit: Limit | None = None
    ticket: Ticket | None = None  # what it was taken to need; None: refused before that was asked


Decision = Dispatch | Queued | Refused


class Started:
    """A queued request goes to `node` now."""

    __slots__ = ("lease", "node", "ticket")

    def __init__(self, ticket: Ticket, node: str, lease: Lease) -> None:
        self.ticket = ticket
        self.node = node
        self.lease = lease


@dataclass(frozen=True)
class Evicted:
    """A queued request leaves without service and used nothing."""

    ticket: Ticket
    outcome: Outcome
    reason: str
    retry_after_s: int | None
    retry_after_ms: int | None


Event = Started | Evicted
