"""A retry storm in virtual time: the real gate and engines under clients that ignore `Retry-After`.

Originals come as a Poisson stream at multiples of what the engines can carry. A client that is refused, or
that waited longer than its patience, comes again after a short wait of its own, a few times. Goodput is
what was answered with a first token in time, requests per second. Times are virtual seconds.

    python -m benchmarks.storm

prints goodput over the load, as it is and with the queue's bounds, deadline awareness and node budgets off.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from admission.repeats import LOST, RepeatWatch
from fleet.engine import Engine
from fleet.engine_profile import EngineProfile
from fleet.engine_request import EngineRequest, EventKind
from fleet.gate import Dispatch, Evicted, Gate, Lease, NodeState, Queued, Refused, Request, Started, Ticket
from fleet.gate_replay import assignment_of
from fleet.outcomes import TIERS, Outcome
from fleet.policy import Policy, default_policy, parse
from fleet.replay_servers import ReplayNode

MODEL = "simulated"
TENANT = "acme"
#: 16 sequences of 50 steps of 28 ms: 11.4 requests/s an engine. KV for 16 requests, so slots and KV agree.
ENGINE = EngineProfile(
    "storm", alpha_s=0.02, beta_s=0.0005, gamma_s=1e-5, max_num_seqs=16, num_gpu_blocks=401
)
PROMPT_TOKENS, MAX_TOKENS, MEAN_OUTPUT_TOKENS = 100, 150, 50
QUEUE_TIMEOUT_S = 1.5
QUEUE_REQUESTS = 60
GOOD_TTFT_S = 2.0
OBSERVE_S = 0.5
OFF = ("queue_length", "expected_wait", "node_room")


@dataclass(frozen=True, slots=True)
class Clients:
    """How clients behave."""

    tries_again: int = 4  # after the first try
    wait_s: float = 0.3  # before each, whatever they were told
    patience_s: float = 6.0  # for the whole answer; then they hang up and try again


@dataclass(slots=True)
class StormResult:
    """What came of one storm."""

    load: float  # originals offered, of what the engines can carry
    seconds: float
    originals: int = 0
    attempts: int = 0
    counted_repeats: int = 0  # by the gateway's meter
    good: int = 0  # answered with the first token in time
    answered: int = 0
    refused: int = 0
    hung_up: int = 0
    longest_queue: int = 0
    longest_queue_tokens: int = 0
    longest_wait_s: float = 0.0

    @property
    def goodput_rps(self) -> float:
        return self.good / self.seconds

    @property
    def attempts_per_original(self) -> float:
        """What the clients did."""
        return self.attempts / self.originals

    @property
    def metered_attempts_per_original(self) -> float:
        """What the gateway's meter says."""
        return self.attempts / (self.attempts - self.counted_repeats)


def policy(*, is_open: bool = False) -> Policy:
    """Return the storm's policy; `is_open`: bounds, deadline awareness and node budgets are off."""
    document = default_policy().as_document()
    for tier in ("interactive", "batch", "best_effort"):
        document["tiers"][tier] |= {"max_queued_requests": QUEUE_REQUESTS}
    document["tiers"]["interactive"]["queue_timeout_s"] = QUEUE_TIMEOUT_S
    limits = {"tokens_per_minute": 10**10, "burst_tokens": 10**10, "max_in_flight_tokens": 10**9}
    tiers = [str(tier) for tier in TIERS]
    tenant = {"tier": "interactive", "allowed_tiers": tiers, **limits, "max_concurrent_requests": 10**6}
    if is_open:
        document["limiters"] = dict.fromkeys(OFF, "off")
    return parse(document | {"tenants": {TENANT: tenant}})


@dataclass(slots=True)
class _Try:
    """One attempt of one client."""

    original: int
    number: int
    at_s: float
    output_tokens: int
    lease: Lease | None = None
    ticket: Ticket | None = None
    node: str = ""
    first_s: float | None = None
    is_over: bool = False

    @property
    def request_id(self) -> str:
        return f"{self.original}.{self.number}"


