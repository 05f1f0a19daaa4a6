"""How a request can leave the gate, and the HTTP status each way has.

An outcome is the `outcome` label of every admission metric, the test oracle, and the key of the one
table that picks a status. Prevents: 503 for overload (clients fail over) or 429 for an outage.
"""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """Service tiers, fixed names, in order of precedence."""

    INTERACTIVE = "interactive"
    BATCH = "batch"
    BEST_EFFORT = "best_effort"

    @property
    def words(self) -> str:
        """The name as people write it: "best-effort"."""
        return self.value.replace("_", "-")


TIERS: tuple[Tier, ...] = (Tier.INTERACTIVE, Tier.BATCH, Tier.BEST_EFFORT)


class Outcome(StrEnum):
    """How one request left the gateway. Exactly one per offered request."""

    COMPLETED = "completed"  # dispatched, the engine finished it
    ENGINE_REFUSED = "engine_refused"  # dispatched, the engine found fault with the request (4xx)
    CLIENT_GONE = "client_gone"  # the client left, before or after the first byte
    UPSTREAM_ERROR = "upstream_error"  # the engine failed or died after dispatch
    UPSTREAM_TIMEOUT = "upstream_timeout"  # the engine did not answer in time
    REJECTED_QUEUE_FULL = "rejected_queue_full"  # the tier's queue is at its bound
    REJECTED_TOO_LATE = "rejected_too_late"  # could not start within the tier's timeout
    REJECTED_QUOTA_RATE = "rejected_quota_rate"  # tenant tokens per minute
    REJECTED_QUOTA_TOKENS = "rejected_quota_tokens"  # tenant tokens in flight
    REJECTED_QUOTA_REQUESTS = "rejected_quota_requests"  # tenant concurrent requests
    REJECTED_QUOTA_BUDGET = "rejected_quota_budget"  # tenant monthly budget
    REJECTED_TOO_LARGE = "rejected_too_large"  # can never fit any node's KV budget
    REJECTED_TIER = "rejected_tier"  # the tenant may not use this tier
    EVICTED_WAIT = "evicted_wait"  # waited its tier's timeout in the queue
    EVICTED_DISPLACED = "evicted_displaced"  # an interactive request took its place in a full queue
    NO_NODES = "no_nodes"  # nothing to serve with
    DRAINING = "draining"  # the gateway is shutting down


#: Status of each refusal. Contention is 429 (a retry helps), an outage is 503.
HTTP_STATUS: dict[Outcome, int] = {
    Outcome.REJECTED_QUEUE_FULL: 429,
    Outcome.REJECTED_TOO_LATE: 429,
    Outcome.REJECTED_QUOTA_RATE: 429,
    Outcome.REJECTED_QUOTA_TOKENS: 429,
    Outcome.REJECTED_QUOTA_REQUESTS: 429,
    Outcome.REJECTED_QUOTA_BUDGET: 429,
    Outcome.EVICTED_WAIT: 429,
    Outcome.EVICTED_DISPLACED: 429,
    Outcome.REJECTED_TOO_LARGE: 413,
    Outcome.REJECTED_TIER: 403,
    Outcome.NO_NODES: 503,
    Outcome.DRAINING: 503,
    Outcome.UPSTREAM_ERROR: 502,
    Outcome.UPSTREAM_TIMEOUT: 504,
}

#: Outcomes that count as shed load: refused before the queue or evicted from it.
SHED: frozenset[Outcome] = frozenset(
    outcome
    for outcome in Outcome
    if outcome.value.startswith(("rejected_", "evicted_")) or outcome is Outcome.NO_NODES
)
