"""What stands behind the gate in a replay: engines, or a pace.

Times are virtual seconds, sizes tokens. With separate prefill engines a request's prompt is computed on
the least busy of them, its KV moves over at a stated pace, and the node it was admitted to decodes.
Prevents: a replay that asks the gate the right questions and serves the requests in no time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

from fleet.engine import Engine
from fleet.engine_profile import EngineProfile
from fleet.engine_request import EngineRequest, EventKind, FinishReason
from fleet.errors import InvalidInput
from fleet.messages import PriceClass
from fleet.offers import NodeState, Request

#: 70B with grouped heads in 16 bit: 80 layers x 8 heads x 128 x 2 x 2 bytes = 327,680 bytes a token, over
#: one 400 Gb/s link: 6.6 us a token. Source: model's config.json; InfiniBand NDR data sheet.
TRANSFER_S_PER_TOKEN = 327_680 / 50e9
_NEVER = math.inf


class ServedArrival(Protocol):
    """The part of an arrival that a server needs."""

    @property
    def request(self) -> Request: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def service_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class ReplayNode:
    """One node. With an engine its capacity and slots are the engine's, unless given."""

    name: str
    engine: EngineProfile | None = None
    models: tuple[str, ...] = ()  # none: every model asked for
    kv_capacity_tokens: int | None = None
    max_num_seqs: int | None = None  # at most so many requests at once; None: no bound but KV
    price_class: PriceClass = "on_demand"
    prefill_s_per_token: float = 22e-6  # without an engine
    decode_s_per_token: float = 0.04
    is_prefill_only: bool = False  # computes prompts for the others, behind the gate
    transfer_s_per_token: float = TRANSFER_S_PER_TOKEN

    @property
    def honours_priority(self) -> bool:
        """Say whether its engine schedules by priority."""
        return self.engine is not None and self.engine.scheduling_policy == "priority"

    @property
    def capacity_tokens(self) -> int | None:
        """Return its KV capacity in tokens; None: not known."""
        if self.kv_capacity_tokens is None and self.engine is not None:
            return self.engine.kv_capacity_tokens
        return self.kv_capacity_tokens


@dataclass(slots=True)
class EngineWork:
    """What the engines did besides answering."""

    preemptions: int = 0
    gaps_s: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])


class Servers(Protocol):
    """What a replay asks of what stands behind the gate."""

    next_s: float
    has_news: bool  # whether a poll can say anything the gate did not do itself

    def start(self, place: int, arrival: ServedArrival, node: str, priority: int, now_s: float) -> bool:
        """Take a request. False: it can never run there."""
        ...

    def finished(self, now_s: float) -> Iterable[tuple[float, int, float, bool]]:
        """Advance to `now_s`; return (end, place, first token at, was answered) of each that ended."""
        ...

    def has_begun(self, place: int, now_s: float) -> bool:
        """Say whether a running request has its first token."""
        ...

    def abort(self, place: int, now_s: float) -> None:
        """Stop a running request that has no token yet."""
        ...

    def produced(self, place: int, now_s: float) -> int:
        """Return the output tokens a running request has so far."""
        ...

    def produces_at_s(self, place: int, tokens: int) -> float:
        """Return when a running request will have `tokens` at the earliest."""
        ...

    def states(self, now_s: float) -> list[NodeState]:
        """Return what a poll of the nodes would say."""
        ...

    def work(self) -> EngineWork:
        """Return what was done besides answering."""
        ...


