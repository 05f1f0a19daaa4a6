"""One simulated node without its socket: engine, front end, faults, and who waits for which tokens.

Wall seconds come from the clock; the engine lives in simulated seconds, `speed` of them to a wall second.
Prevents: per-token work. A tick advances many engine steps and hands out tokens in groups, as vLLM does
with a stream interval, so a dozen loaded nodes cost a fraction of a core.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from itertools import count

from fleet.clock import Clock
from fleet.engine import Engine
from fleet.engine_profile import EngineProfile
from fleet.engine_request import EngineRequest, EventKind, FinishReason
from simfleet.openai_api import GenerationCall
from simfleet.page import HttpTally, MetricsPage

#: A stream gets its tokens in groups, this many ticks apart; first and last tokens go out at once.
TICKS_PER_GROUP = 5


class Answer:
    """The sequences of one HTTP request, and what they have produced so far."""

    def __init__(self, call: GenerationCall, number: int) -> None:
        size = len(call.prompt_tokens) * call.choices
        self.call = call
        self.number = number
        self.produced = [0] * size
        self.reasons: list[str | None] = [None] * size
        self.open = size
        self.is_gone = False  # the client or the node went away
        self.news = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self.is_gone or self.open == 0


class SimNode:
    """A node's life from start to kill; `restart` begins a new one."""

    def __init__(
        self,
        name: str,
        profile: EngineProfile,
        clock: Clock,
        *,
        seed: int,
        speed: float = 1.0,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.profile = profile
        self.clock = clock
        self.speed = speed
        self.in_flight = 0  # generation requests whose response has not ended: /load
        self.metrics_delay_s = 0.0
        self.is_alive = True
        self._wake = wake
        self._rng = random.Random(f"{seed}/{name}")
        self._numbers = count()
        self._ticks = 0
        self._lives = 0
        self.restart()

    def restart(self) -> None:
        """Begin a new life: empty engine, counters at 0, a new start time. Waiting clients are cut off."""
        if self._lives:
            self.kill()
        self._lives += 1
        self.is_alive = True
        self.started_at_s = self.clock.now().timestamp()
        self.engine = Engine(self.profile)
        self.http = HttpTally()
        self.page = MetricsPage(self.profile, self.profile.model, self.started_at_s)
        self.metrics_delay_s = 0.0
        self._origin_s = self.clock.monotonic_s()
        self._inside: dict[str, tuple[Answer, int]] = {}
        self._answers: dict[int, Answer] = {}
        self._frozen_at_s: float | None = None
        self._front_end: list[Answer] = []  # accepted while frozen: in no series, as in vLLM
        self._late_aborts: list[Answer] = []
        self._held_ratio = 0.0

    def kill(self) -> None:
        """End this life; everybody waiting is told."""
        self.is_alive = False
        for answer in (*self._answers.values(), *self._front_end):
            answer.is_gone = True
            answer.news.set()
        self._answers.clear()
        self._front_end.clear()
        self._inside.clear()

    # -- requests -----------------------------------------------------------------------------------

    def start(self, call: GenerationCall) -> Answer:
        """Accept a request; its answer fills up as `tick` runs."""
        answer = Answer(call, next(self._numbers))
        if self._frozen_at_s is None:
            self._submit(answer)
        else:
            self._front_end.append(answer)
        return answer

    def abort(self, answer: Answer) -> None:
        """The client left. What the engine still does for it stops."""
        answer.is_gone = True
        answer.news.set()
        if answer in self._front_end:
            self._front_end.remove(answer)
        elif self._frozen_at_s is not None:
            self._late_aborts.append(answer)
        else:
            now_s = self.now_s()
            self._advance(now_s)  # what the engine finished by now is finished, whoever left
            self._drop(answer, now_s)

    def _submit(self, answer: Answer) -> None:
        call, now_s = answer.call, self.now_s()
        self._answers[answer.number] = answer
        index = 0
        for tokens, limit in zip(call.prompt_tokens, call.limits, strict=True):
            for _ in range(call.choices):
                sequence_id = f"{answer.number}-{index}"
                wanted = 0 if call.seeds else self._output_tokens(call, limit)
                request = EngineRequest(
                    sequence_id,
                    tokens,
                    min(wanted, limit),
                    max_tokens=call.max_tokens,
                    priority=call.priority,
                    reason=FinishReason.LENGTH if wanted >= limit > 0 else FinishReason.STOP,
                    has_siblings=call.choices > 1,
                    is_pooling=bool(call.seeds),
                )
                self._inside[sequence_id] = (answer, index)
                self.engine.submit(request, now_s)
                index += 1
        self._wake()

    def _output_tokens(self, call: GenerationCall, limit: int) -> int:
        """Output length of one choice: fixed by the request, or lognormal with the profile's mean."""
        if call.ignore_eos:
            return limit
        if call.output_tokens is not None:
            return call.output_tokens
        variance = math.log(1 + self.profile.output_cv**2)
        mu = math.log(self.profile.mean_output_tokens) - variance / 2
        return max(1, round(self._rng.lognormvariate(mu, math.sqrt(variance))))

    def _drop(self, answer: Answer, now_s: float) -> None:
        self._answers.pop(answer.number, None)
        for index, reason in enumerate(answer.reasons):
            sequence_id = f"{answer.number}-{index}"
            if reason is None and self._inside.pop(sequence_id, None) is not None:
                self.engine.abort(sequence_id, now_s)

    # -- time ---------------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Simulated seconds since this life began."""
        return (self.clock.monotonic_s() - self._origin_s) * self.speed

    @property
    def is_busy(self) -> bool:
        return self.is_alive and self._frozen_at_s is None and bool(self._answers)

    def tick(self) -> None:
        """Run the engine up to now and tell those who wait what came out."""
        if self._frozen_at_s is not None or not self.is_alive:
            return
        self._ticks += 1
        self._advance(self.now_s())
        for answer in self._answers.values():
            if answer.call.is_stream and (answer.number + self._ticks) % TICKS_PER_GROUP == 0:
                self._refresh(answer)

    def _advance(self, now_s: float) -> None:
        """Run the engine up to `now_s` and note what it finished or began."""
        for event in self.engine.advance(now_s):
            found = self._inside.get(event.request_id)
            if found is None:
                continue
            answer, index = found
            answer.produced[index] = event.output_tokens
            if event.kind is EventKind.FINISHED:
                del self._inside[event.request_id]
                self._end_choice(answer, index, event.reason or FinishReason.LENGTH)
            if answer.call.is_stream or answer.is_over:
                answer.news.set()

    def _end_choice(self, answer: Answer, index: int, reason: FinishReason) -> None:
        answer.reasons[index] = reason.value
        answer.open -= 1
        choices = answer.call.choices
        first = index // choices * choices
        siblings = slice(first, first + choices)
        if choices > 1 and all(answer.reasons[siblings]):
            self.engine.tally.book_parent(choices, max(answer.produced[siblings]))
        if answer.open == 0:
            del self._answers[answer.number]

    def _refresh(self, answer: Answer) -> None:
        for index, reason in enumerate(answer.reasons):
            if reason is not None:
                continue
            produced = self.engine.output_tokens(f"{answer.number}-{index}") or 0
            if produced > answer.produced[index]:
                answer.produced[index] = produced
                answer.news.set()

    # -- faults -------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Stop the worker. Everything in the engine stands still until `unfreeze`."""
        if self._frozen_at_s is None:
            self.tick()
            self._frozen_at_s = self.now_s()

    def unfreeze(self) -> None:
        """Let the worker go on: its step took that much longer, and the front end's backlog arrives."""
        if self._frozen_at_s is None:
            return
        self.engine.stall(self.now_s() - self._frozen_at_s)
        self._frozen_at_s = None
        for answer in self._late_aborts:
            self._drop(answer, self.now_s())
        self._late_aborts.clear()
        self.take_kv_blocks(self._held_ratio)
        backlog, self._front_end = self._front_end, []
        for answer in backlog:
            self._submit(answer)
        self._wake()

    def take_kv_blocks(self, ratio: float) -> None:
        """Take `ratio` (0..1) of the KV blocks away; 0 gives them back. A frozen node does so later."""
        self._held_ratio = ratio
        if self._frozen_at_s is None:
            self.engine.hold_blocks(int(self.profile.usable_blocks * ratio), self.now_s())
            self._wake()
