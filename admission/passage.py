"""One request's way through the gateway: its lease, its outcome, its usage record. Each exactly once.

Times are seconds on the clock's monotonic scale unless they end in `_at_s` (Unix). Tokens are counts.
Prevents: a lease released twice or never, and a request that reached an engine without a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from admission.answers import HeaderList
from admission.calls import Call
from admission.decision_log import DecisionLog, Entry
from admission.estimate import FIRST_EVENTS, PromptEstimator
from admission.identity import Caller
from admission.metrics import Flow, GatewayMetrics
from admission.running_journal import RunningJournal
from admission.sse import Usage
from admission.trace_context import context_of
from admission.tracing_form import SpanMaker, SpanSink
from admission.usage_json import UsageForms, draft_json, record_json, sent_json
from admission.usage_spool import UsageSpool
from admission.waiting import WaitingRoom
from fleet.limiters import Limiter
from fleet.offers import Dispatch, Evicted, Lease, Refused
from fleet.outcomes import Outcome

_COMPLETED: Final = Outcome.COMPLETED  # to get a member of an enumeration costs as much as a call


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where endings are booked."""

    now_s: Callable[[], float]  # of the clock
    unix_s: Callable[[], float]
    room: WaitingRoom
    metrics: GatewayMetrics
    spool: UsageSpool
    journal: RunningJournal
    estimator: PromptEstimator
    pool_of: Callable[[str], str]
    decisions: DecisionLog
    forms: UsageForms
    revision: int | None  # of the policy in force


