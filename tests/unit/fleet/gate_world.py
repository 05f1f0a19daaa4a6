"""A small world to put a gate in: assignments, nodes, requests. Times are seconds, counts tokens."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from fleet.gate import Decision, Dispatch, Event, Gate, Lease, NodeState, Request, Started
from fleet.messages import Assignment
from fleet.outcomes import Outcome

MODEL = "llama"


def tenant(**changes: Any) -> dict[str, Any]:
    """Return a tenant without effective limits, with `changes`."""
    return {
        "tier": "interactive",
        "allowed_tiers": ["interactive", "batch", "best_effort"],
        "tokens_per_minute": 10**10,
        "burst_tokens": 10**10,
        "max_in_flight_tokens": 10**10,
        "max_concurrent_requests": 10**6,
    } | changes


def assignment(
    tenants: dict[str, dict[str, Any]] | None = None,
    *,
    nodes: list[dict[str, Any]] | None = None,
    tiers: dict[str, dict[str, Any]] | None = None,
    kv_share_ratio: float = 1.0,
    over_budget: tuple[str, ...] = (),
    generation: int = 1,
    **parts: Any,
) -> Assignment:
    """Return an assignment to the only gateway: shares equal quotas; one node, target ratio 0.85."""
    tenants = tenants if tenants is not None else {"acme": tenant()}
    tier_policies: dict[str, dict[str, Any]] = {
        "interactive": {"weight": 70, "queue_timeout_s": 1.5, "max_queued_requests": 100_000},
        "batch": {"weight": 25, "queue_timeout_s": 30, "max_queued_requests": 100_000},
        "best_effort": {"weight": 5, "queue_timeout_s": 30, "max_queued_requests": 100_000},
    }
    for name, changes in (tiers or {}).items():
        tier_policies[name] |= changes
    limits = ("tokens_per_minute", "burst_tokens", "max_in_flight_tokens", "max_concurrent_requests")
    return Assignment.model_validate(
        {
            "gateway": "gw1",
            "epoch": 1,
            "generation": generation,
            "revision": 1,
            "policy": {"tiers": tier_policies, "tenants": tenants} | parts,
            "shares": {
                name: {key: quota[key] for key in limits} | {"over_budget": name in over_budget}
                for name, quota in tenants.items()
            },
            "kv_share_ratio": kv_share_ratio,
            "nodes": nodes if nodes is not None else [node("n1")],
            "credentials": [],
        }
    )


def node(name: str, **changes: Any) -> dict[str, Any]:
    """Return a node's target."""
    return {"name": name, "pool": "main", "base_url": "http://127.0.0.1:1", "models": [MODEL]} | changes


def state(name: str, now_s: float, **changes: Any) -> NodeState:
    """Return an idle node of 100,000 KV tokens, seen now."""
    said: dict[str, Any] = {
        "healthy": True,
        "kv_capacity_tokens": 100_000,
        "kv_used_ratio": 0.0,
        "running": 0,
        "waiting": 0,
    }
    return NodeState(name=name, seen_at_s=now_s, **(said | changes))


def request(number: int = 1, **changes: Any) -> Request:
    """Return a request of 100 prompt and 900 output tokens: 1,000 tokens."""
    asked: dict[str, Any] = {
        "tenant": "acme",
        "tier": None,
        "model": MODEL,
        "endpoint": "chat",
        "prompt_tokens": 100,
        "max_tokens": 900,
    }
    return Request(request_id=f"r{number}", **(asked | changes))


def open_gate(made: Assignment | None = None, now_s: float = 0.0, **options: Any) -> Gate:
    """Return a gate that holds `made` and has just seen all of its nodes idle."""
    made = made if made is not None else assignment()
    gate = Gate(random.Random(1), **options)
    gate.apply(made, now_s)
    gate.observe([state(target.name, now_s) for target in made.nodes], now_s)
    gate.poll(now_s)
    return gate


class Server:
    """Serves a gate's starts at a fixed pace: leases end in the order in which they began."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.now_s = 0.0
        self.running: deque[Lease] = deque()
        self.started: list[Lease] = []

    def offer(self, asked: Request) -> Decision:
        """Offer a request now, and run it if it starts."""
        decision = self.gate.offer(asked, self.now_s)
        if isinstance(decision, Dispatch):
            self._run(decision.lease)
        return decision

    def _run(self, lease: Lease) -> None:
        self.running.append(lease)
        self.started.append(lease)

    def poll(self) -> list[Event]:
        """Poll the gate and run what it starts."""
        events = self.gate.poll(self.now_s)
        for event in events:
            if isinstance(event, Started):
                self._run(event.lease)
        return events

    def step(self, seconds: float) -> list[Event]:
        """Move on, see all nodes idle (but for our leases), end the oldest lease, start what fits."""
        self.now_s += seconds
        names = list(self.gate.snapshot(self.now_s).nodes)
        self.gate.observe([state(name, self.now_s) for name in names], self.now_s)
        if self.running:
            lease = self.running.popleft()
            self.gate.release(
                lease,
                prompt_tokens=lease.prompt_tokens,
                output_tokens=lease.output_tokens,
                outcome=Outcome.COMPLETED,
                now_s=self.now_s,
            )
        return self.poll()