class PacedServers:
    """Nodes at a fixed pace: seconds a token, or as long as the request was seen to take."""

    def __init__(self, nodes: Sequence[ReplayNode]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._ends: list[tuple[float, int, float, bool]] = []  # (end, place, first token, True)
        #: By place: start, first token, end, output tokens.
        self._running: dict[int, tuple[float, float, float, int]] = {}
        self.next_s = _NEVER
        self.has_news = False

    def start(self, place: int, arrival: ServedArrival, node: str, priority: int, now_s: float) -> bool:
        of = self._nodes[node]
        decode_s, output_tokens = of.decode_s_per_token, arrival.output_tokens
        prefill_s = of.prefill_s_per_token * arrival.request.prompt_tokens
        service_s = arrival.service_s
        if service_s is None:
            service_s = prefill_s + decode_s * output_tokens
        end_s, first_s = now_s + service_s, now_s + prefill_s + decode_s
        first_s = first_s if first_s < end_s else end_s
        heappush(self._ends, (end_s, place, first_s, True))
        self._running[place] = (now_s, first_s, end_s, output_tokens)
        if end_s < self.next_s:
            self.next_s = end_s
        return True

    def finished(self, now_s: float) -> list[tuple[float, int, float, bool]]:
        ends, running = self._ends, self._running
        found: list[tuple[float, int, float, bool]] = []
        while ends and ends[0][0] <= now_s:
            ended = heappop(ends)
            del running[ended[1]]
            found.append(ended)
        self.next_s = ends[0][0] if ends else _NEVER
        return found

    def has_begun(self, place: int, now_s: float) -> bool:
        return self._running[place][1] <= now_s

    def abort(self, place: int, now_s: float) -> None:
        del self._running[place]
        self._ends = [end for end in self._ends if end[1] != place]
        heapify(self._ends)
        self.next_s = self._ends[0][0] if self._ends else _NEVER

    def produced(self, place: int, now_s: float) -> int:
        start_s, _, end_s, tokens = self._running[place]
        return tokens if end_s <= start_s else int(tokens * (now_s - start_s) / (end_s - start_s))

    def produces_at_s(self, place: int, tokens: int) -> float:
        start_s, _, end_s, output_tokens = self._running[place]
        return start_s + (end_s - start_s) * tokens / output_tokens

    def states(self, now_s: float) -> list[NodeState]:
        return [
            NodeState(name, True, now_s, node.capacity_tokens, 0.0, 0, 0)
            for name, node in self._nodes.items()
        ]

    def work(self) -> EngineWork:
        return EngineWork()


@dataclass(slots=True)
class _Running:
    """A request behind the gate."""

    arrival: ServedArrival
    node: str  # where it was admitted
    priority: int
    first_s: float = math.nan
    produced: int = 0  # before it came to the node that decodes


class EngineServers:
    """Nodes that are engines; some may compute prompts only."""

    def __init__(self, nodes: Sequence[ReplayNode]) -> None:
        prefill = [node for node in nodes if node.is_prefill_only]
        self._decode = [node for node in nodes if not node.is_prefill_only]
        if not self._decode:
            raise InvalidInput("every node computes prompts only", field="nodes", hint="Add decode nodes")
        self._engines: dict[str, Engine] = {}
        for node in nodes:
            if node.engine is None:
                raise InvalidInput(f"node {node.name} has no engine", field="nodes")
            profile = node.engine
            if prefill and not node.is_prefill_only:  # the prompt's KV comes over; the last block is redone
                profile = replace(profile, prefix_hit_ratio=0.999_999)
            self._engines[node.name] = Engine(profile)
        self._prefill = [node.name for node in prefill]
        self._transfer_s = {node.name: node.transfer_s_per_token for node in nodes}
        self._running: dict[int, _Running] = {}
        self._moving: list[tuple[float, int]] = []  # (KV is there, place)
        self._steps: list[tuple[float, str]] = []
        self._step_began: dict[str, float] = {}
        self._work = EngineWork()
        self.next_s = _NEVER
        self.has_news = True

    def start(self, place: int, arrival: ServedArrival, node: str, priority: int, now_s: float) -> bool:
        running = _Running(arrival, node, priority)
        at, output = node, arrival.output_tokens
        if self._prefill:
            at, output = min(self._prefill, key=self._load), 1
        if not self._submit(place, running, at, arrival.request.prompt_tokens, output, now_s):
            return False
        self._running[place] = running
        return True

    def _load(self, name: str) -> tuple[int, str]:
        engine = self._engines[name]
        return engine.running + engine.waiting, name

    def _submit(
        self, place: int, running: _Running, name: str, prompt: int, output: int, now_s: float
    ) -> bool:
        engine = self._engines[name]
        asked = EngineRequest(str(place), max(1, prompt), output, priority=running.priority)
        was_idle = engine.next_step_end_s is None
        try:
            engine.submit(asked, now_s)
        except InvalidInput:
            return False  # longer than its context or its cache
        end_s = engine.next_step_end_s
        if was_idle and end_s is not None:
            self._step_began[name] = now_s
            heappush(self._steps, (end_s, name))
            self.next_s = min(self.next_s, end_s)
        return True

    def finished(self, now_s: float) -> Iterator[tuple[float, int, float, bool]]:
        while self._moving and self._moving[0][0] <= now_s:
            place = heappop(self._moving)[1]
            running = self._running[place]
            request = running.arrival.request
            output = running.arrival.output_tokens - running.produced
            if not self._submit(place, running, running.node, request.prompt_tokens + 1, output, now_s):
                del self._running[place]
                yield now_s, place, running.first_s, False
        while self._steps and self._steps[0][0] <= now_s:
            yield from self._step()
        self._set_next()

    def _step(self) -> Iterator[tuple[float, int, float, bool]]:
        """Run the step that ends first."""
        end_s, name = self._steps[0]
        engine = self._engines[name]
        if engine.decoding:
            self._work.gaps_s.append((end_s - self._step_began[name], engine.decoding))
        self._step_began[name] = end_s
        events = engine.advance(end_s)
        next_s = engine.next_step_end_s
        if next_s is None:
            heappop(self._steps)
        else:
            heapreplace(self._steps, (next_s, name))
        self._set_next()
        for event in events:
            place = int(event.request_id)
            running = self._running[place]
            if event.kind is EventKind.FIRST_OUTPUT:
                if math.isnan(running.first_s):
                    running.first_s = event.at_s
                continue
            is_answered = event.reason is not FinishReason.ERROR
            if is_answered and name in self._prefill and running.arrival.output_tokens > 1:
                self._move(place, running, name, end_s)
                continue
            del self._running[place]
            yield end_s, place, running.first_s, is_answered

    def _move(self, place: int, running: _Running, name: str, now_s: float) -> None:
        running.produced = 1
        there_s = now_s + self._transfer_s[name] * running.arrival.request.prompt_tokens
        heappush(self._moving, (there_s, place))
        self._set_next()

    def _set_next(self) -> None:
        step_s = self._steps[0][0] if self._steps else _NEVER
        self.next_s = min(step_s, self._moving[0][0] if self._moving else _NEVER)

    def has_begun(self, place: int, now_s: float) -> bool:
        return not math.isnan(self._running[place].first_s)

    def abort(self, place: int, now_s: float) -> None:
        node = self._running.pop(place).node
        for name in self._prefill or (node,):  # without a token it is where prompts are computed
            self._engines[name].abort(str(place), now_s)

    def produced(self, place: int, now_s: float) -> int:
        running = self._running[place]
        found = self._engines[running.node].output_tokens(str(place))
        return running.produced + (found or 0)

    def produces_at_s(self, place: int, tokens: int) -> float:
        return 0.0  # that depends on what comes

    def states(self, now_s: float) -> list[NodeState]:
        found: list[NodeState] = []
        for node in self._decode:
            engine = self._engines[node.name]
            found.append(
                NodeState(
                    node.name,
                    True,
                    now_s,
                    node.capacity_tokens,
                    engine.kv_used_ratio,
                    engine.running,
                    None if engine.profile.batching == "static" else engine.waiting,  # it names no queue
                )
            )
        return found

    def work(self) -> EngineWork:
        for engine in self._engines.values():
            self._work.preemptions += engine.tally.preemptions
        return self._work
