"""`rhodeck estimate replay`: whom a policy would have refused, on the traffic of the last hour or a file.

The policy in force is replayed beside it, through the same gate on the same nodes, so that what differs is
the policy's doing. Prevents: a policy published and its refusals met in production.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import click

from control import queries_policy
from control.cli_session import transaction
from control.finite import FiniteRange
from control.progress_lines import progress
from control.recorded_traffic import RecordedTraffic, recorded_traffic, replay_nodes
from control.replay_files import trace_arrivals
from fleet.clock import SystemClock
from fleet.errors import NotFound
from fleet.gate_replay import Arrival, replay
from fleet.policy import MAX_DOCUMENT_BYTES, Policy, parse
from fleet.replay_outcomes import Group, by_tenant_and_tier
from fleet.replay_servers import ReplayNode

Groups = dict[tuple[str, str], Group]


@dataclass(frozen=True, slots=True)
class _Asked:
    arrivals: Sequence[Arrival]
    nodes: Sequence[ReplayNode]
    in_force: Policy | None
    recorded: RecordedTraffic | None
    source: str


@click.command("replay")
@click.argument("policy", type=click.File("rb"))
@click.option("--minutes", type=FiniteRange(1, 1440), default=60, show_default=True, help="Up to now.")
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="CSV of requests instead.")
@click.option("--nodes", type=click.IntRange(1, 1000), default=1, show_default=True, help="With --trace.")
@click.option(
    "--kv-tokens",
    type=click.IntRange(1, 10**12),
    default=600_000,
    show_default=True,
    help="KV cache of a node; with --trace.",
)
@click.option("--max-seqs", type=click.IntRange(1, 100_000), help="At once on a node; with --trace.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31),
    default=1,
    show_default=True,
    help="Of the times that were not recorded.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay_command(
    policy: Any,
    minutes: float,
    trace: Path | None,
    nodes: int,
    kv_tokens: int,
    max_seqs: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Say whom POLICY (a JSON file, or -) would have refused, by tenant and tier."""
    wanted = parse(policy.read(MAX_DOCUMENT_BYTES + 1))
    if trace is None:
        asked = _of_fleet(minutes, seed)
    else:
        held = [
            ReplayNode(f"n{n}", kv_capacity_tokens=kv_tokens, max_num_seqs=max_seqs) for n in range(nodes)
        ]
        arrivals = trace_arrivals(trace)
        asked = _Asked(arrivals, held, None, None, f"file {trace.name}: {len(arrivals)} requests")
    would = _groups(wanted, asked, seed, "this policy")
    does = None if asked.in_force is None else _groups(asked.in_force, asked, seed, "the policy in force")
    document = as_document(asked.source, would, does, asked.recorded)
    click.echo(json.dumps(document, indent=1, allow_nan=False) if as_json else as_text(document))


def _of_fleet(minutes: float, seed: int) -> _Asked:
    until = SystemClock().now().astimezone(UTC)
    since = until - timedelta(minutes=minutes)
    with transaction() as session:
        recorded = recorded_traffic(session, since, until, seed)
        nodes = replay_nodes(session, until)
        head = queries_policy.head(session)
    if head is None:
        raise NotFound("no policy is published yet", hint="`rhodeck policy publish`")
    source = (
        f"gateways, {since:%Y-%m-%d %H:%M} to {until:%H:%M} UTC: {recorded.served} served requests and "
        f"{sum(recorded.refused.values())} refused ones of the same sizes, on {len(nodes)} nodes"
    )
    return _Asked(recorded.arrivals, nodes, parse(head.document), recorded, source)


def _groups(policy: Policy, asked: _Asked, seed: int, label: str) -> Groups:
    with progress(len(asked.arrivals), label) as told:
        result = replay(policy, asked.arrivals, asked.nodes, seed=seed, on_progress=told)
    return by_tenant_and_tier(result)


def as_document(
    source: str, would: Groups, does: Groups | None, recorded: RecordedTraffic | None
) -> dict[str, Any]:
    """Return the answer as JSON-ready values; null where there is no policy in force or no record."""
    rows: list[dict[str, Any]] = []
    for (tenant, tier), group in would.items():
        now = None if does is None else does.get((tenant, tier))
        then = None if recorded is None else recorded.refused.get((tenant, tier), 0)
        rows.append(
            {
                "tenant": tenant,
                "tier": tier,
                "offered": group.offered,
                "would_refuse": sum(group.refused.values()),
                "by_reason": {reason.value: count for reason, count in group.refused.items()},
                "in_force_refuses": None if now is None else sum(now.refused.values()),
                "recorded_refused": then,
                "queue_wait_p95_s": group.queued_s.p95,
            }
        )
    return {
        "traffic": source,
        "groups": rows,
        "unplaced": 0 if recorded is None else recorded.unplaced,
        "note": "one gate holds all quotas; several gateways refuse a little earlier",
    }


def as_text(document: dict[str, Any]) -> str:
    """Return the answer as lines for people, most refused first."""
    lines = [f"Traffic  {document['traffic']}"]
    rows = sorted(document["groups"], key=lambda row: -row["would_refuse"])
    for row in rows:
        reasons = ", ".join(f"{count} {reason}" for reason, count in row["by_reason"].items())
        line = f"{row['tenant']} as {row['tier']}: "
        line += f"would have refused {row['would_refuse']} of {row['offered']}"
        line += f" ({reasons})" if reasons else ""
        if row["in_force_refuses"] is not None:
            line += f"; the policy in force {row['in_force_refuses']}"
        if row["recorded_refused"] is not None:
            line += f"; recorded {row['recorded_refused']}"
        lines.append(line)
    if document["unplaced"]:
        lines.append(
            f"{document['unplaced']} more were refused then, of whose tenant and tier nothing was served: "
            "their sizes are not known"
        )
    return "\n".join([*lines, f"({document['note']})"])
