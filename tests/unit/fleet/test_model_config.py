"""Reading config.json: real files, every quantisation by hand-computed bits, and hostile files."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import InvalidInput
from fleet.model_config import Layer, read_model_config
from fleet.model_quantisation import read_quantisation

CONFIGS = Path(__file__).parents[3] / "control" / "data" / "models"
SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}


def read(**fields: object):
    return read_model_config(orjson.dumps(SMALL | fields))


def test_a_wrapper_is_read_by_its_language_model():
    shape = read_model_config((CONFIGS / "qwen3.5-27b.json").read_bytes())
    # every fourth of 64 layers attends; the rest keep a state of constant size
    assert shape.layers.count(Layer.FULL) == 16
    assert shape.layers.count(Layer.LINEAR) == 48
    assert shape.head_dim == 256
    assert shape.has_vision
    assert shape.has_output_gate


def test_latent_attention_and_experts_are_told_from_heads_and_dense_layers():
    shape = read_model_config((CONFIGS / "deepseek-v3.json").read_bytes())
    assert shape.latent is not None
    assert shape.latent.kv_rank + shape.latent.rope_dim == 576
    assert shape.experts is not None
    assert shape.experts.layers == frozenset(range(3, 61))  # first_k_dense_replace 3


def test_windows_alternate_as_the_file_says_and_only_where_they_are_used():
    shape = read_model_config((CONFIGS / "gpt-oss-20b.json").read_bytes())
    assert shape.layers == (Layer.SLIDING, Layer.FULL) * 12
    unused = read_model_config((CONFIGS / "qwen2.5-7b.json").read_bytes())
    assert set(unused.layers) == {Layer.FULL}  # sliding_window is given, use_sliding_window is false


def test_keys_are_as_many_as_heads_where_nobody_groups_them():
    assert read().kv_heads == 4
    assert read(num_key_value_heads=2).kv_heads == 2


@pytest.mark.parametrize(
    ("scheme", "bits"),
    [
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            8 + 32 / 128**2,
        ),  # one fp32 scale a block
        ({"quant_method": "fbgemm_fp8"}, 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + (16 + 4) / 128),  # scale and zero point
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, 8 + (16 + 8) / 32),
        ({"quant_method": "mxfp4"}, 4 + 8 / 32),  # OCP MX: an 8 bit exponent for 32 values
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4 + 8 / 16),  # an fp8 scale for 16 values
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}
                },
            },
            4 + 16 / 128,
        ),
    ],
)
def test_bits_of_a_weight_have_their_scales(scheme, bits):
    assert read_quantisation(scheme, expert_model=False).bits == pytest.approx(bits)


def test_what_a_quantisation_leaves_alone_is_left_alone():
    scheme = read_quantisation(
        {
            "quant_method": "fp8",
            "modules_to_not_convert": ["model.layers.0", "model.layers.*.self_attn*", "re:.*visual.*"],
        },
        expert_model=False,
    )
    assert not scheme.covers("model.layers.0.mlp.down_proj")
    assert not scheme.covers("model.layers.7.self_attn.q_proj")
    assert not scheme.covers("lm_head")
    assert scheme.covers("model.layers.10.mlp.down_proj")  # 10 is not 1 or 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"[1]", "not an object"),
        (b"[" * 100_000, "not JSON"),
        (b" " * 2_000_001, "2000001 bytes"),
        (orjson.dumps({"hidden_size": 1}), "no num_hidden_layers"),
        (orjson.dumps(SMALL | {"num_hidden_layers": 10**9}), "num_hidden_layers is 1000000000"),
        (orjson.dumps(SMALL | {"hidden_size": "64"}), "hidden_size is 64"),
        (orjson.dumps(SMALL | {"vocab_size": True}), "vocab_size is True"),
        (orjson.dumps(SMALL | {"num_attention_heads": -4}), "num_attention_heads is -4"),
        (orjson.dumps(SMALL | {"layer_types": ["full_attention"]}), "layer_types names 1 layers"),
        (orjson.dumps(SMALL | {"layer_types": ["mamba", "mamba"]}), "a state this reader cannot size"),
        (orjson.dumps(SMALL | {"layer_types": ["x<script>", "full_attention"]}), "unknown layer type"),
        (orjson.dumps(SMALL | {"quantization_config": {"quant_method": "magic"}}), "unknown quantisation"),
        (
            orjson.dumps(
                SMALL
                | {"quantization_config": {"quant_method": "fp8", "ignore": ["re:" + ".*a" * 30 + "$"]}}
            ),
            "more than 3 stars",
        ),
    ],
)
def test_a_file_that_is_no_model_is_refused_with_the_reason(content, said):
    with pytest.raises(InvalidInput, match=said):
        read_model_config(content)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    [
        "head_dim",
        "layer_types",
        "sliding_window",
        "quantization_config",
        "num_experts",
        "num_experts_per_tok",
        "kv_lora_rank",
        "text_config",
        "full_attention_interval",
        "mlp_only_layers",
        "architectures",
        "intermediate_size",
        "torch_dtype",
        "model_type",
    ]
)


@given(st.dictionaries(NAMES, VALUES, max_size=6))
@settings(max_examples=300, deadline=None)
def test_any_file_is_read_or_refused(fields):
    content = orjson.dumps(SMALL | fields, option=orjson.OPT_NON_STR_KEYS)
    try:
        shape = read_model_config(content)
    except InvalidInput:
        return
    assert len(shape.layers) >= 1
    assert shape.kv_heads <= shape.heads


@pytest.mark.parametrize(
    ("fields", "heads"),
    [
        ({}, 4),
        ({"num_key_value_heads": 2}, 2),
        ({"model_type": "falcon"}, 1),  # FalconConfig: multi_query is True unless said
        ({"model_type": "falcon", "multi_query": False}, 4),
        ({"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2}, 2),
        ({"model_type": "falcon", "multi_query": True, "new_decoder_architecture": True}, 4),
        ({"model_type": "gpt_bigcode", "multi_query": True}, 1),
        ({"multi_query_attention": True, "multi_query_group_num": 2}, 2),  # ChatGLM
        ({"multi_query_attention": False, "multi_query_group_num": 2}, 4),
        ({"attn_config": {"kv_n_heads": 1}}, 1),  # MPT, DBRX
    ],
)
def test_families_before_grouped_queries_say_their_heads_in_other_words(
    fields: dict[str, object], heads: int
):
    """A cache sized by all heads where one is kept is as many times too large as there are heads."""
    assert read(**fields).kv_heads == heads


@pytest.mark.parametrize(("kind", "every"), [("gemma2", 2), ("gemma3_text", 6), ("cohere2", 4)])
def test_families_that_slide_by_a_pattern_do_so_without_naming_it(kind: str, every: int):
    shape = read(model_type=kind, sliding_window=4096, num_hidden_layers=12)
    full = [n for n, layer in enumerate(shape.layers, start=1) if layer is Layer.FULL]
    assert full == list(range(every, 13, every))
    assert shape.window == 4096
