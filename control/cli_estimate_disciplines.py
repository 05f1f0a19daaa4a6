"""`rhodeck estimate disciplines`: who goes first, and how the engine batches, compared on the same traffic.

Runs the real gate before simulated engines, in virtual time; progress on standard error. Times are seconds,
rates requests/s. Prevents: a discipline chosen for its best number without what each tier, tenant and size
class pays for it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from control.finite import FiniteRange
from control.progress_lines import progress
from control.replay_files import scaled, trace_arrivals
from fleet.discipline_results import CaseResult, ComparisonResult
from fleet.discipline_study import (
    COMPARISONS,
    STUDY_AGING,
    StudySettings,
    run_comparison,
)
from fleet.gate_replay import Arrival
from fleet.replay_outcomes import Group, Objectives, Quantiles
from fleet.replay_traffic import MIXED, Bursts, mixed_traffic

#: Requests/s a node of the made traffic: busy, and over its capacity in bursts.
RATE_PER_NODE = 14.5


@click.command("disciplines")
@click.option(
    "--compare",
    "chosen",
    type=click.Choice(list(COMPARISONS)),
    multiple=True,
    help="Only this comparison; repeat for more. Default: all.",
)
@click.option(
    "--nodes", type=click.IntRange(1, 64), default=4, show_default=True, help="Engines, one a node."
)
@click.option("--rate", type=FiniteRange(0.01, 10_000), help="Requests/s.  [14.5 a node; a trace's own]")
@click.option(
    "--seconds", type=FiniteRange(10, 86_400), default=300, show_default=True, help="Length of the traffic."
)
@click.option("--burst-factor", type=FiniteRange(1, 100), default=2.5, show_default=True, help="1: none.")
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="CSV of requests instead.")
@click.option(
    "--aging-rate",
    type=FiniteRange(0, 1e6),
    default=STUDY_AGING,
    show_default=True,
    help="Tokens of advantage a second of waiting.",
)
@click.option(
    "--ttft-ms", type=FiniteRange(1, 3_600_000), default=500, show_default=True, help="Objective."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Of the made traffic."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; seconds, null is unknown.")
def disciplines(
    chosen: Sequence[str],
    nodes: int,
    rate: float | None,
    seconds: float,
    burst_factor: float,
    trace: Path | None,
    aging_rate: float,
    ttft_ms: float,
    seed: int,
    as_json: bool,
) -> None:
    """Compare FIFO, SJF with aging and fair queues; static and continuous batching; chunked prefill on and
    off; one pool and prefill/decode pools; KV within budget and oversubscribed.

    Made traffic has 85 % short chats, 14 % jobs and 0.7 % long contexts of five tenants.
    """
    settings = StudySettings(
        nodes=nodes, aging_rate=aging_rate, seed=seed, objectives=Objectives(ttft_s=ttft_ms / 1000)
    )
    if trace is None:
        rate = nodes * RATE_PER_NODE if rate is None else rate
        bursts = Bursts.within(seconds, burst_factor) if burst_factor > 1 else None
        arrivals = mixed_traffic(random.Random(seed), rate, seconds, MIXED, bursts)
        source = f"made: {len(arrivals)} requests, {rate:g}/s over {seconds:g} s, bursts x{burst_factor:g}"
    else:
        arrivals = trace_arrivals(trace) if rate is None else scaled(trace_arrivals(trace), rate)
        source = f"file {trace.name}: {len(arrivals)} requests"
    results = _compare(list(chosen) or list(COMPARISONS), arrivals, settings)
    if as_json:
        document = {
            "traffic": source,
            "nodes": nodes,
            "seed": seed,
            "comparisons": [as_document(result) for result in results],
        }
        click.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        click.echo("\n".join([f"Traffic  {source}; {nodes} nodes", *map(as_text, results)]))


def _compare(
    chosen: Sequence[str], arrivals: Sequence[Arrival], settings: StudySettings
) -> list[ComparisonResult]:
    """Return the comparisons that were run before an interruption."""
    tenants = sorted({arrival.request.tenant for arrival in arrivals})
    found: list[ComparisonResult] = []
    try:
        for key in chosen:
            comparison = COMPARISONS[key](settings, tenants)
            with progress(len(comparison.cases), key) as told:
                result = run_comparison(comparison, arrivals, settings, told)
            if result is not None:
                found.append(result)
    except KeyboardInterrupt:
        click.echo(f"stopped after {len(found)} of {len(chosen)} comparisons", err=True)
        if not found:
            raise click.Abort from None
    return found


def _quantiles(found: Quantiles) -> dict[str, float | None]:
    return {"p50": found.p50, "p95": found.p95, "p99": found.p99, "mean": found.mean}


def _group(group: Group) -> dict[str, Any]:
    return {
        "offered": group.offered,
        "completed": group.completed,
        "refused": {outcome.value: count for outcome, count in group.refused.items()},
        "good_share": group.good_share,
        "queue_wait_s": _quantiles(group.queued_s),
        "ttft_s": _quantiles(group.ttft_s),
        "itl_s": _quantiles(group.itl_s),
        "e2e_s": _quantiles(group.e2e_s),
    }


def _groups(found: Mapping[str, Group]) -> dict[str, Any]:
    return {name: _group(group) for name, group in found.items()}


def as_document(result: ComparisonResult) -> dict[str, Any]:
    """Return a comparison as JSON-ready values."""
    return {
        "compare": result.key,
        "question": result.question,
        "cases": [
            {
                "name": case.name,
                "what": case.what,
                "output_tokens_per_s": case.tokens_per_s,
                "gap_s": {
                    "p50": case.gap_p50_s,
                    "p99": case.gap_p99_s,
                    "p99.9": case.gap_p999_s,
                    "max": case.gap_max_s,
                },
                "preemptions": case.preemptions,
                "all": _group(case.all),
                "by_class": _groups(case.by_class),
                "by_tier": _groups(case.by_tier),
                "by_tenant": _groups(case.by_tenant),
            }
            for case in result.results
        ],
        "notices": [{"case": n.case, "against": n.against, "lines": n.lines} for n in result.notices],
    }


def as_text(result: ComparisonResult) -> str:
    """Return a comparison as lines for people: every case, then what each class gets, then who notices."""
    head = (
        f"{'':28} {'tokens/s':>9} {'TTFT p50':>9} {'p95':>9} {'p99':>9} {'gap p99':>9} {'longest':>9} "
        f"{'good':>7} {'preempted':>9}"
    )
    lines = ["", result.question, head]
    lines += [_case_line(case) for case in result.results]
    lines.append(f"{'':28} {'of class':>9} {'TTFT p50':>9} {'p95':>9} {'p99':>9} {'e2e p99':>9}")
    for case in result.results:
        lines += [_class_line(case.name, name, group) for name, group in case.by_class.items()]
    for notice in result.notices:
        lines.append(f"{notice.case} against {notice.against}:")
        lines += [f"  {line}" for line in notice.lines] or ["  nobody would notice"]
    return "\n".join(lines)


def _case_line(case: CaseResult) -> str:
    t = case.all.ttft_s
    times = " ".join(_time(v) for v in (t.p50, t.p95, t.p99, case.gap_p99_s, case.gap_max_s))
    return (
        f"{case.name:28} {case.tokens_per_s:>9,.0f} {times} {case.all.good_share:>7.1%} "
        f"{case.preemptions:>9}   {case.what}"
    )


def _class_line(case: str, name: str, group: Group) -> str:
    t = group.ttft_s
    return f"{case:28} {name[:9]:>9} " + " ".join(_time(v) for v in (t.p50, t.p95, t.p99, group.e2e_s.p99))


def _time(value: float | None) -> str:
    if value is None:
        return f"{'-':>9}"
    return f"{1000 * value:>6.0f} ms" if value < 1 else f"{value:>7.2f} s"
