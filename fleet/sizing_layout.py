"""How a model is spread over the GPUs of a node, and the settings that decide its memory.

Prevents: a tensor-parallel size that the engine refuses at start, found after 140 GB were downloaded.
Source: vLLM documentation, "Parallelism and Scaling"; vLLM, `vllm/config/model.py`
(verify_with_parallel_config) and `vllm/config/cache.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from fleet.errors import InvalidInput
from fleet.model_config import ModelShape


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensor, pipeline and data parallel sizes. With `expert_parallel`, experts are spread over tp x dp."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    expert_parallel: bool = False

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def words(self) -> str:
        """Such as `TP 4 x DP 2, experts spread`."""
        parts = [
            f"{name} {size}"
            for name, size in (("TP", self.tp), ("PP", self.pp), ("DP", self.dp))
            if size > 1
        ]
        said = " x ".join(parts) or "one GPU"
        return f"{said}, experts spread" if self.expert_parallel else said


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What of a launch decides memory and speed. Defaults are what we suggest to start from."""

    memory_ratio: float = 0.9  # --gpu-memory-utilization
    kv_bits: int = 16  # --kv-cache-dtype: 16 for auto, 8 for fp8
    block_tokens: int = 16
    max_context: int | None = None  # --max-model-len; None: the model's own
    batched_tokens: int = 8192  # --max-num-batched-tokens
    max_seqs: int = 256
    has_graphs: bool = True  # False with --enforce-eager

    def __post_init__(self) -> None:
        """Raises InvalidInput for a setting no engine would take."""
        if not 0 < self.memory_ratio <= 1:
            raise InvalidInput(
                f"memory ratio is {self.memory_ratio}", field="memory_ratio", hint="Above 0, at most 1"
            )
        if self.kv_bits not in (8, 16):
            raise InvalidInput(f"KV cache of {self.kv_bits} bits", field="kv_bits", hint="8 or 16")
        bounds = {"block_tokens": 4096, "batched_tokens": 10_000_000, "max_seqs": 100_000}
        for name, high in bounds.items():
            if not 1 <= getattr(self, name) <= high:
                raise InvalidInput(f"{name} is {getattr(self, name)}", field=name, hint=f"From 1 to {high}")
        if self.max_context is not None and not 1 <= self.max_context <= 50_000_000:
            raise InvalidInput(
                f"max_context is {self.max_context}", field="max_context", hint="1 to 50000000"
            )

    def context(self, shape: ModelShape) -> int:
        """The longest request, tokens."""
        return shape.context if self.max_context is None else self.max_context


def refusal(shape: ModelShape, layout: Layout) -> str | None:
    """Say why an engine refuses this spread of this model; None if it takes it."""
    tp = layout.tp
    if shape.heads % tp:
        return f"{shape.heads} attention heads do not divide by {tp}"
    if shape.kv_heads > tp and shape.kv_heads % tp:
        return f"{shape.kv_heads} KV heads do not divide by {tp}"
    if tp > shape.kv_heads and tp % shape.kv_heads:
        return f"{tp} GPUs cannot hold whole copies of {shape.kv_heads} KV heads"
    if layout.pp > len(shape.layers):
        return f"{len(shape.layers)} layers do not fill {layout.pp} stages"
    widths: list[int] = [shape.mlp_width]
    if shape.experts is not None:
        widths = [] if layout.expert_parallel else [shape.experts.width]
    block = shape.quantisation.block if shape.quantisation is not None else None
    for width in widths:
        if width % tp:
            return f"an MLP of {width} does not divide by {tp}"
        if block is not None and (width // tp) % block:
            return f"a shard of {width // tp} is no multiple of the {block} wide blocks of its fp8 scales"
    if layout.expert_parallel and shape.experts is not None and shape.experts.count % (tp * layout.dp):
        return f"{shape.experts.count} experts do not divide by {tp * layout.dp}"
    return None


def stage_layers(number: int, pp: int) -> list[range]:
    """Return the layers of each pipeline stage: sizes differ by at most one, the larger first."""
    small, larger = divmod(number, pp)
    edges = [0]
    for stage in range(pp):
        edges.append(edges[-1] + small + (stage < larger))
    return [range(a, b) for a, b in pairwise(edges)]
