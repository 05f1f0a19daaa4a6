"""A request on its way through the simulated engine, and what its client can see of it.

Times are seconds on the caller's clock, sizes are tokens. Prevents: a scheduler and its clients keeping
two notions of how far a sequence has come.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a sequence ended by itself; vLLM's `finished_reason`. An abort is not one: it is not counted."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"  # it can never fit the KV blocks that are left


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate."""

    request_id: str
    prompt_tokens: int  # >= 1
    output_tokens: int  # what it will produce, >= 1; 0 for pooling
    max_tokens: int | None = None  # the parameter, when the client gave one
    priority: int = 0  # lower goes first; only under the priority policy
    reason: FinishReason = FinishReason.LENGTH
    has_siblings: bool = False  # one of several choices: the caller books the parent
    is_pooling: bool = False  # an embedding: it ends when its prompt is computed

    @property
    def first_tokens(self) -> int:
        """Output tokens that come out when the prompt is computed: 1, or 0 of an embedding."""
        return 0 if self.is_pooling else 1


class EventKind(StrEnum):
    FIRST_OUTPUT = "first_output"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something a client of the engine can see."""

    kind: EventKind
    request_id: str
    at_s: float
    output_tokens: int
    reason: FinishReason | None = None  # of FINISHED


class State(StrEnum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    DONE = "done"


class Sequence:
    """A request inside the engine. While decoding, what it produced follows from the step number."""

    __slots__ = (
        "arrived_s",
        "cached_tokens",
        "finish_step",
        "first_scheduled_s",
        "first_token_s",
        "join_step",
        "kv_at_join",
        "last_token_s",
        "order",
        "output_at_join",
        "preemptions",
        "prefill_left",
        "request",
        "state",
    )  # fmt: skip

    def __init__(self, request: EngineRequest, arrived_s: float, order: int) -> None:
        self.request = request
        self.arrived_s = arrived_s
        self.order = order
        self.state = State.WAITING
        self.first_scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s = arrived_s
        self.cached_tokens = 0
        self.preemptions = 0
        self.prefill_left = 0
        self.output_at_join = 0  # output tokens there were when it last left the decode batch or joined it
        self.kv_at_join = 0  # KV tokens it holds when it joins; while prefilling, those it reserved
        self.join_step = 0
        self.finish_step = 0
