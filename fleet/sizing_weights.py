"""How many parameters a model has, how many bytes they take on one GPU, and how many a token multiplies.

Bytes follow each module's own width: what the quantisation leaves alone keeps the model's. Prevents:
weights divided by the number of GPUs although keys and latents are copied, and a mixture of experts
whose speed is judged by the parameters it stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fleet.model_config import Layer, ModelShape
from fleet.sizing_layout import Layout, stage_layers

_ALONE = Layout()


@dataclass(frozen=True, slots=True)
class Part:
    """One matrix of the model. `shards` GPUs of a replica share it; the rest hold copies."""

    module: str
    parameters: float
    bits: float
    shards: int
    used: float = 1.0  # share of it that one token multiplies
    is_expert: bool = False
    is_read: bool = True  # by each step: the embedding table is looked up, not read

    @property
    def stored_bytes(self) -> float:
        return self.parameters * self.bits / 8

    @property
    def gpu_bytes(self) -> float:
        return self.stored_bytes / self.shards


def layer_parts(shape: ModelShape, number: int, layout: Layout) -> list[Part]:
    """Return the matrices of layer `number`."""
    name = f"model.layers.{number}"
    attends = shape.layers[number] is not Layer.LINEAR
    parts = _attention(shape, name, layout) if attends else _linear(shape, name, layout)
    experts = shape.experts
    if experts is None or number not in experts.layers:
        parts += _mlp(shape, f"{name}.mlp", shape.mlp_width, layout)
        return parts
    shards = layout.tp * layout.dp if layout.expert_parallel else layout.tp
    size = float(experts.count * shape.mlp_matrices * shape.hidden * experts.width)
    module = f"{name}.mlp.experts.0.gate_proj"
    parts.append(
        Part(module, size, _bits(shape, module), shards, experts.per_token / experts.count, is_expert=True)
    )
    parts.append(Part(f"{name}.mlp.gate", float(shape.hidden * experts.count), shape.weight_bits, 1))
    if experts.shared_width:
        parts += _mlp(shape, f"{name}.mlp.shared_experts", experts.shared_width, layout)
    return parts


def all_parts(shape: ModelShape, layout: Layout = _ALONE) -> list[Part]:
    """Return every matrix of the model: layers, embeddings, output head."""
    parts = [part for n in range(len(shape.layers)) for part in layer_parts(shape, n, layout)]
    return parts + list(_ends(shape, layout))


def parameters(shape: ModelShape) -> float:
    """Parameters stored, all experts included."""
    return sum(part.parameters for part in all_parts(shape))


def active_parameters(shape: ModelShape) -> float:
    """Parameters one token multiplies: its experts only, without the embedding table."""
    return sum(part.parameters * part.used for part in all_parts(shape) if part.is_read)


def stored_bytes(shape: ModelShape) -> float:
    """Bytes of all weights, once."""
    return sum(part.stored_bytes for part in all_parts(shape))


def gpu_weight_bytes(shape: ModelShape, layout: Layout) -> float:
    """Bytes of weights on the GPU that holds most: the heaviest pipeline stage."""
    stages = stage_layers(len(shape.layers), layout.pp)
    loads = [
        sum(part.gpu_bytes for number in layers for part in layer_parts(shape, number, layout))
        for layers in stages
    ]
    table, *head = (part.gpu_bytes for part in _ends(shape, layout))
    loads[0] += table
    loads[-1] += sum(head) if head or layout.pp == 1 else table  # a tied table is on both ends
    return max(loads)


def _ends(shape: ModelShape, layout: Layout) -> Iterator[Part]:
    size = float(shape.vocabulary * shape.hidden)
    yield Part("model.embed_tokens", size, shape.weight_bits, layout.tp, is_read=shape.is_tied)
    if not shape.is_tied:
        yield Part("lm_head", size, shape.weight_bits, layout.tp)


def _bits(shape: ModelShape, module: str) -> float:
    scheme = shape.quantisation
    return scheme.bits if scheme is not None and scheme.covers(module) else float(shape.weight_bits)


def _mlp(shape: ModelShape, name: str, width: int, layout: Layout) -> list[Part]:
    matrices = ("gate_proj", "up_proj", "down_proj")[-shape.mlp_matrices :]
    size = float(shape.hidden * width)
    return [Part(f"{name}.{m}", size, _bits(shape, f"{name}.{m}"), layout.tp) for m in matrices]


def _attention(shape: ModelShape, name: str, layout: Layout) -> list[Part]:
    prefix = f"{name}.self_attn"

    def part(matrix: str, rows: int, columns: int, shards: int) -> Part:
        module = f"{prefix}.{matrix}"
        return Part(module, float(rows * columns), _bits(shape, module), shards)

    hidden, heads, tp = shape.hidden, shape.heads, layout.tp
    if (latent := shape.latent) is not None:
        query = heads * (latent.nope_dim + latent.rope_dim)
        if latent.query_rank is None:
            queries = [part("q_proj", hidden, query, tp)]
        else:
            queries = [
                part("q_a_proj", hidden, latent.query_rank, 1),
                part("q_b_proj", latent.query_rank, query, tp),
            ]
        return [
            *queries,
            part("kv_a_proj_with_mqa", hidden, latent.kv_rank + latent.rope_dim, 1),
            part("kv_b_proj", latent.kv_rank, heads * (latent.nope_dim + latent.value_dim), tp),
            part("o_proj", heads * latent.value_dim, hidden, tp),
        ]
    width, keys = heads * shape.head_dim, shape.kv_heads * shape.head_dim
    copies = min(tp, shape.kv_heads)
    return [
        part("q_proj", hidden, width * (2 if shape.has_output_gate else 1), tp),
        part("k_proj", hidden, keys, copies),
        part("v_proj", hidden, keys, copies),
        part("o_proj", width, hidden, tp),
    ]


def _linear(shape: ModelShape, name: str, layout: Layout) -> list[Part]:
    linear = shape.linear
    if linear is None:
        return []
    keys, values = linear.key_heads * linear.key_dim, linear.value_heads * linear.value_dim
    sizes = {
        "in_proj_qkvz": shape.hidden * (2 * keys + 2 * values),
        "in_proj_ba": shape.hidden * 2 * linear.value_heads,
        "conv1d": (2 * keys + values) * linear.kernel,
        "out_proj": values * shape.hidden,
    }
    modules = {f"{name}.linear_attn.{matrix}": float(size) for matrix, size in sizes.items()}
    return [Part(module, size, _bits(shape, module), layout.tp) for module, size in modules.items()]
