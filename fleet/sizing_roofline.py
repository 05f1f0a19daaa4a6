"""The fastest a prefill and a decoding step can be on this hardware: bounds, not forecasts.

Seconds. A step takes at least the largest of arithmetic and memory traffic, plus the all-reduces that wait
for it; kernel launches, scheduling and imperfect kernels come on top (`EFFICIENCY`). Prevents: a batch
sized by memory alone whose tokens come too late, and experts counted as free because a token uses few.
Sources: Williams, Waterman, Patterson, "Roofline" (CACM 52:4, 2009); Kaplan et al., "Scaling Laws for
Neural Language Models" (2020), 2.1 (2 FLOP a parameter and token); Thakur et al., "Optimization of
Collective Communication Operations in MPICH" (2005) for the ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fleet.gpus import Gpu
from fleet.model_config import Layer, ModelShape
from fleet.sizing_layout import EngineSettings, Layout
from fleet.sizing_memory import state_bytes, token_bytes
from fleet.sizing_weights import Part, active_parameters, all_parts

#: Share of the roofline that well-tuned serving reaches: low and high. Published MFU of prefill and
#: bandwidth use of decoding lie between; where a node is measured, its own curve replaces this.
EFFICIENCY = (0.4, 0.75)


@dataclass(frozen=True, slots=True)
class Bound:
    """What a step needs at least, seconds each."""

    compute_s: float
    memory_s: float
    link_s: float

    @property
    def total_s(self) -> float:
        return max(self.compute_s, self.memory_s) + self.link_s

    @property
    def limit(self) -> str:
        """What takes most: `compute`, `memory` or `links`."""
        named = {"compute": self.compute_s, "memory": self.memory_s, "links": self.link_s}
        return max(named, key=lambda name: named[name])


@dataclass(frozen=True, slots=True)
class Roofline:
    """One replica of a model on a kind of GPU. Build once, ask for many batches."""

    shape: ModelShape
    gpu: Gpu
    layout: Layout
    settings: EngineSettings
    parts: tuple[Part, ...]
    active: float
    flops: float  # FLOP/s of one GPU at the width the tensor cores multiply

    @classmethod
    def of(cls, shape: ModelShape, gpu: Gpu, layout: Layout, settings: EngineSettings) -> Roofline:
        bits = shape.quantisation.compute_bits if shape.quantisation is not None else 16
        parts = tuple(all_parts(shape, layout))
        return cls(shape, gpu, layout, settings, parts, active_parameters(shape), gpu.flops(bits))

    def decode(self, batch: int, context: float) -> Bound:
        """One token for each of `batch` (>= 1) sequences of `context` tokens on one replica.

        A pipeline works on as many parts of the batch as it has stages; a token waits for all stages, with
        its part only.
        """
        part = ceil(batch / self.layout.pp)
        read = self._weights_read(part) + part * self._cache_read(context)
        flops = 2 * self.active * part + part * self._attention_flops(context)
        return Bound(
            compute_s=flops / self.layout.tp / self.flops,
            memory_s=read / self.gpu.bandwidth_bytes_per_s,
            link_s=self._links_s(part),
        )

    def prefill(self, tokens: int, context: float = 0.0) -> Bound:
        """`tokens` (>= 1) prompt tokens of one replica in one step, `context` tokens already cached."""
        middle = context + tokens / 2
        flops = 2 * self.active * tokens + tokens * self._attention_flops(middle)
        read = self._weights_read(tokens) + self._cache_read(context + tokens)
        return Bound(
            compute_s=flops / self.layout.tp / self.flops,
            memory_s=read / self.gpu.bandwidth_bytes_per_s,
            link_s=self._links_s(tokens),
        )

    def _weights_read(self, tokens: int) -> float:
        """Bytes one GPU reads: of the experts those that any token goes to, if they go evenly.

        Spread experts work for all replicas, which decode as many tokens each.
        """
        total = 0.0
        reaching = tokens * (self.layout.dp if self.layout.expert_parallel else 1)
        for part in self.parts:
            if not part.is_read:
                continue
            touched = 1 - (1 - part.used) ** reaching if part.is_expert else 1.0
            total += part.gpu_bytes * touched
        return total

    def _cache_read(self, context: float) -> float:
        each = token_bytes(self.shape, self.settings.kv_bits, self.layout.tp)
        window = self.shape.window if self.shape.window is not None else context
        cost = {
            Layer.FULL: context * each,
            Layer.SLIDING: min(context, window) * each,
            Layer.LINEAR: state_bytes(self.shape, self.layout.tp) * 2,  # read and written
        }
        return sum(cost[layer] for layer in self.shape.layers)

    def _attention_flops(self, context: float) -> float:
        """FLOP of one token's scores and values over `context` tokens, all layers."""
        shape = self.shape
        if shape.latent is not None:  # absorbed: scores over latent and rotary key, values over the latent
            width = shape.heads * (2 * shape.latent.kv_rank + shape.latent.rope_dim)
        else:
            width = 2 * shape.heads * shape.head_dim
        window = shape.window if shape.window is not None else context
        span = {Layer.FULL: context, Layer.SLIDING: min(context, window), Layer.LINEAR: 0.0}
        return 2 * width * sum(span[layer] for layer in shape.layers)

    def _links_s(self, tokens: int) -> float:
        """Two ring all-reduces a layer among tp GPUs; one hand-over between stages.

        Experts spread over replicas: each token travels to its experts and back instead of the second.
        """
        tp, width, experts = self.layout.tp, self.shape.hidden * 2, self.shape.experts
        reduces = 2 * len(self.shape.layers)
        travelled = 0.0
        if experts is not None and self.layout.expert_parallel and self.layout.dp > 1:
            reduces -= len(experts.layers)
            away = 1 - 1 / (tp * self.layout.dp)
            travelled = len(experts.layers) * 2 * experts.per_token * away * tokens * width / tp
        reduced = reduces * (2 * (tp - 1) / tp) * tokens * width
        handed = (self.layout.pp - 1) * tokens * width / tp
        return (reduced + travelled + handed) / self.gpu.link_bytes_per_s


def largest_batch(
    roofline: Roofline, *, context: float, token_s: float, limit: int, efficiency: float = EFFICIENCY[0]
) -> int:
    """Return the most sequences of `context` tokens whose step takes at most `token_s`; 0 if none.

    `limit` (>= 0): what the cache holds. Steps grow with the batch, so bisection finds the largest.
    """

    def is_in_time(batch: int) -> bool:
        return roofline.decode(batch, context).total_s / efficiency <= token_s

    if limit < 1 or not is_in_time(1):
        return 0
    low, high = 1, limit + 1  # low is in time; high is not, or out of cache
    while high - low > 1:
        middle = (low + high) // 2
        if is_in_time(middle):
            low = middle
        else:
            high = middle
    return low
