"""What of a GPU's memory is left for the KV cache, and how many tokens that holds, as vLLM counts them.

Bytes are for one GPU, the one that holds most. Overhead is a band with its reasons, never one number: vLLM
measures it by a profiling run that cannot be repeated on paper. Prevents: a budget in bytes divided by a
mean cost although windows and states cost the same at any length, and latents divided by the GPUs that copy
them. Source: vLLM, `vllm/v1/worker/gpu_worker.py` (determine_available_memory), `kv_cache_interface.py`
(max_memory_usage_bytes) and `kv_cache_utils.py` in `vllm/v1`; formulas in docs/sizing.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fleet.gpus import GIB, Gpu
from fleet.model_config import Layer, ModelShape
from fleet.sizing_layout import EngineSettings, Layout, stage_layers
from fleet.sizing_weights import gpu_weight_bytes

#: CUDA context and libraries outside the allocator: public logs say 0.16 to 1.8 GiB on one GPU.
_CONTEXT = (0.16 * GIB, 0.35 * GIB, 1.9 * GIB)
#: NCCL and all-reduce buffers with tensor or pipeline parallel.
_LINKS = (0.0, 0.5 * GIB, 2.0 * GIB)
#: CUDA graphs, counted before the cache is sized since vLLM 0.21; outside of it before.
_GRAPHS = (0.0, 0.3 * GIB, 1.0 * GIB)


@dataclass(frozen=True, slots=True)
class Band:
    """Low, expected, high: bytes or tokens."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True, slots=True)
class Memory:
    """One GPU's memory, bytes, and what the replica's cache holds, tokens. Zero tokens: it does not fit."""

    usable_bytes: float  # memory times --gpu-memory-utilization
    weight_bytes: float
    overhead: Band
    kv_bytes: Band  # left for the cache
    token_bytes: float  # of a token's keys and values on this GPU, all full-attention layers
    request_bytes: float  # of one request of the longest context
    tokens: Band

    @property
    def fits(self) -> bool:
        """Whether one request of the longest context fits at the expected overhead."""
        return self.kv_bytes.expected >= self.request_bytes > 0


def token_bytes(shape: ModelShape, kv_bits: int, tp: int = 1) -> float:
    """Bytes of one token in one attention layer on one GPU. Copied, not split, where tp > KV heads."""
    if shape.latent is not None:
        return (shape.latent.kv_rank + shape.latent.rope_dim) * kv_bits / 8
    return 2 * max(1, ceil(shape.kv_heads / tp)) * shape.head_dim * kv_bits / 8


def state_bytes(shape: ModelShape, tp: int = 1) -> float:
    """Bytes of one sequence's state in one linear layer on one GPU: fp32 state, 16 bit convolution."""
    if shape.linear is None:
        return 0.0
    linear = shape.linear
    state = linear.value_heads * linear.value_dim * linear.key_dim * 4
    channels = 2 * linear.key_heads * linear.key_dim + linear.value_heads * linear.value_dim
    return (state + channels * (linear.kernel - 1) * 2) / tp


def request_bytes(shape: ModelShape, tokens: int, settings: EngineSettings, layout: Layout) -> float:
    """Bytes a request of `tokens` holds on the GPU that holds most, in whole blocks."""
    block = settings.block_tokens
    in_block = token_bytes(shape, settings.kv_bits, layout.tp) * block
    in_window = tokens
    if shape.window is not None:
        in_window = min(shape.window - 1 + settings.batched_tokens, tokens)
    costs = {
        Layer.FULL: ceil(tokens / block) * in_block,
        Layer.SLIDING: min(ceil(in_window / block) + 1, ceil(tokens / block)) * in_block,
        Layer.LINEAR: state_bytes(shape, layout.tp),
    }
    stages = stage_layers(len(shape.layers), layout.pp)
    return max(sum(costs[shape.layers[n]] for n in layers) for layers in stages)


def activation_bytes(shape: ModelShape, settings: EngineSettings, layout: Layout) -> Band:
    """Peak of one profiling step on one GPU: the widest layer's intermediates, or the sampler's logits.

    A token keeps gate, up and their product (3 widths) and three residuals; with experts, a copy for each
    expert it goes to. Matches the peaks vLLM printed for Llama-3.1-8B at 20,000 and 29,000 tokens. Samplers
    keep 10 to 40 bytes a logit, by version.
    """
    widths = 3 * shape.mlp_width / layout.tp
    if (experts := shape.experts) is not None:
        shards = 1 if layout.expert_parallel else layout.tp
        spread = layout.tp * layout.dp if layout.expert_parallel else 1
        widths = experts.per_token / spread * (3 * experts.width / shards + shape.hidden)
    layer = settings.batched_tokens * 2 * (widths + 3 * shape.hidden)
    logits = settings.max_seqs * shape.vocabulary
    return Band(0.7 * layer, max(layer, 10 * logits), max(1.5 * layer, 40 * logits))


def memory(shape: ModelShape, gpu: Gpu, layout: Layout, settings: EngineSettings) -> Memory:
    """Return how one GPU's memory divides, and the tokens of one replica's cache."""
    usable = gpu.memory_bytes * settings.memory_ratio
    weights = gpu_weight_bytes(shape, layout)
    peak = activation_bytes(shape, settings, layout)
    extras = [_CONTEXT]
    if layout.tp * layout.pp > 1:
        extras.append(_LINKS)
    if settings.has_graphs:
        extras.append(_GRAPHS)
    low, expected, high = (sum(extra[n] for extra in extras) for n in range(3))
    overhead = Band(peak.low + low, peak.expected + expected, peak.high + high)
    left = Band(
        max(0.0, usable - weights - overhead.high),
        max(0.0, usable - weights - overhead.expected),
        max(0.0, usable - weights - overhead.low),
    )
    context = settings.context(shape)
    needed = request_bytes(shape, context, settings, layout)
    stages = stage_layers(len(shape.layers), layout.pp)
    full = max(sum(shape.layers[n] is Layer.FULL for n in layers) for layers in stages)
    return Memory(
        usable_bytes=usable,
        weight_bytes=weights,
        overhead=overhead,
        kv_bytes=left,
        token_bytes=full * token_bytes(shape, settings.kv_bits, layout.tp),
        request_bytes=needed,
        tokens=Band(
            *(cache_tokens(shape, b, settings, layout) for b in (left.low, left.expected, left.high))
        ),
    )


def cache_tokens(shape: ModelShape, kv_bytes: float, settings: EngineSettings, layout: Layout) -> float:
    """Return the tokens that `kv_bytes` on the fullest GPU hold: vLLM's "GPU KV cache size".

    Whole blocks where every layer keeps every token; otherwise concurrency at the longest context times
    that context, which is what vLLM prints for hybrids.
    """
    if all(layer is Layer.FULL for layer in shape.layers):
        block = request_bytes(shape, settings.block_tokens, settings, layout)
        return float(int(kv_bytes // block) * settings.block_tokens)
    context = settings.context(shape)
    return float(int(kv_bytes / request_bytes(shape, context, settings, layout) * context))
