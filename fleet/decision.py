"""What a gateway decided about one request, and the same in words.

Counts are tokens, times seconds; `at_s` is Unix time. None means that it did not come to that, or is not
known. Prevents: "why was I refused" answered by guessing from counters.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from fleet.limiters import Limiter
from fleet.messages import Label, Words
from fleet.outcomes import Outcome, Tier
from fleet.placement import REGARDLESS
from fleet.requeue import BY_RECALL


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")  # a newer gateway may say more


class Estimate(_Part):
    """What the request was taken to need."""

    prompt_tokens: int
    prompt_bytes: int  # of text; 0 where token ids were given
    bytes_per_token: float
    prompt_basis: Words = ""  # who counted the prompt; "": it was estimated from its bytes
    output_tokens: int | None = None  # None: refused before that was asked
    output_basis: Words = ""
    max_tokens: int | None = None
    choices: int = 1
    size_class: Words | None = None


class Wait(_Part):
    """Its time in the queue."""

    ahead_requests: int  # in its tier's queue when it joined
    ahead_tokens: int
    expected_s: float | None
    waited_s: float


class Prefill(_Part):
    """A node that was asked to compute the prompt for another."""

    node: Label
    took_s: float | None = None  # None: it did not say anything yet, or the client left before
    failure: Words | None = None


class Attempt(_Part):
    """One node it was sent to."""

    node: Label
    rule: Words
    candidates: int  # nodes that had room
    room_tokens: int  # left on the node after it; below 0: not even an empty request fits there now
    after_s: float  # from arrival
    waited_s: float = 0.0  # at the gate for this node; of the first, its whole wait
    failure: Words | None = None
    prefills: tuple[Prefill, ...] = ()  # in their order, before the node got the request


class LimitMet(_Part):
    """The limit it was refused by."""

    name: Words
    quota: int
    used: int
    needed: int


class Ending(_Part):
    """How it left."""

    outcome: Outcome
    reason: Words = ""
    retry_after_s: int | None = None
    limit: LimitMet | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    is_exact: bool = False  # counted by the engine
    ttft_s: float | None = None
    total_s: float


class Decision(_Part):
    """All that is kept about one request."""

    schema_: Literal["rhodeck.decision/1"] = Field(default="rhodeck.decision/1", alias="schema")
    gateway: Label
    revision: int | None
    request_id: Label
    at_s: float
    tenant: Label
    key_id: Words
    asked_tier: Tier | None
    tier: Tier | None  # it was served in; differs after a spent budget
    model: Words
    endpoint: Words
    estimate: Estimate
    would_refuse: tuple[Words, ...] = ()
    wait: Wait | None = None  # None: it did not queue
    attempts: tuple[Attempt, ...] = ()
    ending: Ending | None = None  # None: it is still inside


def in_words(decision: Decision) -> list[str]:
    """Return the decision as lines for a terminal, in the order in which things happened."""
    one = decision
    tier = one.asked_tier or one.tier
    head = f"{one.request_id}: {one.tenant}, {tier or 'own tier'}, {one.model}, {one.endpoint}"
    lines = [f"{head}; gateway {one.gateway}, policy revision {one.revision or 'unknown'}"]
    if one.tier is not None and one.asked_tier is not None and one.tier is not one.asked_tier:
        lines.append(f"tier: counted as {one.tier}, the tenant's monthly budget is spent")
    lines.append(_estimate(one.estimate))
    lines += [f"shadow: {_would(name)}" for name in one.would_refuse]
    lines.append(_wait(one.wait) if one.wait is not None else "queue: it did not wait")
    for place, attempt in enumerate(one.attempts):
        before = {each.node for each in one.attempts[:place]}
        lines += [_attempt(attempt, before), *map(_prefill, attempt.prefills)]
    lines.append("end: it is still inside" if one.ending is None else _ending(one.ending))
    return lines


def _estimate(one: Estimate) -> str:
    source = f"{one.prompt_bytes} bytes at {one.bytes_per_token:.2f} a token" if one.prompt_bytes else "ids"
    source = one.prompt_basis or source
    prompt = f"estimate: prompt {one.prompt_tokens} tokens ({source})"
    if one.output_tokens is None:
        return prompt
    answers = f" for {one.choices} answers" if one.choices > 1 else ""
    in_class = f"; size class {one.size_class}" if one.size_class else ""
    booked = one.prompt_tokens + one.output_tokens
    return f"{prompt}, output {one.output_tokens}{answers} ({one.output_basis}): {booked} booked{in_class}"


def _wait(one: Wait) -> str:
    expected = "not known" if one.expected_s is None else f"{one.expected_s:.2f} s"
    return (
        f"queue: joined behind {one.ahead_requests} requests ({one.ahead_tokens} tokens) of its tier, "
        f"expected wait {expected}, waited {one.waited_s:.3f} s"
    )


def _would(limiter: str) -> str:
    spent = limiter == Limiter.MONTHLY_BUDGET  # what happens then is the tenant's `over_budget`
    return f"{limiter} would have refused it" + (" or made it best_effort" if spent else "")


def _attempt(one: Attempt, before: set[str]) -> str:
    """Say where it went. `before`: nodes it was sent to before, which others are preferred to."""
    if one.rule in (REGARDLESS, BY_RECALL):
        nodes = one.rule
    elif one.candidates == 1:
        nodes = f"the only {'other ' if before - {one.node} else ''}node with room"
    else:
        nodes = f"{one.rule} of {one.candidates} with room"
    left = "nothing more fits there now" if one.room_tokens < 0 else f"{one.room_tokens} tokens left there"
    again = f", having waited {one.waited_s:.3f} s again" if before and one.waited_s >= 0.0005 else ""
    failed = f"; failed: {one.failure}" if one.failure else ""
    return f"node: {one.node} after {one.after_s:.3f} s{again} ({nodes}; {left}){failed}"


def _prefill(one: Prefill) -> str:
    took = "no answer yet" if one.took_s is None else f"{one.took_s:.3f} s"
    return f"prefill: {one.node}, {took}" + (f"; failed: {one.failure}" if one.failure else "")


def _ending(one: Ending) -> str:
    said = f"end: {one.outcome} after {one.total_s:.3f} s"
    if one.ttft_s is not None:
        said += f", first byte after {one.ttft_s:.3f} s"
    if one.prompt_tokens or one.output_tokens:
        counted = "counted by the engine" if one.is_exact else "estimated"
        said += f"; used {one.prompt_tokens} + {one.output_tokens} tokens, {counted}"
    if one.reason:
        said += f"; {one.reason}"
    if one.retry_after_s is not None:
        said += f"; told to come back in {one.retry_after_s} s"
    return said
