"""Cumulative counters and histograms of a simulated engine, with vLLM's names, edges and moments.

Counts are since the engine's start, times are seconds, sizes are tokens. Values are booked when vLLM
books them: prompt tokens when the prefill ends, sizes and latencies when a sequence finishes.
Prevents: a simulator whose counters cannot be told from a real engine's being wrong in a way tests miss.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from fleet.readings import Histogram

#: Upper bucket edges of vLLM 0.8-0.33, in seconds.
LATENCY_EDGES = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
TTFT_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
ITL_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0,
)  # fmt: skip
ITERATION_EDGES = (
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
)  # fmt: skip
PARAMS_N_EDGES = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_EDGES = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)

#: Reasons a sequence can finish with, in the order of vLLM's page.
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


#: The histograms a reader of metrics pages keeps, by its names.
READ_HISTOGRAMS = (
    "e2e_s", "ttft_s", "itl_s", "tpot_s", "queue_wait_s", "prefill_s", "decode_s", "inference_s",
    "prompt_tokens", "generation_tokens", "iteration_tokens", "params_n",
)  # fmt: skip


def token_edges(max_model_len: int) -> tuple[float, ...]:
    """Return the 1-2-5 series up to `max_model_len` tokens (>= 1), as vLLM builds it."""
    edges: list[float] = []
    decade = 1
    while decade <= max_model_len:
        edges.extend(float(decade * m) for m in (1, 2, 5) if decade * m <= max_model_len)
        decade *= 10
    return tuple(edges)


class HistogramTally:
    """A histogram being filled. An observation equal to an edge belongs to that edge's bucket."""

    __slots__ = ("counts", "edges", "sum")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Book `times` observations of `value`."""
        self.counts[bisect_left(self.edges, value)] += times
        self.sum += value * times

    def snapshot(self) -> Histogram:
        """Return an immutable copy."""
        return Histogram(self.edges, tuple(self.counts), self.sum)


@dataclass(slots=True)
class EngineTally:
    """Every cumulative number of one engine's life."""

    max_model_len: int
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHED_REASONS, 0))
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    histograms: dict[str, HistogramTally] = field(init=False)

    def __post_init__(self) -> None:
        tokens = token_edges(self.max_model_len)
        self.histograms = {
            "prompt_tokens": HistogramTally(tokens),
            "generation_tokens": HistogramTally(tokens),
            "iteration_tokens": HistogramTally(ITERATION_EDGES),
            "max_generation_tokens": HistogramTally(tokens),
            "params_n": HistogramTally(PARAMS_N_EDGES),
            "params_max_tokens": HistogramTally(tokens),
            "ttft_s": HistogramTally(TTFT_EDGES),
            "itl_s": HistogramTally(ITL_EDGES),
            "tpot_s": HistogramTally(ITL_EDGES),
            "e2e_s": HistogramTally(LATENCY_EDGES),
            "queue_wait_s": HistogramTally(LATENCY_EDGES),
            "inference_s": HistogramTally(LATENCY_EDGES),
            "prefill_s": HistogramTally(LATENCY_EDGES),
            "decode_s": HistogramTally(LATENCY_EDGES),
            "preemptions": HistogramTally(PREEMPTION_EDGES),
            "prefill_computed_tokens": HistogramTally(tokens),
        }

    def book_parent(self, choices: int, longest_output_tokens: int) -> None:
        """Book what vLLM books once per request, whatever its `n`: when the last choice finished."""
        self.histograms["params_n"].add(choices)
        self.histograms["max_generation_tokens"].add(longest_output_tokens)

    def book_finished(
        self,
        reason: str,
        *,
        prompt_tokens: int,
        computed_tokens: int,
        output_tokens: int,
        max_tokens: int | None,
        preemptions: int,
        times_s: tuple[float, float | None, float | None, float],
    ) -> None:
        """Book one sequence that ended by itself.

        `times_s`: arrived, first scheduled, first token, last token. An interval with an unknown end
        (a sequence refused before it ran) is not observed.
        """
        h = self.histograms
        arrived_s, scheduled_s, first_s, last_s = times_s
        self.finished[reason] += 1
        h["prompt_tokens"].add(prompt_tokens)
        h["generation_tokens"].add(output_tokens)
        h["prefill_computed_tokens"].add(computed_tokens)
        h["preemptions"].add(preemptions)
        h["e2e_s"].add(last_s - arrived_s)
        if max_tokens is not None:
            h["params_max_tokens"].add(max_tokens)
        if scheduled_s is None:
            return
        h["queue_wait_s"].add(scheduled_s - arrived_s)
        h["inference_s"].add(last_s - scheduled_s)
        if first_s is None:
            return
        h["prefill_s"].add(first_s - scheduled_s)
        h["decode_s"].add(last_s - first_s)
        h["tpot_s"].add((last_s - first_s) / (output_tokens - 1) if output_tokens > 1 else 0.0)
