"""What one gateway holds in memory: the assignment in force and the parts that serve it.

Prevents: an assignment that is half in force (keys of one, quotas of another): `adopt` is the only way
in, and it is synchronous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from admission.decision_log import DecisionLog
from admission.estimate import PromptEstimator
from admission.identity import KeyRing
from admission.metrics import GatewayMetrics
from admission.passage import Ledger
from admission.prompt_counts import PromptCounts
from admission.quota_lease import QuotaLeases
from admission.repeats import RepeatWatch
from admission.running_journal import RunningJournal
from admission.settings import Settings
from admission.siblings import Siblings
from admission.tracing_form import SpanMaker
from admission.usage_json import UsageForms
from admission.usage_spool import UsageSpool
from admission.waiting import WaitingRoom
from fleet.clock import Clock
from fleet.gate import Gate
from fleet.messages import Assignment, LastRejection
from fleet.outcomes import Tier


@dataclass(slots=True)
class GatewayState:
    """One gateway. One event loop reads and writes it."""

    settings: Settings
    clock: Clock
    gate: Gate
    room: WaitingRoom
    metrics: GatewayMetrics
    spool: UsageSpool
    journal: RunningJournal
    boot_id: str
    started_at_s: float
    decisions: DecisionLog
    quotas: QuotaLeases
    estimator: PromptEstimator = field(default_factory=PromptEstimator)
    prompt_counts: PromptCounts | None = None  # where a tokenizer is configured
    tracing: SpanMaker | None = None  # where a collector is configured
    repeats: RepeatWatch = field(default_factory=RepeatWatch)
    forms: UsageForms = field(default_factory=UsageForms)
    assignment: Assignment | None = None
    digest: str | None = None
    is_from_disk: bool = False
    is_draining: bool = False
    last_rejection: LastRejection | None = None
    siblings: Siblings | None = None  # of one of several processes
    keys: KeyRing = field(default_factory=lambda: KeyRing(()))
    models: frozenset[str] = frozenset()
    has_prefix_affinity: bool = False  # as the policy in force has it
    passes_client_transfer: bool = False  # engines get the `kv_transfer_params` that clients send
    pools: dict[str, str] = field(default_factory=dict[str, str])
    adapters: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])  # by node
    _ledger: Ledger | None = None
    on_change: list[Callable[[Assignment], None]] = field(
        default_factory=list[Callable[[Assignment], None]]
    )

    @property
    def ledger(self) -> Ledger:
        """Where endings are booked."""
        if self._ledger is not None:
            return self._ledger
        revision = None if self.assignment is None else self.assignment.revision
        self._ledger = Ledger(
            self.clock.monotonic_s,
            self.clock.unix_s,
            self.room,
            self.metrics,
            self.spool,
            self.journal,
            self.estimator,
            self.pool_of,
            self.decisions,
            self.forms,
            revision,
        )
        return self._ledger

    @property
    def is_ready(self) -> bool:
        """Say whether requests are admitted: an assignment is in force and nobody asked to drain."""
        return self.assignment is not None and not self.is_draining

    def pool_of(self, node: str) -> str:
        """Return the pool of a node; of one that left the fleet meanwhile, its last."""
        return self.pools.get(node, "")

    def engine_priority(self, tier: Tier) -> int | None:
        """Return the `priority` an engine gets for a tier."""
        return None if self.assignment is None else self.assignment.policy.tiers[tier].engine_priority

    def adopt(self, assignment: Assignment, digest: str, *, is_from_disk: bool) -> None:
        """Put an assignment in force, whole."""
        self.assignment, self._ledger = assignment, None
        routing = assignment.policy.routing
        self.has_prefix_affinity = routing.prefix_affinity
        self.passes_client_transfer = routing.client_kv_transfer_params == "pass"
        self.digest = digest
        self.is_from_disk = is_from_disk
        self.keys = KeyRing(assignment.credentials)
        self.pools |= {node.name: node.pool for node in assignment.nodes}
        self.quotas.rebase(assignment, digest)
        self._apply(assignment)
        for notify in self.on_change:
            notify(assignment)
        self.room.pump()

    def take_room(self, assignment: Assignment) -> None:
        """Have the gate go on with another part of the nodes' room, lent or given back."""
        self._apply(assignment)
        self.room.pump()

    def take_adapters(self, adapters: Mapping[str, tuple[str, ...]]) -> None:
        """Serve the adapters that nodes hold, by node, besides what the assignment lists."""
        if adapters != self.adapters:
            self.adapters = dict(adapters)
            if self.assignment is not None:
                self._apply(self.assignment)
                self.room.pump()

    def _apply(self, assignment: Assignment) -> None:
        """Have the gate go by an assignment, as lent and as found."""
        held = with_adapters(self.quotas.in_force(assignment), self.adapters)
        self.models = frozenset(model for node in held.nodes for model in node.models)
        self.gate.apply(held, self.clock.monotonic_s())

    def hear(self, siblings: Siblings) -> None:
        """Take in what the supervisor says of the processes of this port."""
        self.siblings = siblings

    def drain(self) -> None:
        """Stop admitting; what runs goes on."""
        self.is_draining = True
        self.gate.drain()
        self.room.pump()


def with_adapters(assignment: Assignment, adapters: Mapping[str, tuple[str, ...]]) -> Assignment:
    """Return the assignment with what each node holds besides, where the policy lets adapters be found."""
    if not adapters or assignment.policy.routing.adapters != "discovered":
        return assignment
    nodes = tuple(
        node.model_copy(update={"models": (*node.models, *adapters[node.name])})
        if node.name in adapters
        else node
        for node in assignment.nodes
    )
    return assignment.model_copy(update={"nodes": nodes})
