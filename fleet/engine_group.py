"""Engines of one kind that run together in virtual time, fast enough for months of requests.

Each obeys the law of `fleet.engine` to the last bit (`fleet.engine_kernel`): slots, KV blocks, chunked
prompts, preemption by recompute. Times are seconds, never going back; sizes tokens. `calibrated` makes a
profile serve a stated rate. Prevents: nodes that answer as fast when they are full as when they are empty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fleet import engine_kernel as k
from fleet.engine_profile import EngineProfile
from fleet.errors import Conflict, InvalidInput

#: Engines there is room for at first; then twice as many, and so on.
_FIRST_ROWS = 4


def full_rate_rps(profile: EngineProfile, tokens_in: float, tokens_out: float, squared_cv: float) -> float:
    """Return what an engine with every slot taken serves, requests/s, at these mean lengths (> 0).

    b / (O tau(b)) with b = max_num_seqs: each step decodes b sequences and computes b I / O prompt tokens;
    a sequence met at random holds I + O (1 + cv^2) / 2 tokens. Source: Little's law on the slots; renewal
    theory for the length met at random.
    """
    if tokens_out <= 0 or tokens_in < 0:
        raise InvalidInput("mean output must be above 0", field="/tokens_out", hint="Give positive means")
    b = profile.max_num_seqs
    held = tokens_in + tokens_out * (1 + squared_cv) / 2
    tau_s = (
        profile.step_time_s(b) + profile.gamma_s * b * tokens_in / tokens_out + profile.kappa_s * b * held
    )
    return b / (tokens_out * tau_s)


def calibrated(
    profile: EngineProfile, rate_rps: float, tokens_in: float, tokens_out: float, squared_cv: float = 0.0
) -> EngineProfile:
    """Return the profile with every cost of a step scaled so that, full, it serves `rate_rps` (> 0).

    The curve's shape stays: fixed cost against cost a sequence, knee, prompts. Where the KV cache holds
    fewer sequences than there are slots, it serves less: that is the cache's doing, and left so.
    """
    if not rate_rps > 0:
        raise InvalidInput(f"mu is {rate_rps!r}", field="/mu", hint="Give requests/s above 0")
    factor = full_rate_rps(profile, tokens_in, tokens_out, squared_cv) / rate_rps
    past_s = profile.beta_past_knee_s
    return replace(
        profile,
        alpha_s=profile.alpha_s * factor,
        beta_s=profile.beta_s * factor,
        beta_past_knee_s=None if past_s is None else past_s * factor,
        gamma_s=profile.gamma_s * factor,
        kappa_s=profile.kappa_s * factor,
    )


class Ended(NamedTuple):
    """Requests that ended at the same instant."""

    at_s: float
    names: tuple[int, ...]
    first_s: tuple[float, ...]  # when each one's first token came; none where that is not known


@dataclass(frozen=True, slots=True)
class EngineState:
    """What a poll of an engine would say."""

    kv_used_ratio: float
    running: int
    waiting: int


class EngineGroup:
    """Engines by name. Requests are named by numbers; at most `places` are in an engine, waiting or not."""

    def __init__(self, profile: EngineProfile, places: int | None = None) -> None:
        """Make a group without engines. `places` is at least the profile's slots, which is the default."""
        if profile.batching != "continuous" or not profile.chunked_prefill:
            raise InvalidInput(
                "only continuous batching with chunked prompts runs in groups",
                field="engine",
                hint="The disciplines study has the other ways",
            )
        self.profile = profile
        self._longest = min(profile.max_model_len, profile.kv_capacity_tokens)
        self._places = max(places or 0, profile.max_num_seqs)
        has_knee = profile.knee_seqs is not None and profile.beta_past_knee_s is not None
        self._limits = np.array(
            [
                profile.max_num_seqs,
                profile.max_num_batched_tokens,
                profile.usable_blocks,
                profile.block_size,
                profile.scheduling_policy == "priority",
            ],
            dtype=np.int64,
        )
        self._costs = np.array(
            [
                profile.alpha_s,
                profile.beta_s,
                profile.beta_past_knee_s or 0.0,
                profile.gamma_s,
                profile.kappa_s,
                profile.prefix_hit_ratio,
                float(profile.knee_seqs or 0) if has_knee else math.inf,
            ]
        )
        self._ended = np.zeros(self._places, dtype=np.int64)
        self._ended_first_s = np.zeros(self._places)
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._preempted = 0
        self._step_ends_s = np.zeros(0)
        self._make_rows(_FIRST_ROWS)

    def _make_rows(self, rows: int) -> None:
        """Make room for so many engines more; those there are stay as they are."""
        shapes = ((k.ENGINE_COLUMNS,), (self._places, k.PLACE_COLUMNS), (self.profile.block_size,))
        engines, places, grows = (np.zeros((rows, *shape), dtype=np.int64) for shape in shapes)
        engines[:, k.NEXT_FINISH] = k.NEVER_STEP
        firsts_s, step_ends_s = np.zeros((rows, self._places)), np.full(rows, np.inf)
        old = self._step_ends_s.size
        self._free += range(old + rows - 1, old - 1, -1)
        if old:
            engines, places = np.concatenate((self._engines, engines)), np.concatenate((self._all, places))
            grows = np.concatenate((self._grows, grows))
            firsts_s = np.concatenate((self._firsts_s, firsts_s))
            step_ends_s = np.concatenate((self._step_ends_s, step_ends_s))
        self._engines, self._all, self._grows = engines, places, grows
        self._firsts_s, self._step_ends_s = firsts_s, step_ends_s
        parts = (self._limits, self._costs, engines, places)
        self._run_with = (*parts, firsts_s, grows, step_ends_s, self._ended, self._ended_first_s)
        self._submit_with = (*parts, grows, step_ends_s)

    @property
    def preemptions(self) -> int:
        """How often a sequence lost its blocks, engines that are gone included."""
        return self._preempted + int(self._engines[:, k.PREEMPTED].sum())

    def add(self, name: str) -> None:
        """Add an idle engine. Raises Conflict if there is one of that name."""
        if name in self._rows:
            raise Conflict(f"there is an engine {name} already")
        if not self._free:
            self._make_rows(self._step_ends_s.size)
        self._rows[name] = self._free.pop()

    def remove(self, name: str) -> tuple[int, ...]:
        """Remove an engine; return the requests that were in it."""
        row = self._rows.pop(name)
        places = self._all[row]
        lost = tuple(int(one) for one in places[places[:, k.STATE] != k.FREE, k.NAME])
        self._preempted += int(self._engines[row, k.PREEMPTED])
        self._engines[row], self._all[row], self._grows[row] = 0, 0, 0
        self._engines[row, k.NEXT_FINISH] = k.NEVER_STEP
        self._step_ends_s[row] = np.inf
        self._free.append(row)
        return lost

    def is_empty(self, name: str) -> bool:
        """Say whether nothing is in an engine."""
        row = self._engines[self._rows[name]]
        return not row[k.RUNNING] and not row[k.QUEUED]

    def submit(
        self, request: int, engine: str, prompt_tokens: int, output_tokens: int, now_s: float, rank: int = 0
    ) -> int:
        """Queue a request in an engine; return its place there. All must have been run up to `now_s`.

        Raises InvalidInput for one that can never run there, Conflict when every place is taken.
        """
        if prompt_tokens < 1 or output_tokens < 1 or prompt_tokens + output_tokens > self._longest:
            raise InvalidInput(
                f"{prompt_tokens} prompt and {output_tokens} output tokens do not fit the engine",
                hint=f"At least one of each, at most {self._longest:,}",
            )
        place: int = k.submit(
            now_s, self._rows[engine], request, prompt_tokens, output_tokens, rank, *self._submit_with
        )
        if place < 0:
            raise Conflict(f"engine {engine} holds {self._places} requests", hint="Give it more places")
        return place

    def run_until(self, until_s: float) -> Ended | None:
        """Run up to the first answer that ends, or to `until_s` if none does; then return None."""
        count, _, at_s = k.run_until(until_s, *self._run_with)
        if not count:
            return None
        return Ended(at_s, tuple(self._ended[:count].tolist()), tuple(self._ended_first_s[:count].tolist()))

    def produced(self, engine: str, place: int) -> int:
        """Return the output tokens so far of the request that `submit` gave this place, until it ends."""
        row = self._rows[engine]
        one = self._all[row, place]
        more = self._engines[row, k.COMMITTED] - one[k.JOIN_STEP] if one[k.STATE] == k.DECODE else 0
        return int(one[k.PRODUCED] + more)

    def state(self, engine: str) -> EngineState:
        """Return what an engine would say of itself."""
        row = self._engines[self._rows[engine]]
        used = float(row[k.USED]) / self.profile.usable_blocks
        return EngineState(min(1.0, used), int(row[k.RUNNING]), int(row[k.QUEUED]))
