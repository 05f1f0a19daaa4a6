"""`rhodeck sizing`: does a model fit these GPUs, spread how, with which flags; against what a pool runs.

Reads one file, writes nothing. Memory is printed in GB (1e9 bytes). Prevents: an answer without the reasons
of what was refused, and a bound read as a forecast.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from control.model_config_files import config_bytes
from fleet.clock import SystemClock
from fleet.gpus import GPUS, gpu
from fleet.model_config import read_model_config
from fleet.percentages import percent
from fleet.sizing import Choice, Demand, Sizing, size
from fleet.sizing_flags import BATCHED_TOKENS, Aim, Launch, differences
from fleet.sizing_layout import EngineSettings
from fleet.sizing_roofline import EFFICIENCY


@click.command()
@click.argument("config")
@click.option("--gpu", "gpu_name", default="h100-sxm", show_default=True, help=", ".join(GPUS))
@click.option("--gpus", default=8, show_default=True, help="GPUs of one node or group.")
@click.option("--prompt-tokens", default=2000, show_default=True, help="Of a typical request.")
@click.option("--output-tokens", default=300, show_default=True, help="Of a typical request.")
@click.option("--ttft-ms", default=500.0, show_default=True, help="First token within.")
@click.option("--token-ms", default=50.0, show_default=True, help="Every further token within.")
@click.option("--memory-ratio", default=0.9, show_default=True, help="--gpu-memory-utilization.")
@click.option("--max-context", type=int, help="--max-model-len; default: the model's own.")
@click.option("--max-seqs", default=256, show_default=True, help="--max-num-seqs to size for.")
@click.option(
    "--kv-dtype",
    type=click.Choice(["auto", "fp8"]),
    default="auto",
    show_default=True,
    help="--kv-cache-dtype.",
)
@click.option(
    "--aim",
    type=click.Choice([a.value for a in Aim]),
    default="balance",
    show_default=True,
    help="Short gaps between tokens (tail), or cost.",
)
@click.option("--eager", is_flag=True, help="Without CUDA graphs (--enforce-eager).")
@click.option("--pool", help="Compare with what this pool's nodes run (needs the database).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; bytes and seconds.")
def sizing(config: str, gpu_name: str, gpus: int, pool: str | None, as_json: bool, **asked: Any) -> None:
    """Size CONFIG, a model's config.json or a bundled model's name, for a group of GPUs.

    Exit code 1 if nothing fits or the file is not a model's.
    """
    demand = Demand(
        asked["prompt_tokens"], asked["output_tokens"], asked["ttft_ms"] / 1000, asked["token_ms"] / 1000
    )
    settings = EngineSettings(
        memory_ratio=asked["memory_ratio"],
        kv_bits=8 if asked["kv_dtype"] == "fp8" else 16,
        max_context=asked["max_context"],
        batched_tokens=BATCHED_TOKENS[Aim(asked["aim"])],
        max_seqs=asked["max_seqs"],
        has_graphs=not asked["eager"],
    )
    found = size(read_model_config(config_bytes(config)), gpu(gpu_name), gpus, settings, demand)
    runs = {} if pool is None else _launches(pool)
    if as_json:
        click.echo(json.dumps(document(found, runs), indent=1))
    else:
        click.echo("\n".join(lines(found, runs)))
    if found.best is None:
        raise SystemExit(1)


def _launches(pool: str) -> dict[str, Launch]:
    from control.cli_session import transaction
    from control.queries_sizing import launches

    with transaction() as session:
        return launches(session, pool, now=SystemClock().now())


def document(found: Sizing, runs: dict[str, Launch]) -> dict[str, Any]:
    """The answer as JSON: bytes, seconds, tokens; None is unknown."""
    return {
        "architecture": found.shape.architecture,
        "gpu": found.gpu.name,
        "gpus": found.gpus,
        "parameters": found.parameters,
        "active_parameters": found.active_parameters,
        "weight_bytes": found.stored_bytes,
        "efficiency": EFFICIENCY,
        "settings": asdict(found.settings),
        "demand": asdict(found.demand),
        "best": None if found.best is None else _choice(found.best),
        "choices": [_choice(choice) for choice in found.choices],
        "flags": [asdict(flag) for flag in found.flags],
        "differences": {
            node: [{**asdict(d), "differs": d.differs} for d in listed]
            for node, listed in compared(found, runs).items()
        },
        "warnings": list(found.warnings),
    }


def compared(found: Sizing, runs: dict[str, Launch]) -> dict[str, list[Any]]:
    """What each node runs against the suggestion; empty if nothing fits."""
    if found.best is None or found.best.memory is None:
        return {}
    tokens = found.best.memory.tokens.expected
    return {node: differences(found.flags, launch, tokens) for node, launch in runs.items()}


def _choice(choice: Choice) -> dict[str, Any]:
    row: dict[str, Any] = {"layout": asdict(choice.layout), "words": choice.layout.words}
    if choice.refused is not None:
        return {**row, "refused": choice.refused}
    row |= {"refused": None, "batch": choice.batch, "batch_limit": choice.batch_limit}
    row["batch_a_replica"] = choice.batch_a_replica
    row |= {"tokens_per_s": choice.tokens_per_s, "notes": list(choice.notes)}
    for name in ("memory", "step", "first"):
        part = getattr(choice, name)
        row[name] = None if part is None else asdict(part)
    return row


def batch_words(choice: Choice) -> str:
    """Return the largest batch, told apart by replica where there are several: "2 x 256"."""
    replicas = choice.layout.dp
    return f"{choice.batch}" if replicas == 1 else f"{replicas} x {choice.batch_a_replica}"


def lines(found: Sizing, runs: dict[str, Launch]) -> list[str]:
    """The answer for people."""
    said = [
        f"{found.shape.architecture}: {found.parameters / 1e9:.1f} B parameters, "
        f"{found.active_parameters / 1e9:.1f} B a token, {found.stored_bytes / 1e9:.1f} GB of weights",
        f"on {found.gpus} x {found.gpu.title} ({found.gpu.source})",
        "",
    ]
    best = found.best
    if best is None:
        said.append("Nothing fits:")
    else:
        said += _best_lines(found, best)
        said += ["", "Other ways:"]
    for choice in found.choices:
        if choice is best:
            continue
        why = (
            choice.refused
            or choice.why_none(found.demand.token_s)
            or (f"{batch_words(choice)} at once, {choice.tokens_per_s:.0f} output tokens/s")
        )
        said.append(f"  {choice.layout.words:<28} {why}")
    for warning in found.warnings:
        said += ["", f"Mind: {warning}"]
    for node, listed in compared(found, runs).items():
        said += ["", f"{node} runs:"]
        said += [f"  {d.setting:<24} {d.runs or 'unknown':<12} suggested {d.suggested}" for d in listed]
    return said


def _best_lines(found: Sizing, best: Choice) -> list[str]:
    memory, step, first = best.memory, best.step, best.first
    if memory is None or step is None or first is None:
        return []
    tokens, low, usable = memory.tokens, EFFICIENCY[0], memory.usable_bytes / 1e9
    span = f"{tokens.low:,.0f} to {tokens.high:,.0f}"
    said = [
        f"Best: {best.layout.words}",
        f"  weights        {memory.weight_bytes / 1e9:.1f} GB a GPU of {usable:.1f} usable",
        f"  work           {memory.overhead.low / 1e9:.1f} to {memory.overhead.high / 1e9:.1f} GB",
        f"  KV cache       {tokens.expected:,.0f} tokens a replica ({span}), "
        f"{memory.token_bytes:,.0f} bytes a token and GPU",
        f"  largest batch  {batch_words(best)} (stopped by {best.batch_limit})"
        if best.batch
        else f"  largest batch  none: {best.why_none(found.demand.token_s)}",
        f"  decoding step  at least {step.total_s * 1e3:.1f} ms ({step.limit}); plan with "
        f"{step.total_s / low * 1e3:.1f} ms",
        f"  first token    at least {first.total_s * 1e3:.0f} ms ({first.limit}); plan with "
        f"{first.total_s / low * 1e3:.0f} ms and the queue, limit {found.demand.ttft_s * 1e3:.0f} ms",
        f"  output         about {best.tokens_per_s:,.0f} tokens/s at {percent(low)} of the bound",
    ]
    said += [f"  mind           {note}" for note in best.notes]
    said += ["", "vllm serve " + " ".join(flag.words for flag in found.flags)]
    return said