class Storm:
    """One run."""

    def __init__(self, made: Policy, load: float, *, engines: int, seconds: float, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clients = Clients()
        self.engines = {f"n{number}": Engine(ENGINE) for number in range(engines)}
        nodes = [ReplayNode(name, ENGINE, max_num_seqs=ENGINE.max_num_seqs) for name in self.engines]
        self.gate = Gate(random.Random(seed), prior_output_tokens=MAX_TOKENS)
        self.gate.apply(assignment_of(made, nodes, [MODEL]), 0.0)
        self.watch = RepeatWatch()
        self.result = StormResult(load, seconds)
        self.rate_rps = load * capacity_rps(engines)
        self.tries: dict[str, _Try] = {}
        self.waiting: dict[int, _Try] = {}
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0

    # -- time ---------------------------------------------------------------------------------------

    def at(self, at_s: float, act: Callable[[float], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (at_s, self._number, act))

    def run(self) -> StormResult:
        """Let clients come for the given time, and every one of them end."""
        self.at(0.0, self._observe)
        self.at(self.rng.expovariate(self.rate_rps), self._arrive)
        while self._due:
            next_s = self._due[0][0]
            engine_s = min(
                (one.next_step_end_s for one in self.engines.values() if one.next_step_end_s is not None),
                default=float("inf"),
            )
            gate_s = self.gate.next_deadline_s()
            now_s = min(next_s, engine_s, float("inf") if gate_s is None else gate_s)
            if engine_s <= now_s:
                self._advance(now_s)
            if next_s <= now_s:
                heapq.heappop(self._due)[2](now_s)
            self._poll(now_s)
            if now_s > self.result.seconds and not self.tries:
                break
        return self.result

    def _observe(self, now_s: float) -> None:
        self.gate.observe(
            [
                NodeState(
                    name=name,
                    seen_at_s=now_s,
                    healthy=True,
                    kv_capacity_tokens=ENGINE.kv_capacity_tokens,
                    kv_used_ratio=engine.kv_used_ratio,
                    running=engine.running,
                    waiting=engine.waiting,
                )
                for name, engine in self.engines.items()
            ],
            now_s,
        )
        self.at(now_s + OBSERVE_S, self._observe)

    # -- clients ------------------------------------------------------------------------------------

    def _arrive(self, now_s: float) -> None:
        result = self.result
        if now_s < result.seconds:
            self.at(now_s + self.rng.expovariate(self.rate_rps), self._arrive)
            result.originals += 1
            length = min(MAX_TOKENS, 1 + int(self.rng.expovariate(1 / (MEAN_OUTPUT_TOKENS - 1))))
            self._attempt(_Try(result.originals, 0, now_s, length), now_s)

    def _attempt(self, one: _Try, now_s: float) -> None:
        self.result.attempts += 1
        self.tries[one.request_id] = one
        body = b"body of %d" % one.original
        self.result.counted_repeats += self.watch.is_repeat(TENANT, [], body, now_s)
        self.at(now_s + self.clients.patience_s, lambda at_s: self._hang_up(one, at_s))
        asked = Request(one.request_id, TENANT, None, MODEL, "chat", PROMPT_TOKENS, MAX_TOKENS)
        match self.gate.offer(asked, now_s):
            case Dispatch(node, lease):
                self._start(one, node, lease, now_s)
            case Queued(ticket):
                one.ticket = ticket
                self.waiting[ticket.ticket_id] = one
                snapshot = self.gate.snapshot(now_s)
                waiting = sum(queue.requests for queue in snapshot.queues.values())
                tokens = sum(queue.tokens for queue in snapshot.queues.values())
                self.result.longest_queue = max(self.result.longest_queue, waiting)
                self.result.longest_queue_tokens = max(self.result.longest_queue_tokens, tokens)
            case Refused(outcome):
                self._lost(one, outcome, now_s)

    def _again(self, one: _Try, now_s: float) -> None:
        one.is_over = True
        self.tries.pop(one.request_id, None)
        if one.number < self.clients.tries_again:
            wait_s = self.clients.wait_s * self.rng.uniform(0.5, 1.5)
            following = _Try(one.original, one.number + 1, now_s + wait_s, one.output_tokens)
            self.tries[following.request_id] = following
            self.at(following.at_s, lambda at_s: self._attempt(following, at_s))

    def _lost(self, one: _Try, outcome: Outcome, now_s: float) -> None:
        self.result.refused += 1
        if outcome in LOST:
            self.watch.lost(TENANT, [], b"body of %d" % one.original, now_s)
        self._again(one, now_s)

    def _hang_up(self, one: _Try, now_s: float) -> None:
        if one.is_over:
            return
        self.result.hung_up += 1
        self.watch.lost(TENANT, [], b"body of %d" % one.original, now_s)
        if one.lease is not None:
            self.engines[one.node].abort(one.request_id, now_s)
            self._release(one, Outcome.CLIENT_GONE, now_s)
        elif one.ticket is not None:
            self.waiting.pop(one.ticket.ticket_id, None)
            self.gate.cancel(one.ticket, now_s)
        self._again(one, now_s)

    # -- gate and engines ---------------------------------------------------------------------------

    def _start(self, one: _Try, node: str, lease: Lease, now_s: float) -> None:
        one.node, one.lease = node, lease
        self.result.longest_wait_s = max(self.result.longest_wait_s, lease.queued_s)
        asked = EngineRequest(one.request_id, PROMPT_TOKENS, one.output_tokens, MAX_TOKENS)
        self.engines[node].submit(asked, now_s)

    def _poll(self, now_s: float) -> None:
        due_s = self.gate.next_deadline_s()
        if due_s is None or due_s > now_s:
            return
        for event in self.gate.poll(now_s):
            one = self.waiting.pop(event.ticket.ticket_id)
            if isinstance(event, Started):
                self._start(one, event.node, event.lease, now_s)
            else:
                assert isinstance(event, Evicted)
                self._lost(one, event.outcome, now_s)

    def _release(self, one: _Try, outcome: Outcome, now_s: float) -> None:
        assert one.lease is not None
        self.gate.release(
            one.lease,
            prompt_tokens=PROMPT_TOKENS,
            output_tokens=one.output_tokens,
            outcome=outcome,
            now_s=now_s,
        )
        one.lease = None

    def _advance(self, now_s: float) -> None:
        for engine in self.engines.values():
            for event in engine.advance(now_s):
                one = self.tries[event.request_id]
                if event.kind is EventKind.FIRST_OUTPUT:
                    one.first_s = event.at_s
                if event.kind is not EventKind.FINISHED:
                    continue
                self._release(one, Outcome.COMPLETED, now_s)
                one.is_over = True
                del self.tries[one.request_id]
                self.result.answered += 1
                first_s = event.at_s if one.first_s is None else one.first_s
                if event.at_s <= self.result.seconds and first_s - one.at_s <= GOOD_TTFT_S:
                    self.result.good += 1


def capacity_rps(engines: int) -> float:
    """Return what full engines finish, requests/s."""
    return engines * ENGINE.max_num_seqs / (MEAN_OUTPUT_TOKENS * ENGINE.step_time_s(ENGINE.max_num_seqs))


def sweep(
    loads: Sequence[float], *, is_open: bool = False, engines: int = 2, seconds: float = 40.0, seed: int = 1
) -> list[StormResult]:
    """Return the storm at each load."""
    made = policy(is_open=is_open)
    return [Storm(made, load, engines=engines, seconds=seconds, seed=seed).run() for load in loads]


def main() -> None:
    """Print goodput over the load."""
    loads = (0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
    for is_open in (False, True):
        results = sweep(loads, is_open=is_open, seconds=120.0)
        peak = max(result.goodput_rps for result in results)
        print("queue bounds, deadline awareness, node budgets " + ("off" if is_open else "in force"))
        print("  load  goodput rps  of peak  attempts/original (metered)  longest queue  hung up")
        for one in results:
            print(
                f"  {one.load:4.1f}  {one.goodput_rps:11.2f}  {one.goodput_rps / peak:7.3f}  "
                f"{one.attempts_per_original:8.2f} ({one.metered_attempts_per_original:.2f})  "
                f"{one.longest_queue:22d}  {one.hung_up:7d}"
            )


if __name__ == "__main__":
    main()
