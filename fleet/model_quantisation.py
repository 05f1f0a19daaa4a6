"""How a published model's weights are quantised: bits with their scales, and which modules are left alone.

Bits a weight, scales and zero points included. Patterns of a hostile file are matched literally or as shell
wildcards with few stars, never as regular expressions. Prevents: a "4 bit" model sized without its scales
(6 % short), attention counted as quantised where only the experts are, and a pattern that never ends.
Source: Hugging Face transformers, quantization_config of each method; OCP Microscaling Formats (MX) v1.0;
vLLM, `vllm/model_executor/layers/quantization`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

from fleet.errors import InvalidInput

_MAX_PATTERNS = 5_000
_MAX_STARS = 3


@dataclass(frozen=True, slots=True)
class Quantisation:
    """A scheme. `bits` is what one weight takes; `compute_bits` what the tensor cores multiply."""

    method: str
    bits: float
    compute_bits: int
    exact: frozenset[str]  # modules left at the model's own width, by name or by the name above
    wild: tuple[str, ...]  # ... and by wildcard
    experts_only: bool = False
    block: int | None = None  # a scale's block; a shard must be a multiple of it

    def covers(self, module: str) -> bool:
        """Say whether `module` (such as `model.layers.3.mlp.down_proj`) is quantised."""
        if self.experts_only and ".experts" not in module:
            return False
        parts = module.split(".")
        above = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
        if any(name in self.exact for name in above) or parts[-1] in self.exact:
            return False
        return not any(fnmatchcase(module, pattern) for pattern in self.wild)


def read_quantisation(fields: Mapping[str, Any], *, expert_model: bool) -> Quantisation:
    """Return the scheme of a `quantization_config`. Raises InvalidInput for one that is not known."""
    method = str(fields.get("quant_method", "")).lower()[:40]
    exact, wild = _left_alone(fields)
    if method in ("fp8", "fbgemm_fp8"):
        block = _block(fields)
        extra = 32.0 / (block * block) if block else 0.0
        return Quantisation(method, 8 + extra, 8, exact, wild, block=block)
    if method == "mxfp4":
        return Quantisation(method, 4.25, 16, exact, wild, experts_only=expert_model)
    if method in ("gptq", "awq", "auto-round", "gptq_marlin", "awq_marlin"):
        bits = _whole(fields, ("bits", "w_bit"), 4, 16)
        group = _whole(fields, ("group_size", "q_group_size"), 128, 65_536)
        return Quantisation(method, bits + (16 + bits) / group, 16, exact, wild)
    if method == "bitsandbytes":
        four = bool(fields.get("load_in_4bit", fields.get("_load_in_4bit")))
        return Quantisation(method, 4.5 if four else 8.0, 16, exact, wild)
    if method in ("modelopt", "modelopt_fp4", "nvfp4") or "quant_algo" in fields:
        four = "FP4" in str(fields.get("quant_algo", method)).upper()
        return Quantisation(method or "modelopt", 4.5 if four else 8.0, 4 if four else 8, exact, wild)
    if method == "compressed-tensors":
        return _compressed(fields, exact, wild)
    raise InvalidInput(
        f"unknown quantisation {method or 'without a quant_method'!r}",
        field="quantization_config",
        hint="Known: fp8, fbgemm_fp8, awq, gptq, mxfp4, nvfp4 (modelopt), bitsandbytes, compressed-tensors",
    )


def _compressed(fields: Mapping[str, Any], exact: frozenset[str], wild: tuple[str, ...]) -> Quantisation:
    groups = fields.get("config_groups")
    found = list(cast("dict[str, Any]", groups).values()) if isinstance(groups, dict) else []
    first = cast("dict[str, Any]", found[0]) if found and isinstance(found[0], dict) else {}
    weights, inputs = first.get("weights"), first.get("input_activations")
    scheme = cast("dict[str, Any]", weights) if isinstance(weights, dict) else {}
    bits = _whole(scheme, ("num_bits",), 8, 16)
    group = _whole(scheme, ("group_size",), 0, 65_536) if scheme.get("group_size") else 0
    scale = 8 if scheme.get("type") == "float" and bits == 4 else 16
    extra = scale / group if group > 0 else 0.0
    return Quantisation(
        "compressed-tensors", bits + extra, bits if isinstance(inputs, dict) else 16, exact, wild
    )


def _left_alone(fields: Mapping[str, Any]) -> tuple[frozenset[str], tuple[str, ...]]:
    names: list[str] = ["lm_head", "embed_tokens"]
    for key in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"):
        given = fields.get(key)
        if isinstance(given, list):
            names += [str(name)[:200] for name in cast("list[Any]", given)[:_MAX_PATTERNS]]
    plain = {name for name in names if "*" not in name and not name.startswith("re:")}
    wild = {name.removeprefix("re:").replace(".*", "*").strip("^$") for name in names if name not in plain}
    too_many = next((name for name in wild if name.count("*") > _MAX_STARS), None)
    if too_many is not None:
        raise InvalidInput(
            f"pattern {too_many[:60]!r} has more than {_MAX_STARS} stars", field="quantization_config"
        )
    if len(wild) > 200:
        raise InvalidInput(f"{len(wild)} patterns name modules, at most 200", field="quantization_config")
    return frozenset(plain), tuple(sorted(wild))


def _block(fields: Mapping[str, Any]) -> int | None:
    given = fields.get("weight_block_size")
    sizes = cast("list[Any]", given) if isinstance(given, list) else []
    if len(sizes) == 2 and all(isinstance(n, int) and 1 <= n <= 65_536 for n in sizes):
        return int(sizes[0])
    return None


def _whole(fields: Mapping[str, Any], names: tuple[str, ...], default: int, high: int) -> int:
    for name in names:
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            if value == -1:  # one scale a column
                return high
            if 1 <= value <= high:
                return value
            raise InvalidInput(f"{name} is {value}", field=name, hint=f"From 1 to {high}")
    return default