class Passage:
    """One offered request. `finish` may be called on every path; the first call counts."""

    def __init__(self, ledger: Ledger, caller: Caller, call: Call, request_id: str) -> None:
        self._ledger = ledger
        self.caller = caller
        self.call = call
        self.request_id = request_id
        self.flow: Flow = (caller.label, caller.tier)
        self.counts = ledger.metrics.of(self.flow)
        self._arrived_s = ledger.now_s()
        self._sent_s = self._arrived_s
        self._last_lease: Lease | None = None
        self._reached_engine = False
        self._queued_s: float | None = None
        self._counted_tokens: int | None = None
        self._is_queued = self._waits_again = False
        self._booked_tokens = 0
        self._sent_json = b""  # of the last lease, once it was needed
        self.would_refuse: tuple[Limiter, ...] = ()
        self.lease: Lease | None = None
        self.usage: Usage | None = None
        self.events = 0  # streamed events that reached us: what is estimated from until the engine says
        self._tokens_per_event = 1.0
        self.ttft_s: float | None = None
        self._has_no_output = True  # no engine that makes output has it
        self.may_have_left = False  # for the node that it was sent to last
        self._answering_since_s = self._arrived_s
        self.transfer: Mapping[str, Any] | None = None  # what a prefill node says of the prompt's KV cache
        self.prefill_node: str | None = None  # which said it
        self.suspects: tuple[tuple[str, str | None], ...] = ()  # nodes that failed it (`admission.blame`)
        self.trace: SpanSink | None = None
        self.passed_on = b""  # header lines of the client's trace
        self.is_finished = False
        self.outcome: Outcome | None = None
        self.entry = self._entry()
        ledger.decisions.add(self.entry)
        self.counts.offered += 1

    def _entry(self) -> Entry:
        ledger, caller, call = self._ledger, self.caller, self.call
        return Entry(
            self.request_id,
            ledger.unix_s(),
            self._arrived_s,
            caller.tenant,
            caller.key_id,
            caller.tier,
            call.model,
            call.endpoint,
            ledger.revision,
            call.prompt.text_bytes,
            ledger.estimator.bytes_per_token(call.model),
            call.max_tokens,
            call.choices,
        )

    def traced(self, headers: HeaderList, maker: SpanMaker | None) -> None:
        """Follow the client's trace: by spans of ours where they are made, else by passing it on."""
        if maker is not None:
            self.trace = maker.begin(headers, self.entry)
        elif (found := context_of(headers)) is not None:
            self.passed_on = found.lines()

    def trace_lines(self, node: str) -> bytes:
        """Return the header lines that tell a node of the trace; a try at it begins."""
        return self.passed_on if self.trace is None else self.trace.sending(node)

    def counted(self, prompt_tokens: int | None, basis: str) -> None:
        """Take an exact count of the prompt; None: the estimate holds."""
        self._counted_tokens = prompt_tokens
        self.entry.prompt_basis = "" if prompt_tokens is None else basis

    def prompt_tokens(self) -> int:
        """Return what the prompt is taken to be."""
        if self._counted_tokens is not None:
            return self._counted_tokens
        return self._ledger.estimator.tokens(self.call.model, self.call.prompt)

    def waiting(self) -> None:
        """Note that the gate has it and has not decided yet."""
        self._is_queued = True
        self.counts.queued += 1

    def decided(self, decision: Dispatch | Refused | Evicted) -> None:
        """Note why it got no node, and which limits in shadow it met; those of its first try count."""
        if not isinstance(decision, Dispatch):
            self.entry.refused(decision)
        if self._last_lease is not None or isinstance(decision, Refused):
            return
        one = decision.lease if isinstance(decision, Dispatch) else decision.ticket
        self.would_refuse = one.would_refuse
        for limiter in one.would_refuse:
            self._ledger.metrics.would_refuse[(*self.flow, limiter.value)] += 1

    def headers(self) -> HeaderList:
        """Return the headers of ours that every answer carries: its id, and limits in shadow it met."""
        headers: HeaderList = [(b"x-request-id", self.request_id.encode())]
        if self.would_refuse:
            headers.append((b"x-rhodeck-would-refuse", ",".join(self.would_refuse).encode()))
        return headers

    def dispatched(self, dispatch: Dispatch) -> None:
        """Hold the lease of a dispatch: the first, or one to another node."""
        counts = self.counts
        self._leave_queue()
        counts.running += 1
        self._booked_tokens = dispatch.lease.tokens
        counts.booked_tokens += self._booked_tokens
        self.lease = self._last_lease = dispatch.lease
        self._sent_json, self.transfer, self.prefill_node = b"", None, None
        self.may_have_left = False
        self._sent_s = self._ledger.now_s()
        self.entry.sent(dispatch.lease, self._sent_s)
        if self._waits_again:
            self._waits_again = False
            self._queued_s = (self._queued_s or 0.0) + dispatch.lease.queued_s
        elif self._queued_s is None:
            self._queued_s = self._sent_s - self._arrived_s
            counts.dispatched += 1
            counts.queue_wait.observe(self._queued_s)
        else:
            self._ledger.metrics.retries += 1

    def gave_up(self, why: str, *, reached_engine: bool) -> None:
        """Return the lease of an attempt that brought no answer; another node may be tried."""
        self.entry.failed(why)
        if self.trace is not None:
            self.trace.gave_up(why)
        self._reached_engine |= reached_engine
        self._has_no_output = True
        lease = self._take_lease()
        if lease is not None:
            self._ledger.room.release(
                lease, prompt_tokens=0, output_tokens=0, outcome=Outcome.UPSTREAM_ERROR
            )

    def taken_back(self, why: str) -> None:
        """Note that its room was given away before its answer began: it waits again."""
        now_s = self._ledger.now_s()
        self.entry.failed(why)
        lease = self._take_lease()
        if lease is not None:
            engine_s = now_s - self._sent_s if self._reached_engine else 0.0
            prompt_tokens = lease.prompt_tokens if self._reached_engine else 0
            self._ledger.room.recalls.count(self.flow, engine_s, prompt_tokens)
        self.usage, self._has_no_output, self._waits_again = None, True, True
        self.waiting()

    def extended(self, lease: Lease) -> None:
        """Note that the lease books more now."""
        self.counts.booked_tokens += lease.tokens - self._booked_tokens
        self._booked_tokens = lease.tokens

    def sending(self) -> None:
        """Note, on disk too, that the request goes to an engine now."""
        self.may_have_left = True
        self._answering_since_s = self._ledger.now_s()
        lease = self.lease
        if lease is not None:
            draft = draft_json(self._as_sent(lease), lease.prompt_tokens, lease.tokens)
            self._ledger.journal.begin_json(self.request_id, draft)

    def unsent(self) -> None:
        """Note that it did not leave after all, or not whole: nobody works on it."""
        self.may_have_left = False

    def reached(self) -> None:
        """Note that the engine that answers has the request."""
        self._reached_engine, self._has_no_output = True, False

    def prefilled(self) -> None:
        """Note that a prefill node has, or had, the prompt: there is no output yet."""
        self._reached_engine = self._has_no_output = True

    def seconds_per_token(self) -> float | None:
        """Return the pace of the answer since it was asked for; None: the engine counted no output."""
        if self.usage is None or not self.usage.output_tokens:
            return None
        return (self._ledger.now_s() - self._answering_since_s) / self.usage.output_tokens

    def first_byte(self) -> None:
        """Note the first byte of the answer."""
        if self.ttft_s is None:
            self.ttft_s = self._ledger.now_s() - self._arrived_s
            self.counts.ttft.observe(self.ttft_s)
            call = self.call
            self._tokens_per_event = self._ledger.estimator.tokens_per_event(call.model, call.endpoint)

    def streamed_tokens(self) -> int:
        """Return about how much output was streamed so far: by its events, within the client's bound."""
        events, bound = self.events, self.call.max_tokens
        later = events - FIRST_EVENTS
        tokens = events if later <= 0 else FIRST_EVENTS + round(later * self._tokens_per_event)
        return tokens if bound is None or tokens <= bound else bound

    def finish(self, outcome: Outcome, *, used_nothing: bool = False) -> None:
        """Book the ending: outcome, lease, tokens, usage record. Later calls change nothing.

        `used_nothing`: the engine refused the request without working on it.
        """
        if self.is_finished:
            return
        self.is_finished, self.outcome = True, outcome
        ledger = self._ledger
        self.counts.ended(outcome)
        self._leave_queue()
        lease = self._take_lease()
        now_s = ledger.now_s()
        prompt, output = self._used(lease, outcome, used_nothing, now_s - self._answering_since_s)
        self._note_ending(outcome, prompt, output, now_s)
        if self.trace is not None:
            self.trace.ended()
        if lease is not None and outcome is _COMPLETED and self.usage is not None:
            booked = lease.ticket  # the lease grows with the answer, the ticket does not
            ledger.metrics.count_prediction(
                self.call.model,
                self.call.endpoint,
                booked.prompt_tokens,
                booked.output_tokens,
                prompt,
                output,
            )
        if lease is not None:
            taught = Outcome.UPSTREAM_ERROR if used_nothing else outcome  # a refusal is no short answer
            ledger.room.release(lease, prompt_tokens=prompt, output_tokens=output, outcome=taught)
        has_record = self._reached_engine and self._last_lease is not None
        if self._reached_engine and self._last_lease is not None:
            self._record(self._last_lease, outcome, prompt, output)
        ledger.journal.end(self.request_id, has_record=has_record)

    def _note_ending(self, outcome: Outcome, prompt: int, output: int, now_s: float) -> None:
        entry = self.entry
        entry.outcome, entry.ttft_s = outcome, self.ttft_s
        entry.used_prompt, entry.used_output = prompt, output
        entry.is_exact = self.usage is not None
        entry.ended_s = now_s

    def _leave_queue(self) -> None:
        if self._is_queued:
            self._is_queued = False
            self.counts.queued -= 1

    def _take_lease(self) -> Lease | None:
        lease, self.lease = self.lease, None
        if lease is not None:
            self.counts.running -= 1
            self.counts.booked_tokens -= self._booked_tokens
        return lease

    def _used(
        self, lease: Lease | None, outcome: Outcome, used_nothing: bool, engine_s: float
    ) -> tuple[int, int]:
        """Return prompt and output tokens: counted by the engine, else by us, else estimated."""
        estimator, call = self._ledger.estimator, self.call
        if self.usage is not None:
            estimator.learn(call.model, call.prompt, self.usage.prompt_tokens)
            estimator.learn_pace(call.model, self.usage.output_tokens, engine_s)
            if outcome is _COMPLETED and call.is_stream:
                estimator.learn_events(call.model, call.endpoint, self.usage.output_tokens, self.events)
            return self.usage.prompt_tokens, self.usage.output_tokens
        if used_nothing or lease is None or not self._reached_engine:
            return 0, 0
        if call.is_stream or self._has_no_output:
            return lease.prompt_tokens, self.streamed_tokens()
        return lease.prompt_tokens, estimator.output_after(call.model, engine_s, lease.output_tokens)

    def _as_sent(self, lease: Lease) -> bytes:
        """Return the part of the usage record that no answer changes (`sent_json`)."""
        if not self._sent_json:
            ledger, caller, call, node = self._ledger, self.caller, self.call, lease.node
            names = ledger.forms.names(
                caller.tenant,
                caller.key_id,
                call.model,
                call.endpoint,
                node,
                ledger.pool_of(node),
                lease.tier,
            )
            self._sent_json = sent_json(names, self.request_id, self._queued_s or 0.0)
        return self._sent_json

    def _record(self, lease: Lease, outcome: Outcome, prompt: int, output: int) -> None:
        """Count the tokens and write the one usage record (`fleet.messages.UsageRecord`)."""
        ledger, usage = self._ledger, self.usage
        self.counts.used(prompt, output)
        seq = ledger.spool.next_seq
        record = record_json(
            self._as_sent(lease),
            prompt,
            lease.tokens,
            seq,
            outcome,
            None if usage is None else usage.cached_tokens,
            output,
            usage is not None,
            self.ttft_s,
            self.entry.ended_s - self._sent_s,
            ledger.unix_s(),
        )
        ledger.spool.append_json(seq, record)
