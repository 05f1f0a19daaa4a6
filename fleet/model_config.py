"""The shape of a model, read from the `config.json` it was published with. The file is hostile.

Counts are whole numbers with ceilings, so no product of them overflows or takes minutes. A field that is
missing and has no published default is an error by its name, never a guess. Prevents: a multimodal wrapper
read as a model without layers, grouped keys sized as full heads, and a quantised file sized as 16 bit.
Source of names: Hugging Face transformers' configuration classes; vLLM, `vllm/config/model.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

import orjson

from fleet.errors import InvalidInput
from fleet.model_quantisation import Quantisation, read_quantisation

MAX_BYTES = 2_000_000
_CEILING = 50_000_000  # of any one count; the largest real one (context) is about 10 million
_MAX_LAYERS = 1_000


class Layer(StrEnum):
    """What a layer remembers of the past."""

    FULL = "full"  # every token
    SLIDING = "sliding"  # the last `window` tokens
    LINEAR = "linear"  # a state of constant size


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts. `per_token` of `count` are used; `shared_width` is used by every token."""

    count: int
    per_token: int
    width: int
    shared_width: int
    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: what is cached is one latent and one rotary key, not heads."""

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_rank: int | None


@dataclass(frozen=True, slots=True)
class Linear:
    """A gated-delta layer's dimensions; its state is constant for each sequence."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What sizing needs of a model. All counts; `weight_bits` is 16 or 32 for what is not quantised."""

    architecture: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    mlp_matrices: int  # 3 with a gate, 2 without
    vocabulary: int
    is_tied: bool
    context: int
    layers: tuple[Layer, ...]
    window: int | None
    weight_bits: int
    quantisation: Quantisation | None
    experts: Experts | None = None
    latent: Latent | None = None
    linear: Linear | None = None
    has_output_gate: bool = False  # a gate as wide as the queries
    has_vision: bool = False  # its encoder is not sized


def read_model_config(content: bytes) -> ModelShape:
    """Return the shape a `config.json` states.

    Raises InvalidInput with the field: not JSON, larger than 2 MB, a field missing or out of range, or a
    model whose cache does not follow from its configuration (state-space models other than gated delta).
    """
    if len(content) > MAX_BYTES:
        raise InvalidInput(f"config.json has {len(content)} bytes", hint=f"At most {MAX_BYTES}")
    try:
        document: Any = orjson.loads(content)
    except (orjson.JSONDecodeError, RecursionError) as exc:
        raise InvalidInput(f"not JSON: {exc}", hint="Give the config.json beside the weights") from exc
    if not isinstance(document, dict):
        raise InvalidInput("config.json is not an object", hint="Give the config.json beside the weights")
    return _shape(cast("dict[str, Any]", document))


