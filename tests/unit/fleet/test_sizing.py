"""Spreading, budgets, roofline and flags: claims derived from the formulas in sight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import InvalidInput
from fleet.gpus import GPUS, gpu
from fleet.model_config import read_model_config
from fleet.sizing import Demand, layouts, size
from fleet.sizing_flags import Launch, differences
from fleet.sizing_layout import EngineSettings, Layout, refusal, stage_layers
from fleet.sizing_memory import memory, request_bytes, state_bytes, token_bytes
from fleet.sizing_roofline import EFFICIENCY, Roofline, largest_batch
from fleet.sizing_weights import active_parameters, gpu_weight_bytes, stored_bytes

CONFIGS = Path(__file__).parents[3] / "control" / "data" / "models"
NAMES = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "qwen3-32b",
    "qwen2.5-7b",
    "deepseek-v3",
    "gpt-oss-20b",
    "qwen3.5-27b",
)
MODELS = {name: read_model_config((CONFIGS / f"{name}.json").read_bytes()) for name in NAMES}
LLAMA_8B, LLAMA_70B, DEEPSEEK = MODELS["llama-3.1-8b"], MODELS["llama-3.1-70b"], MODELS["deepseek-v3"]
H100 = gpu("h100-sxm")
SETTINGS = EngineSettings()


def test_a_token_of_latent_attention_takes_one_latent_and_one_key_on_every_gpu():
    assert token_bytes(DEEPSEEK, 16, tp=1) == (512 + 64) * 2
    assert token_bytes(DEEPSEEK, 16, tp=8) == (512 + 64) * 2  # copied: eight GPUs hold eight times the same
    assert token_bytes(DEEPSEEK, 8) == 512 + 64


def test_keys_are_split_until_each_gpu_has_one_head_and_copied_after():
    shape = MODELS["qwen2.5-7b"]  # 4 KV heads of 128
    assert [token_bytes(shape, 16, tp) for tp in (1, 2, 4, 8)] == [2048, 1024, 512, 512]


def test_a_window_costs_the_same_at_any_length_beyond_it():
    shape = MODELS["gpt-oss-20b"]
    short, long = (request_bytes(shape, n, SETTINGS, Layout()) for n in (65_536, 131_072))
    # 12 of 24 layers keep every token: 8 heads x 64 x 2 x 2 bytes
    assert long - short == 65_536 * 12 * 8 * 64 * 2 * 2


def test_a_state_costs_nothing_by_length():
    shape = MODELS["qwen3.5-27b"]
    # 48 value heads of 128 x 128 in fp32; 3 steps of 2 x 16 x 128 + 48 x 128 channels in 16 bit
    assert state_bytes(shape) == 48 * 128 * 128 * 4 + (2 * 16 * 128 + 48 * 128) * 3 * 2
    one, two = (request_bytes(shape, n, SETTINGS, Layout()) for n in (16_384, 32_768))
    assert two - one == 16_384 * 16 * 4 * 256 * 2 * 2


def test_weights_of_all_gpus_are_at_least_the_models():
    for shape in MODELS.values():
        for layout in (Layout(), Layout(2), Layout(4), Layout(2, 2), Layout(8)):
            total = gpu_weight_bytes(shape, layout) * layout.tp * layout.pp
            assert total >= stored_bytes(shape) * (1 - 1e-9)


def test_stages_have_every_layer_once():
    assert [list(s) for s in stage_layers(5, 2)] == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("name", "layout", "said"),
    [
        ("qwen2.5-7b", Layout(8), "28 attention heads do not divide by 8"),
        ("llama-3.1-8b", Layout(3), "do not divide by 3"),
        ("llama-3.1-8b", Layout(pp=64), "32 layers do not fill 64 stages"),
        ("deepseek-v3", Layout(32), "a shard of 64 is no multiple of the 128"),  # 2048 / 32
    ],
)
def test_a_spread_no_engine_takes_is_refused_with_the_reason(name, layout, said):
    assert said in (refusal(MODELS[name], layout) or "")


def test_deepseek_fits_eight_h200_and_not_eight_h100():
    demand = Demand()
    settings = EngineSettings(max_context=32_768)
    assert size(DEEPSEEK, H100, 8, settings, demand).best is None  # 673 GB of weights, 8 x 76 usable
    found = size(DEEPSEEK, gpu("h200"), 8, settings, demand)
    assert found.best is not None


def test_data_parallel_holds_more_of_a_latent_cache_than_tensor_parallel():
    settings = EngineSettings(max_context=32_768)
    b200 = gpu("b200")
    split = memory(DEEPSEEK, b200, Layout(8), settings).tokens.expected
    apart = memory(DEEPSEEK, b200, Layout(1, 1, 8, expert_parallel=True), settings).tokens.expected * 8
    assert apart > 4 * split


def test_decoding_one_sequence_reads_all_weights_once():
    # the classic bound: 16 GB less the embedding table over 3.35 TB/s
    table = LLAMA_8B.vocabulary * LLAMA_8B.hidden * 2
    bound = Roofline.of(LLAMA_8B, H100, Layout(), SETTINGS).decode(1, 0)
    assert bound.memory_s == pytest.approx((stored_bytes(LLAMA_8B) - table) / 3.35e12)
    assert bound.limit == "memory"
    assert bound.link_s == 0


def test_a_long_prompt_is_bound_by_arithmetic_of_two_flop_a_parameter():
    bound = Roofline.of(LLAMA_8B, H100, Layout(), SETTINGS).prefill(4096)
    dense = 2 * active_parameters(LLAMA_8B) * 4096 / 989e12
    # attention adds 4 x heads x dim x half the prompt for each layer
    attention = 4096 * 4 * 32 * 128 * 2048 * 32 / 989e12
    assert bound.compute_s == pytest.approx(dense + attention)
    assert bound.limit == "compute"


def test_experts_read_grow_from_one_tokens_to_all():
    roofline = Roofline.of(DEEPSEEK, gpu("b200"), Layout(8), SETTINGS)
    one, many = roofline.decode(1, 0).memory_s, roofline.decode(4096, 0).memory_s
    # one token reads 8 of 256 experts, the attention and the head; 4096 tokens read nearly everything
    assert one < many / 8
    assert many == pytest.approx(roofline.decode(8192, 0).memory_s, rel=1e-3)


@given(
    name=st.sampled_from(sorted(MODELS)),
    tp=st.sampled_from([1, 2, 4]),
    context=st.integers(1, 100_000),
    token_s=st.floats(0.001, 1),
    limit=st.integers(0, 5000),
)
@settings(max_examples=60, deadline=None)
def test_the_largest_batch_is_in_time_and_one_more_is_not(name, tp, context, token_s, limit):
    roofline = Roofline.of(MODELS[name], H100, Layout(tp), SETTINGS)
    batch = largest_batch(roofline, context=context, token_s=token_s, limit=limit)
    assert 0 <= batch <= limit
    if batch:
        assert roofline.decode(batch, context).total_s / EFFICIENCY[0] <= token_s
    if batch < limit:
        assert roofline.decode(batch + 1, context).total_s / EFFICIENCY[0] > token_s


@given(
    name=st.sampled_from(sorted(MODELS)),
    card=st.sampled_from(sorted(GPUS)),
    gpus=st.integers(1, 16),
    context=st.integers(1, 200_000),
)
@settings(max_examples=60, deadline=None)
def test_every_possible_choice_holds_a_request_and_stays_in_memory(name, card, gpus, context):
    found = size(MODELS[name], gpu(card), gpus, EngineSettings(max_context=context), Demand(1000, 100))
    assert {c.layout for c in found.choices} == set(layouts(MODELS[name], gpus))
    for choice in found.choices:
        assert choice.layout.gpus == gpus
        if not choice.is_possible:
            assert choice.refused
            continue
        assert choice.memory is not None
        room = choice.memory
        assert room.weight_bytes + room.overhead.expected + room.request_bytes <= room.usable_bytes
        assert room.tokens.low <= room.tokens.expected <= room.tokens.high
        assert choice.batch <= choice.layout.dp * room.tokens.expected / 1100


def test_halving_the_cache_type_doubles_the_tokens():
    wide, narrow = (memory(LLAMA_70B, H100, Layout(8), replace(SETTINGS, kv_bits=b)) for b in (16, 8))
    assert narrow.tokens.expected == pytest.approx(2 * wide.tokens.expected, rel=1e-4)


def test_no_nvlink_is_said_where_gpus_wait_for_each_other():
    found = size(LLAMA_70B, gpu("l40s"), 8, EngineSettings(max_context=8192), Demand())
    tensor = next(c for c in found.choices if c.layout.tp == 8)
    assert any("no NVLink" in note for note in tensor.notes)
    assert not any("NVLink" in n for c in found.choices if c.layout.tp == 1 for n in c.notes)


def test_differences_say_unknown_where_nobody_said():
    found = size(LLAMA_8B, H100, 1, EngineSettings(max_context=8192), Demand())
    assert found.best is not None
    launch = Launch(
        max_num_seqs=32, max_num_batched_tokens=8192, cache_config={"gpu_memory_utilization": "0.90"}
    )
    rows = {d.setting: d for d in differences(found.flags, launch, 400_000)}
    assert rows["max-num-seqs"].differs is True
    assert rows["max-num-batched-tokens"].differs is False
    assert rows["gpu-memory-utilization"].differs is False  # 0.9 and 0.90 are one number
    assert rows["chunked prefill"].differs is None
    assert rows["KV cache, tokens"].runs is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: EngineSettings(memory_ratio=1.1),
        lambda: EngineSettings(memory_ratio=float("nan")),
        lambda: EngineSettings(kv_bits=4),
        lambda: EngineSettings(max_seqs=0),
        lambda: Demand(prompt_tokens=0),
        lambda: Demand(token_s=float("nan")),
        lambda: gpu("h1000"),
        lambda: size(LLAMA_8B, H100, 0, SETTINGS, Demand()),
        lambda: read_model_config(orjson.dumps({})),
    ],
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(InvalidInput):
        wrong()
