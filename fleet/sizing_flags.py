"""Flags to start vLLM with, why, and how they differ from what a node runs.

Prevents: advice that nobody compares with the machines, and a difference reported where nothing is known.
Sources: vLLM documentation, "Optimization and Tuning" (chunked prefill, max_num_batched_tokens) and "Engine
Arguments".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.model_config import ModelShape
from fleet.sizing_layout import EngineSettings, Layout


class Aim(StrEnum):
    """What the flags are for."""

    BALANCE = "balance"
    TAIL = "tail"  # short gaps between tokens
    COST = "cost"  # most tokens for the money


#: Tokens of one step: fewer keep decoding steps short, more keep the arithmetic busy.
BATCHED_TOKENS = {Aim.TAIL: 4096, Aim.BALANCE: 8192, Aim.COST: 16384}


@dataclass(frozen=True, slots=True)
class Flag:
    """One argument of `vllm serve`. `value` is empty for a switch."""

    name: str
    value: str
    why: str

    @property
    def words(self) -> str:
        return f"{self.name} {self.value}".strip()


@dataclass(frozen=True, slots=True)
class Launch:
    """What a node runs. None: nobody said."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    chunked_prefill: bool | None = None
    cache_config: Mapping[str, str] | None = None  # labels of vllm:cache_config_info
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting of a node against ours. `runs` is None where nobody said: unknown, not different."""

    setting: str
    runs: str | None
    suggested: str

    @property
    def differs(self) -> bool | None:
        return None if self.runs is None else self.runs != self.suggested


def suggested_flags(
    shape: ModelShape, settings: EngineSettings, layout: Layout, batch: int
) -> tuple[Flag, ...]:
    """Return the flags for one layout. `batch` is that of all replicas."""
    flags = [Flag("--tensor-parallel-size", str(layout.tp), "the spread judged best")]
    if layout.pp > 1:
        flags.append(Flag("--pipeline-parallel-size", str(layout.pp), "layers over stages"))
    if layout.dp > 1:
        flags.append(
            Flag("--data-parallel-size", str(layout.dp), "replicas that do not wait for each other")
        )
    if layout.expert_parallel:
        flags.append(Flag("--enable-expert-parallel", "", "each GPU holds whole experts"))
    flags += [
        Flag("--gpu-memory-utilization", f"{settings.memory_ratio:g}", "what the budget assumes"),
        Flag(
            "--max-model-len", str(settings.context(shape)), "the longest request; shorter leaves more room"
        ),
        Flag(
            "--max-num-batched-tokens", str(settings.batched_tokens), _why_tokens(settings.batched_tokens)
        ),
        Flag("--max-num-seqs", str(seats(batch, layout)), "the largest batch within the SLO, rounded up"),
        Flag("--enable-chunked-prefill", "", "long prompts do not stop decoding"),
    ]
    if settings.kv_bits == 8:
        flags.append(Flag("--kv-cache-dtype", "fp8", "half the bytes a token; check answers"))
    return tuple(flags)


def seats(batch: int, layout: Layout) -> int:
    """Return --max-num-seqs of one replica: its batch, up to the next multiple of 8 (a graph's size)."""
    each = max(1, -(-batch // layout.dp))
    return -(-each // 8) * 8


def _why_tokens(tokens: int) -> str:
    if tokens <= BATCHED_TOKENS[Aim.TAIL]:
        return "short steps: gaps between tokens stay small"
    if tokens >= BATCHED_TOKENS[Aim.COST]:
        return "long steps: most tokens for the money, longer gaps"
    return "between short gaps and cost"


def differences(flags: tuple[Flag, ...], launch: Launch, kv_tokens: float) -> list[Difference]:
    """Compare what a node runs with the suggestion. `kv_tokens`: the expected cache of one replica."""
    ours = {flag.name: flag.value for flag in flags}
    cache = launch.cache_config or {}
    chunked = launch.chunked_prefill
    return [
        Difference("max-num-seqs", _text(launch.max_num_seqs), ours["--max-num-seqs"]),
        Difference(
            "max-num-batched-tokens", _text(launch.max_num_batched_tokens), ours["--max-num-batched-tokens"]
        ),
        Difference("chunked prefill", None if chunked is None else ("on" if chunked else "off"), "on"),
        Difference("gpu-memory-utilization", _ratio(cache), ours["--gpu-memory-utilization"]),
        Difference("kv-cache-dtype", cache.get("cache_dtype"), ours.get("--kv-cache-dtype", "auto")),
        Difference("KV cache, tokens", _text(launch.kv_tokens), f"about {kv_tokens:.0f}"),
    ]


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _ratio(cache: Mapping[str, str]) -> str | None:
    try:
        return f"{float(cache['gpu_memory_utilization']):g}"
    except (KeyError, ValueError):
        return None
