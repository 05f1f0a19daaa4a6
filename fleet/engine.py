"""A continuous-batching inference engine, step by step, in whatever time its caller keeps.

Pure and deterministic: no clock, no randomness. Times are seconds on the caller's clock, which never
goes back; sizes are tokens or KV blocks. Decode first, chunked prefill under one token budget, a fixed
number of sequence slots, KV blocks with preemption by recompute. A step costs the same work whatever
its batch: sequences that decode together are booked together. Prevents: forecasts and demos that run
on an engine model other than the one the estimators are tested against.

Simplifications: a sequence is admitted when its whole prompt's blocks fit; a cached prefix saves prefill
time but not blocks; where prompts are computed whole, decoders take part in that step and wait for its end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush

from fleet.engine_profile import EngineProfile
from fleet.engine_request import EngineEvent, EngineRequest, EventKind, FinishReason, Sequence, State
from fleet.engine_tally import READ_HISTOGRAMS, EngineTally
from fleet.errors import Conflict, InvalidInput
from fleet.readings import EngineReading


class Engine:
    """One engine's scheduler, KV accounting and counters.

    Drive it with `submit`, `abort` and `advance`; `next_step_end_s` says when something can happen.
    """

    def __init__(self, profile: EngineProfile) -> None:
        self.profile = profile
        self.tally = EngineTally(profile.max_model_len)
        self._now_s = 0.0
        self._sequences: dict[str, Sequence] = {}
        self._waiting: list[tuple[int, int, Sequence]] = []  # heap; entries of aborted ones stay until met
        self._waiting_count = 0
        self._running: dict[str, Sequence] = {}  # in order of admission
        self._prefilling: dict[str, Sequence] = {}
        self._decoding = 0
        self._kv_offset = 0  # resident tokens of decoders = offset + decoders x step number
        self._grows_at = [0] * profile.block_size  # decoders that need a block, by step number modulo size
        self._finishes_at: defaultdict[int, list[Sequence]] = defaultdict(list)
        self._used_blocks = 0
        self._held_blocks = 0
        self._started = 0  # steps begun
        self._committed = 0  # steps ended
        self._step_s = 0.0
        self._step_end_s: float | None = None
        self._chunks: list[tuple[Sequence, int]] = []
        self._order = 0
        self._seen_order = 0
        self._unseen = 0  # arrived while a step runs; the scheduler meets them at the next one
        self._events: list[EngineEvent] = []

    # -- what a caller does -------------------------------------------------------------------------

    def submit(self, request: EngineRequest, now_s: float) -> None:
        """Queue a request that arrived at `now_s`.

        Raises InvalidInput if it could never finish here, Conflict if its id is already inside.
        """
        p = self.profile
        total = request.prompt_tokens + request.output_tokens
        if request.prompt_tokens < 1 or request.output_tokens < request.first_tokens:
            raise InvalidInput("a request needs at least one prompt and one output token")
        if total > min(p.max_model_len, p.kv_capacity_tokens):
            raise InvalidInput(
                f"{request.prompt_tokens} prompt and {request.output_tokens} output tokens do not fit: "
                f"the engine takes {min(p.max_model_len, p.kv_capacity_tokens)}",
                hint="Shorten the prompt or max_tokens",
            )
        if request.request_id in self._sequences:
            raise Conflict(f"request {request.request_id} is already in the engine")
        self._run_until(now_s)
        self._order += 1
        sequence = Sequence(request, now_s, self._order)
        self._sequences[request.request_id] = sequence
        self._enqueue(sequence)
        self._unseen += 1
        self._start_if_idle(now_s)

    def abort(self, request_id: str, now_s: float) -> bool:
        """Drop a request at `now_s`. False if it is not (or no longer) inside. Counted nowhere."""
        self._run_until(now_s)
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.state is State.WAITING:
            self._waiting_count -= 1
            self._unseen -= sequence.order > self._seen_order
        else:
            self._leave(sequence)
        sequence.state = State.DONE
        self._start_if_idle(now_s)
        return True

    def advance(self, now_s: float) -> list[EngineEvent]:
        """Run every step that ends at or before `now_s`; return what happened since the last call."""
        self._run_until(now_s)
        events, self._events = self._events, []
        return events

    def hold_blocks(self, blocks: int, now_s: float) -> None:
        """Take `blocks` (>= 0, replacing the last value) away from requests, as a leak would."""
        self._run_until(now_s)
        self._held_blocks = min(max(blocks, 0), self.profile.usable_blocks)
        self._start_if_idle(now_s)

    def stall(self, seconds: float) -> None:
        """Make the step in flight take `seconds` (>= 0) longer, as a frozen worker does."""
        if self._step_end_s is not None:
            self._step_end_s += seconds
            self._step_s += seconds

    # -- what a caller may look at ------------------------------------------------------------------

    @property
    def next_step_end_s(self) -> float | None:
        """When the step in flight ends; None while there is nothing to do."""
        return self._step_end_s

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Queued at the last step, preempted ones included; as in vLLM, later arrivals are not yet."""
        return self._waiting_count - self._unseen

    @property
    def decoding(self) -> int:
        """Sequences in the decode phase now."""
        return self._decoding

    @property
    def steps(self) -> int:
        """Steps ended since the start."""
        return self._committed

    @property
    def kv_used_ratio(self) -> float:
        """Referenced blocks / usable blocks, 0..1."""
        return min(1.0, (self._used_blocks + self._held_blocks) / self.profile.usable_blocks)

    def output_tokens(self, request_id: str) -> int | None:
        """Tokens produced so far for a request inside the engine; None if it is not inside."""
        sequence = self._sequences.get(request_id)
        return None if sequence is None else self._produced(sequence)

    def reading(self) -> EngineReading:
        """Return the state as the reader of a metrics page would give it."""
        t, p = self.tally, self.profile
        return EngineReading(
            engine="0",
            model=p.model,
            running=self.running,
            waiting=self.waiting,
            waiting_capacity=self.waiting,
            kv_used_ratio=self.kv_used_ratio,
            kv_capacity_tokens=p.num_gpu_blocks * p.block_size,  # what vLLM states: null block included
            finished=dict(t.finished),
            prompt_tokens=t.prompt_tokens,
            prompt_tokens_computed=t.prompt_tokens - t.prompt_tokens_cached,
            generation_tokens=t.generation_tokens,
            preemptions=t.preemptions,
            prefix_cache_hits=t.prefix_cache_hits,
            prefix_cache_queries=t.prefix_cache_queries,
            histograms={name: t.histograms[name].snapshot() for name in READ_HISTOGRAMS},
        )

    # -- one step -----------------------------------------------------------------------------------

    def _run_until(self, now_s: float) -> None:
        while self._step_end_s is not None and self._step_end_s <= now_s:
            end_s = self._step_end_s
            self._now_s = end_s
            self._commit(end_s)
            self._begin(end_s)
        self._now_s = max(self._now_s, now_s)

    def _start_if_idle(self, now_s: float) -> None:
        if self._step_end_s is None:
            self._begin(now_s)

    def _begin(self, at_s: float) -> None:
        """Schedule a step that starts at `at_s`, or go idle."""
        self._step_end_s = None
        self._unseen, self._seen_order = 0, self._order
        if not self._running and not self._waiting_count:
            return
        self._started += 1
        has_preempted = self._grow_decoders(at_s)
        budget = self.profile.max_num_batched_tokens - self._decoding
        self._chunks = []
        for sequence in self._prefilling.values():
            budget -= self._take_chunk(sequence, budget)
        if self._waiting_count and not (has_preempted and self._running):
            self._admit(budget, at_s)
        if not self._decoding and not self._chunks:
            self._started -= 1
            return
        prefill_tokens = sum(size for _, size in self._chunks)
        kv_tokens = self._kv_offset + self._decoding * self._started if self.profile.kappa_s else 0
        self._step_s = self.profile.step_time_s(self._decoding, prefill_tokens, kv_tokens)
        self._step_end_s = at_s + self._step_s

    def _take_chunk(self, sequence: Sequence, budget: int) -> int:
        size = min(sequence.prefill_left, budget) if self.profile.chunked_prefill else sequence.prefill_left
        if size > 0:
            self._chunks.append((sequence, size))
        return size

    def _grow_decoders(self, at_s: float) -> bool:
        """Give each decoder that crosses a block boundary its block. True if somebody was preempted."""
        has_preempted = False
        slot = self._started % self.profile.block_size
        while self._running and self._grows_at[slot] > self._free_blocks():
            has_preempted = True
            victim = self._victim()
            if len(self._running) == 1:  # alone and still too large: waiting would not help
                self._leave(victim, grown=False)
                self._finish(victim, at_s, FinishReason.ERROR)
            else:
                self._preempt(victim, at_s)
        self._used_blocks += self._grows_at[slot]
        return has_preempted

    def _victim(self) -> Sequence:
        if self.profile.scheduling_policy == "priority":
            return max(self._running.values(), key=lambda s: (s.request.priority, s.order))
        return next(reversed(self._running.values()))

    def _preempt(self, victim: Sequence, at_s: float) -> None:
        self.tally.preemptions += 1
        victim.preemptions += 1
        self._leave(victim, grown=False)
        self._enqueue(victim)

    def _admit(self, budget: int, at_s: float) -> None:
        """Move waiting sequences into slots, in queue order, until a slot, a block or the budget ends."""
        p, is_static = self.profile, self.profile.batching == "static"
        if is_static and self._running:
            return
        for sequence in self._queue_heads():
            prefill = sequence.request.prompt_tokens + sequence.output_at_join
            is_too_long = bool(self._chunks) and not p.chunked_prefill and prefill > budget
            if (budget <= 0 and not is_static) or len(self._running) >= p.max_num_seqs or is_too_long:
                return
            blocks = self._blocks_for(prefill)
            if blocks > self._free_blocks():
                if self._running:
                    return
                self._pop_head()
                self._finish(sequence, at_s, FinishReason.ERROR)
                continue
            self._pop_head()
            self._used_blocks += blocks
            sequence.state = State.PREFILLING
            sequence.kv_at_join = prefill
            sequence.prefill_left = prefill
            if sequence.first_scheduled_s is None:
                sequence.first_scheduled_s = at_s
                self._look_up_prefix(sequence)
            self._running[sequence.request.request_id] = sequence
            self._prefilling[sequence.request.request_id] = sequence
            budget -= self._take_chunk(sequence, budget)

    def _look_up_prefix(self, sequence: Sequence) -> None:
        prompt, size = sequence.request.prompt_tokens, self.profile.block_size
        hit = min(int(prompt * self.profile.prefix_hit_ratio), prompt - 1) // size * size
        self.tally.prefix_cache_queries += prompt
        self.tally.prefix_cache_hits += hit
        sequence.cached_tokens = hit
        sequence.prefill_left -= hit

    def _commit(self, end_s: float) -> None:
        """Book the step that ends now."""
        decoded = self._decoding
        self._committed = self._started
        tokens = decoded
        if decoded:
            self.tally.histograms["itl_s"].add(self._step_s, decoded)
            for sequence in self._finishes_at.pop(self._committed, ()):
                if sequence.state is State.DECODING and sequence.finish_step == self._committed:
                    self._leave(sequence)
                    self._finish(sequence, end_s, sequence.request.reason)
        for sequence, size in self._chunks:
            if sequence.state is not State.PREFILLING:
                continue  # aborted while the step ran
            sequence.prefill_left -= size
            if sequence.prefill_left <= 0:
                tokens += sequence.request.first_tokens + self._first_or_next_token(sequence, end_s)
                decoded += sequence.request.first_tokens
        self.tally.generation_tokens += decoded
        self.tally.histograms["iteration_tokens"].add(tokens)

    def _first_or_next_token(self, sequence: Sequence, end_s: float) -> int:
        """End a prefill: one token comes out, but of an embedding. Return the prompt tokens booked now."""
        t, request, made = self.tally, sequence.request, sequence.request.first_tokens
        booked = 0
        if sequence.first_token_s is None:
            sequence.first_token_s = end_s
            t.histograms["ttft_s"].add(end_s - sequence.arrived_s)
            t.prompt_tokens += request.prompt_tokens
            t.prompt_tokens_cached += sequence.cached_tokens
            booked = request.prompt_tokens - sequence.cached_tokens
            self._events.append(EngineEvent(EventKind.FIRST_OUTPUT, request.request_id, end_s, made))
        else:
            t.histograms["itl_s"].add(end_s - sequence.last_token_s)
        sequence.output_at_join += made
        sequence.last_token_s = end_s
        if sequence.output_at_join >= request.output_tokens:
            self._leave(sequence)
            self._finish(sequence, end_s, request.reason)
        else:
            self._join(sequence)
        return booked

    # -- membership and blocks ----------------------------------------------------------------------

    def _enqueue(self, sequence: Sequence) -> None:
        rank = sequence.request.priority if self.profile.scheduling_policy == "priority" else 0
        sequence.state = State.WAITING
        self._waiting_count += 1
        heappush(self._waiting, (rank, sequence.order, sequence))

    def _queue_heads(self) -> Iterator[Sequence]:
        """Yield the head of the queue until it is empty; the caller pops it or stops."""
        while self._waiting:
            head = self._waiting[0][2]
            if head.state is State.WAITING:
                yield head
            else:
                heappop(self._waiting)

    def _pop_head(self) -> None:
        heappop(self._waiting)
        self._waiting_count -= 1

    def _join(self, sequence: Sequence) -> None:
        """Enter the decode batch of the next step."""
        self._prefilling.pop(sequence.request.request_id)
        sequence.state = State.DECODING
        sequence.join_step = self._committed
        sequence.finish_step = self._committed + sequence.request.output_tokens - sequence.output_at_join
        self._finishes_at[sequence.finish_step].append(sequence)
        self._decoding += 1
        self._kv_offset += sequence.kv_at_join - sequence.join_step
        self._grows_at[self._growth_slot(sequence)] += 1

    def _leave(self, sequence: Sequence, *, grown: bool = True) -> None:
        """Give up slot and blocks. `grown`: the step begun last has already given it its block."""
        self._running.pop(sequence.request.request_id)
        held = sequence.kv_at_join
        if sequence.state is State.DECODING:
            sequence.output_at_join = self._produced(sequence)
            sequence.last_token_s = self._now_s
            held += self._started - sequence.join_step - (0 if grown else 1)
            self._decoding -= 1
            self._kv_offset -= sequence.kv_at_join - sequence.join_step
            self._grows_at[self._growth_slot(sequence)] -= 1
        else:
            self._prefilling.pop(sequence.request.request_id)
        self._used_blocks -= self._blocks_for(held)

    def _growth_slot(self, sequence: Sequence) -> int:
        # At step s it holds kv_at_join + s - join_step tokens; the first past a full block needs one.
        return (sequence.join_step + 1 - sequence.kv_at_join) % self.profile.block_size

    def _produced(self, sequence: Sequence) -> int:
        if sequence.state is not State.DECODING:
            return sequence.output_at_join
        return sequence.output_at_join + self._committed - sequence.join_step

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_size)

    def _free_blocks(self) -> int:
        return self.profile.usable_blocks - self._used_blocks - self._held_blocks

    def _finish(self, sequence: Sequence, at_s: float, reason: FinishReason) -> None:
        """Book a sequence that ended by itself and tell its client."""
        request, produced = sequence.request, sequence.output_at_join
        sequence.state = State.DONE
        del self._sequences[request.request_id]
        self._events.append(EngineEvent(EventKind.FINISHED, request.request_id, at_s, produced, reason))
        self.tally.book_finished(
            reason.value,
            prompt_tokens=request.prompt_tokens,
            computed_tokens=request.prompt_tokens - sequence.cached_tokens,
            output_tokens=produced,
            max_tokens=request.max_tokens,
            preemptions=sequence.preemptions,
            times_s=(sequence.arrived_s, sequence.first_scheduled_s, sequence.first_token_s, at_s),
        )
        if not request.has_siblings:
            self.tally.book_parent(1, produced)
