"""The limits of the gate by name, and whether each refuses, only counts, or is switched off.

Owns the switches of the policy's `limiters` part. Prevents: a new limit that turns customers away before
anybody saw what it would do, and a limit gone wrong that only a release can take out.

A request that a shadowed limit lets through is a ghost to the tenant's limits: in the world where the limit
refuses it would not exist. So what later requests are measured against leaves ghosts out, and "would have
refused" counts what enforcing would refuse, not everything from the first excess on.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Limiter(StrEnum):
    """A limit of the gate. Also the `limiter` label of metrics and the words of the answer header."""

    TOKENS_PER_MINUTE = "tokens_per_minute"
    IN_FLIGHT_TOKENS = "in_flight_tokens"
    CONCURRENT_REQUESTS = "concurrent_requests"
    MONTHLY_BUDGET = "monthly_budget"
    QUEUE_LENGTH = "queue_length"
    EXPECTED_WAIT = "expected_wait"
    NODE_ROOM = "node_room"


class Mode(StrEnum):
    """What a limit does when it is met."""

    ENFORCE = "enforce"
    SHADOW = "shadow"  # let through, counted as "would have refused"
    OFF = "off"  # not looked at


class Limiters(BaseModel):
    """Which limits are in force. Access (keys, allowed tiers) and what no node can hold are not limits."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tokens_per_minute: Mode = Mode.ENFORCE
    """The tenants' rate with burst. While it is not enforced, what it would refuse is not charged."""
    in_flight_tokens: Mode = Mode.ENFORCE
    """The tenants' tokens running and queued."""
    concurrent_requests: Mode = Mode.ENFORCE
    """The tenants' requests running and queued."""
    monthly_budget: Mode = Mode.ENFORCE
    """What `over_budget` says; `warn` never refuses."""
    queue_length: Mode = Mode.ENFORCE
    """Bounds of the queues: requests by tier, requests and tokens in all."""
    expected_wait: Mode = Mode.ENFORCE
    """Refusal at the door of what would wait longer than its tier's timeout. The timeout itself stays."""
    node_room: Mode = Mode.ENFORCE
    """The nodes' KV budgets. Not enforced, what finds no room starts on the least loaded node."""

    def mode(self, limiter: Limiter) -> Mode:
        """Return what a limit does."""
        found: Mode = getattr(self, limiter.value)
        return found

    @property
    def all_enforced(self) -> bool:
        """Say whether every limit refuses."""
        return all(self.mode(limiter) is Mode.ENFORCE for limiter in Limiter)
