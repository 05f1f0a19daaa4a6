"""Sizing against what vLLM itself printed: bytes a token, weights, and the whole chain to cache tokens.

Each case names its public source. The table of errors is printed (`pytest -s`) and stands in
docs/sizing.md. Three cases are kept although the estimate misses them: their engines left memory unused,
as the reports say.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from fleet.gpus import GIB, gpu
from fleet.model_config import ModelShape, read_model_config
from fleet.sizing_layout import EngineSettings, Layout
from fleet.sizing_memory import cache_tokens, memory, request_bytes
from fleet.sizing_weights import active_parameters, gpu_weight_bytes, parameters

CONFIGS = Path(__file__).parents[3] / "control" / "data" / "models"
DATA = Path(__file__).parents[2] / "data"
FIELDS = json.loads((DATA / "model_configs" / "fields.json").read_text())


def model(name: str) -> ModelShape:
    if name in FIELDS:
        return read_model_config(orjson.dumps(FIELDS[name]))
    return read_model_config((CONFIGS / f"{name}.json").read_bytes())


@pytest.mark.parametrize(
    ("name", "stored", "active"),
    [
        ("llama-3.1-8b", 8.03e9, None),  # model card
        ("llama-3.1-70b", 70.6e9, None),  # model card
        ("qwen2.5-7b", 7.61e9, None),  # model card
        ("qwen3-32b", 32.8e9, None),  # model card
        ("qwen3-30b-a3b", 30.5e9, 3.3e9),  # model card; its active count has the embedding table
        ("gpt-oss-20b", 20.9e9, 3.6e9),  # gpt-oss model card (2025), table 1
        ("deepseek-v3", 671e9, 36.6e9),  # DeepSeek-V3, README_WEIGHTS.md
    ],
)
def test_parameters_are_those_of_the_model_card(name, stored, active):
    shape = model(name)
    assert parameters(shape) == pytest.approx(stored, rel=0.005)
    if active is not None:
        table = shape.vocabulary * shape.hidden
        assert active_parameters(shape) <= active * 1.005 <= active_parameters(shape) + table * 1.1


@pytest.mark.parametrize(
    ("name", "tp", "blocks"),
    [
        ("llama-3.1-8b", 1, 2048),  # vllm-project/vllm#10517
        ("llama-2-7b", 1, 512),  # vllm-project/vllm#2418
        ("llama-2-13b", 1, 327),  # vllm-project/vllm#830
        ("llama-3.1-70b", 2, 1638),  # OpenRLHF/OpenRLHF#336
        ("mixtral-8x7b-awq", 2, 4096),  # vllm-project/vllm#2382
        ("qwen2.5-32b", 2, 2048),  # vllm-project/vllm#15815
    ],
)
def test_blocks_of_a_known_swap_space_are_those_the_engine_printed(name, tp, blocks):
    # "# CPU blocks: N": how many whole blocks of 16 tokens the default 4 GiB of swap space hold
    assert 4 * GIB // request_bytes(model(name), 16, EngineSettings(), Layout(tp)) == blocks


@pytest.mark.parametrize(
    ("name", "tp", "tokens", "gib"),
    [
        # "N GiB KV cache is needed" for one request of the longest context
        ("minimax-m2", 2, 196_608, 23.25),  # eugr/spark-vllm-docker#396
        ("qwen3-30b-a3b", 1, 262_144, 24.0),  # vllm-project/vllm#34076, all its layers
        # "Stored 8192 out of total 8192 tokens. size: 1.2500 gb"
        ("qwen3-14b", 1, 8192, 1.25),  # LMCache/LMCache#1739
    ],
)
def test_bytes_of_a_request_are_those_the_engine_printed(name, tp, tokens, gib):
    assert request_bytes(model(name), tokens, EngineSettings(), Layout(tp)) / GIB == pytest.approx(
        gib, abs=0.005
    )


@pytest.mark.parametrize(
    ("name", "tp", "gib", "said"),
    [
        ("qwen3-1.7b", 1, 18.78, 175_856),  # vllm-project/vllm#33263
        ("qwen3-14b", 1, 6.51, 42_656),  # LMCache/LMCache#1739
        ("llama-3.1-8b", 1, 3.81, 1952 * 16),  # vllm-project/vllm#10517
        ("llama-3.1-8b", 1, 2.89, 1478 * 16),  # the same at 29,000 tokens
        ("qwen2.5-32b", 2, 7.71, 3947 * 16),  # vllm-project/vllm#15815
        ("minimax-m2", 2, 28.74, 240_816),  # eugr/spark-vllm-docker#396
        ("qwen3-235b-a22b-fp8", 4, 8.11, 178_880),  # vllm-project/vllm#21348
    ],
)
def test_tokens_of_a_known_cache_are_those_the_engine_printed(name, tp, gib, said):
    found = cache_tokens(model(name), gib * GIB, EngineSettings(), Layout(tp))
    assert found == pytest.approx(said, rel=0.012)  # GiB are printed to 0.01; ranks hold up to 1 % less


@pytest.mark.parametrize(
    ("name", "tp", "gib"),
    [
        ("llama-3.1-8b", 1, 14.9888),  # vllm-project/vllm#10517, "Loading model weights took"
        ("llama-3.1-405b-fp8", 8, 57.7520),  # vllm-project/vllm#6746
        ("qwen2.5-14b", 2, 13.9476),  # vllm-project/vllm#13061
        ("qwen2.5-32b", 2, 30.7098),  # vllm-project/vllm#15815
        ("qwen3-30b-a3b", 4, 14.2474),  # vllm-project/vllm#17327
        ("granite-3.0-3b-a800m", 1, 6.1501),  # a public log of granite on L40S, vLLM 0.7
    ],
)
def test_weights_of_a_gpu_are_those_the_engine_loaded(name, tp, gib):
    assert gpu_weight_bytes(model(name), Layout(tp)) / GIB == pytest.approx(gib, rel=0.02)


@dataclass(frozen=True)
class Case:
    """One engine that said what its cache holds: `said` tokens, or `said_gib` of one GPU."""

    name: str
    gpu: str
    source: str
    tp: int = 1
    said: float = 0.0
    said_gib: float = 0.0
    ratio: float = 0.9
    batched: int = 8192
    seqs: int = 256
    is_outlier: bool = False

    def error(self) -> tuple[float, bool]:
        """Relative error of the expected value; whether the band holds what was said."""
        settings = EngineSettings(
            memory_ratio=self.ratio, batched_tokens=self.batched, max_seqs=self.seqs, has_graphs=False
        )
        found = memory(model(self.name), gpu(self.gpu), Layout(self.tp), settings)
        band, said = (found.kv_bytes, self.said_gib * GIB) if self.said_gib else (found.tokens, self.said)
        return band.expected / said - 1, band.low <= said <= band.high


#: CUDA graphs are left out: all of these engines sized the cache before they counted them (0.21).
CASES = (
    Case("llama-3.1-8b", "rtx-3090", "vllm-project/vllm#10517", said=1952 * 16, batched=20_000),
    Case("llama-3.1-8b", "rtx-3090", "vllm-project/vllm#10517, 29k", said=1478 * 16, batched=29_000),
    Case("llama-3.1-8b", "h100-sxm", "vllm-project/vllm#10511", said_gib=53.29),
    Case(
        "llama-3.1-8b",
        "h100-sxm",
        "vllm-project/vllm#10511, TP 2",
        tp=2,
        said_gib=71.29 - 7.48 - 3.58 - 1.26,
    ),
    Case("llama-2-7b", "a100-80", "vllm-project/vllm#2031", said=7351 * 16, batched=4096),
    Case("llama-2-70b", "a100-80", "vllm-project/vllm#2031, before", tp=4, said=31_615 * 16, batched=4096),
    Case("qwen2.5-32b", "l40s", "vllm-project/vllm#15815, TP 2", tp=2, said=3947 * 16, batched=10_000),
    Case(
        "qwen2.5-14b",
        "rtx-4090",
        "vllm-project/vllm#13061, TP 2",
        tp=2,
        said=81_536,
        ratio=0.98,
        batched=2048,
    ),
    Case("qwen1.5-7b-gptq", "rtx-3090", "QwenLM/Qwen3#16", said=24_320, batched=32_768),
    Case("granite-3.0-3b-a800m", "l40s", "granite log, vLLM 0.7", said=33_660 * 16, batched=2048),
    Case("gpt-oss-20b", "a100-80", "myoceane.fr, vLLM 0.19", said_gib=36.56, ratio=0.65),
    # the same engine after the change counted 12 GiB outside the allocator on each GPU
    Case(
        "llama-2-70b",
        "a100-80",
        "vllm-project/vllm#2031, after",
        4,
        20_865 * 16,
        batched=4096,
        is_outlier=True,
    ),
    # profiled before memory was free again, says the report; twice as much fits SGLang
    Case(
        "qwen3-235b-a22b-fp8",
        "h100-sxm",
        "vllm-project/vllm#21348, TP 4",
        tp=4,
        said=178_880,
        is_outlier=True,
    ),
    # its launch is not in the report
    Case(
        "llama-3.1-405b-fp8", "h100-sxm", "vllm-project/vllm#6746, TP 8", tp=8, said=79_392, is_outlier=True
    ),
)


def test_the_whole_chain_against_published_caches():
    rows = [(case, *case.error()) for case in CASES]
    for case, error, is_inside in rows:
        inside = "in the band" if is_inside else "outside"
        print(f"{case.name:<22} {case.gpu:<9} {case.source:<32} {error:+7.1%}  {inside}")
    usual = sorted(abs(error) for case, error, _ in rows if not case.is_outlier)
    assert len(usual) >= 10
    assert usual[-1] < 0.12
    assert usual[len(usual) // 2] < 0.03
    assert all(is_inside for case, _, is_inside in rows if not case.is_outlier)


@pytest.mark.parametrize(
    ("page", "blocks"),
    [
        ("vllm-0.9.0.1-cpu-v0-idle-fresh", 131_072),
        ("vllm-0.11.0-cpu-v1-idle-fresh", 16_384),
        ("vllm-0.16.0-cpu-idle-fresh", 16_384),
    ],
)
def test_captured_engines_hold_the_tokens_of_their_cache_space(page, blocks):
    # one tiny model: 2,097,152 tokens in 1 GiB are 512 bytes a token, such as 2 layers x 2 x 2 x 32 x 2
    text = (DATA / "metrics" / f"{page}.prom.txt").read_text()
    labels = dict(
        re.findall(r'(\w+)="([^"]*)"', next(re.finditer(r"cache_config_info\{.*\}", text)).group())
    )
    fields = {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 32, "num_attention_heads": 4}
    tiny = read_model_config(orjson.dumps(fields | {"hidden_size": 128, "vocab_size": 1000}))
    settings = EngineSettings(block_tokens=int(labels["block_size"]))
    assert int(labels["num_gpu_blocks"]) == blocks
    tokens = cache_tokens(tiny, int(labels["cpu_kvcache_space_bytes"]), settings, Layout())
    assert tokens == blocks * settings.block_tokens == 2_097_152