class _Fields:
    """Checked access to one object of the document."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields

    def count(self, *names: str, default: int | None = None, low: int = 1, high: int = _CEILING) -> int:
        """The first of `names` that is there."""
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                shown = str(value)[:40]
                raise InvalidInput(
                    f"{name} is {shown}", field=name, hint=f"A whole number from {low} to {high}"
                )
            return value
        if default is None:
            raise InvalidInput(
                f"config.json has no {names[0]}",
                field=names[0],
                hint="Sizing knows decoder models as published on Hugging Face",
            )
        return default

    def maybe(self, name: str) -> int | None:
        return self.count(name, default=-1) if self.fields.get(name) is not None else None

    def word(self, name: str) -> str:
        value = self.fields.get(name)
        return value[:200] if isinstance(value, str) else ""

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.fields.get(name)
        return value if isinstance(value, bool) else default


def _shape(document: dict[str, Any]) -> ModelShape:
    inner = document.get("text_config") or document.get("llm_config")
    text = _Fields(cast("dict[str, Any]", inner) if isinstance(inner, dict) else document)
    outer = _Fields(document)
    number = text.count("num_hidden_layers", "n_layer", "num_layers", high=_MAX_LAYERS)
    hidden = text.count("hidden_size", "n_embd", "d_model")
    heads = text.count("num_attention_heads", "n_head", low=1, high=65_536)
    head_dim = text.count("head_dim", default=max(1, hidden // heads), high=65_536)
    layers, window = _layers(text, number)
    if Layer.LINEAR in layers and text.fields.get("linear_num_value_heads") is None:
        raise InvalidInput(
            "the model has layers with a state this reader cannot size",
            field="layer_types",
            hint="Only gated-delta layers (linear_num_value_heads, ...) are known",
        )
    dtype = next(
        (w for f in (text, outer) for n in ("torch_dtype", "dtype") if (w := f.word(n))), "bfloat16"
    )
    quantised = document.get("quantization_config") or text.fields.get("quantization_config")
    experts = _experts(text, number)
    names = document.get("architectures")
    tied = text if "tie_word_embeddings" in text.fields else outer
    return ModelShape(
        architecture=_first(cast("Any", names)) or text.word("model_type") or "unnamed",
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(text, heads),
        head_dim=head_dim,
        mlp_width=text.count("intermediate_size", "n_inner", "ffn_dim", default=4 * hidden),
        mlp_matrices=2 if text.word("model_type") in _UNGATED else 3,
        vocabulary=text.count("vocab_size"),
        is_tied=tied.flag("tie_word_embeddings", default=text.word("model_type") in _TIED),
        context=text.count(*_CONTEXT, default=4096),
        layers=layers,
        window=window,
        weight_bits=32 if dtype == "float32" else 16,
        quantisation=read_quantisation(cast("dict[str, Any]", quantised), expert_model=experts is not None)
        if isinstance(quantised, dict)
        else None,
        experts=experts,
        latent=_latent(text),
        linear=_linear(text) if Layer.LINEAR in layers else None,
        has_output_gate=text.flag("attn_output_gate"),
        has_vision="vision_config" in document,
    )


_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_ONE_KV_HEAD = frozenset({"falcon", "gpt_bigcode"})  # classes whose default is one head for all queries
#: Classes that slide but on every so-many-th layer, where the file names neither layers nor pattern.
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
_UNGATED = frozenset({"gpt2", "opt", "gpt_neox", "gpt_bigcode", "starcoder2", "phi", "bloom", "falcon"})
_TIED = frozenset(
    {"gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "opt"}
)  # classes whose default is tied


def _first(names: Any) -> str:
    if isinstance(names, list) and names and isinstance(names[0], str):
        return str(names[0])[:100]
    return ""


def _kv_heads(text: _Fields, heads: int) -> int:
    """Heads of keys and values; families before grouped queries say one for all by a flag.

    Source: transformers' FalconConfig, GPTBigCodeConfig, ChatGLMConfig and MptConfig (attn_config).
    """
    kind = text.word("model_type")
    if text.flag("new_decoder_architecture"):
        return text.count("num_kv_heads", "num_key_value_heads", default=heads, high=heads)
    if text.flag("multi_query", default=kind in _ONE_KV_HEAD):
        return 1
    attention = text.fields.get("attn_config")
    if isinstance(attention, dict) and "kv_n_heads" in attention:
        return _Fields(cast("dict[str, Any]", attention)).count("kv_n_heads", high=heads)
    is_grouped = text.flag("multi_query_attention", default=True)
    grouped = ("multi_query_group_num",) if is_grouped else ()
    return text.count("num_key_value_heads", "num_kv_heads", *grouped, default=heads, high=heads)


def _layers(text: _Fields, number: int) -> tuple[tuple[Layer, ...], int | None]:
    window = text.maybe("sliding_window")
    kinds = text.fields.get("layer_types")
    if isinstance(kinds, list):
        named = [_kind(str(kind)) for kind in cast("list[Any]", kinds)[: _MAX_LAYERS + 1]]
        if len(named) != number:
            raise InvalidInput(
                f"layer_types names {len(named)} layers, num_hidden_layers {number}", field="layer_types"
            )
        if Layer.SLIDING in named and window is None:
            raise InvalidInput("layers slide over a window nobody gives", field="sliding_window")
        return tuple(named), window
    if (interval := text.maybe("full_attention_interval")) is not None:
        every = range(1, number + 1)
        return tuple(Layer.LINEAR if n % interval else Layer.FULL for n in every), None
    pattern = text.maybe("sliding_window_pattern") or _PATTERNS.get(text.word("model_type"))
    if pattern is not None and window is not None:
        every = range(1, number + 1)
        return tuple(Layer.SLIDING if n % pattern else Layer.FULL for n in every), window
    slides = window is not None and text.flag("use_sliding_window", default=True)
    if slides and text.word("model_type") in ("mistral", "mixtral", "phi3"):
        return (Layer.SLIDING,) * number, window
    return (Layer.FULL,) * number, None


def _kind(name: str) -> Layer:
    if name in ("full_attention", "attention", "global"):
        return Layer.FULL
    if name in ("sliding_attention", "local_attention", "local", "chunked_attention"):
        return Layer.SLIDING
    if name in ("linear_attention", "mamba", "mamba2"):
        return Layer.LINEAR
    raise InvalidInput(f"unknown layer type {name[:40]!r}", field="layer_types")


def _experts(text: _Fields, number: int) -> Experts | None:
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    if all(text.fields.get(name) in (None, 0, 1) for name in names):
        return None
    width = text.count("moe_intermediate_size", "intermediate_size")
    skipped = text.count("first_k_dense_replace", default=0, low=0, high=_MAX_LAYERS)
    step = text.count("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step", default=1)
    dense = text.fields.get("mlp_only_layers")
    listed = cast("list[Any]", dense) if isinstance(dense, list) else []
    excluded = {n for n in listed if isinstance(n, int)}
    shared = text.count("n_shared_experts", default=0, low=0) * width
    shared = text.count("shared_expert_intermediate_size", default=shared, low=0)
    count = text.count(*names, high=65_536)
    used = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk")
    return Experts(
        count=count,
        per_token=text.count(*used, high=count),
        width=width,
        shared_width=shared,
        layers=frozenset(n for n in range(skipped, number) if (n + 1) % step == 0 and n not in excluded),
    )


def _latent(text: _Fields) -> Latent | None:
    if text.fields.get("kv_lora_rank") is None:
        return None
    return Latent(
        kv_rank=text.count("kv_lora_rank"),
        rope_dim=text.count("qk_rope_head_dim"),
        nope_dim=text.count("qk_nope_head_dim"),
        value_dim=text.count("v_head_dim"),
        query_rank=text.maybe("q_lora_rank"),
    )


def _linear(text: _Fields) -> Linear:
    return Linear(
        key_heads=text.count("linear_num_key_heads"),
        value_heads=text.count("linear_num_value_heads"),
        key_dim=text.count("linear_key_head_dim"),
        value_dim=text.count("linear_value_head_dim"),
        kernel=text.count("linear_conv_kernel_dim", default=4),
    )
