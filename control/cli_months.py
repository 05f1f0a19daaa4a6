"""`rhodeck months`: list, show, close and verify months; correct closed ones; rules and commitments.

Prevents: a month closed by a script that never saw its checklist.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import click

from control import adjustments, allocation_rules, month_close, month_keys, month_seal
from control.cli_session import me, transaction
from control.late_node_time import late_node_time
from control.month_checks import Check, checklist
from control.node_life import correct_node_life
from control.queries_spend import month_spend
from control.settings import load_settings
from fleet.clock import SystemClock
from fleet.instants import instant_of
from fleet.months import QUARTER


def _zone() -> ZoneInfo:
    return ZoneInfo(load_settings().finance_timezone)


@click.group()
def months() -> None:
    """List, close and verify months; correct closed ones; divide cost."""


@months.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_months(as_json: bool) -> None:
    """List every month since the first observed node time, newest first."""
    with transaction() as session:
        found = month_close.months(session, zone=_zone(), now=SystemClock().now())
    if as_json:
        click.echo(json.dumps([each.as_dict() for each in found], indent=2))
        return
    for each in found:
        closed = each.closed
        said = "" if closed is None else f"{closed.total_usd:>14,.2f} USD  sha256 {closed.sha256[:12]}"
        click.echo(f"{each.name}  {each.state:<8} {said}".rstrip())


@months.command()
@click.argument("month")
def show(month: str) -> None:
    """Show MONTH (2026-11): its state, its lines by kind, and the checklist while it is open."""
    now, zone = SystemClock().now(), _zone()
    with transaction() as session:
        found = month_spend(session, month, zone=zone, now=now)
        checks: Sequence[Check] = ()
        if found.state in ("open", "closing"):
            checks = checklist(session, found, zone, now)
        is_closed = found.state == "closed"
        late = adjustments.late_records(session, month) if is_closed else []
        late_time = late_node_time(session, month) if is_closed else []
    click.echo(f"{month} ({found.month.zone}), {found.state}, {found.method}")
    for kind in dict.fromkeys(line.kind for line in found.lines):
        usd = sum(line.amount_usd for line in found.lines if line.kind == kind)
        click.echo(f"  {kind:<12} {usd:>14,.2f} USD")
    if found.has_records:
        click.echo(f"  {'total':<12} {found.total_usd:>14,.2f} USD")
    else:
        click.echo("  nothing is recorded of it")
    for line in found.lines:
        if line.kind == "adjustment":
            whose = line.tenant or "nobody"
            click.echo(f"  of {line.adjusts}, {whose}: {line.amount_usd:,.2f} USD, {line.note}")
    _say(checks)
    for each in late_time:
        click.echo(
            f"late: {each.change_s / 3600:+,.4f} node-hours of {each.node} in {each.pool} "
            f"({each.price_class}), {_stamp(each.first)} to {_stamp(each.last + QUARTER)}, "
            f"received {_stamp(each.received_at)}"
        )
    for record in late:
        click.echo(
            f"late: {record.gateway} {record.spool} {record.seq} of {record.tenant}, "
            f"finished {_stamp(record.finished_at)}, received {_stamp(record.received_at)}"
        )


def _stamp(at: datetime) -> str:
    """Return an instant of UTC as the checklist writes it: "2026-11-09 06:15 UTC"."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _say(checks: Sequence[Check]) -> None:
    for check in checks:
        word = "ok  " if check.is_met else ("STOP" if check.is_blocking else "look")
        click.echo(f"  [{word}] {check.name}: {check.found}")


@months.command()
@click.argument("month")
@click.option("--final", is_flag=True, help="Close for good; without it the checklist is shown.")
@click.option("--accept", is_flag=True, help="Close although items that do not stop it are not met.")
@click.option("--note", default="", help="For whoever reads it later.")
@click.option("--cancel", is_flag=True, help="Take the month back from closing to open.")
def close(month: str, final: bool, accept: bool, note: str, cancel: bool) -> None:
    """Begin to close MONTH and show its checklist; with --final close it for good."""
    settings, now, zone = load_settings(), SystemClock().now(), _zone()
    if cancel:
        with transaction() as session:
            month_close.stop_closing(session, month, actor=me(), now=now)
        click.echo(f"{month}: open")
        return
    if not final:
        with transaction() as session:
            checks = month_close.start_closing(session, month, zone=zone, actor=me(), now=now)
        click.echo(f"{month}: closing")
        _say(checks)
        return
    with transaction() as session:
        closed = month_close.close_month(
            session,
            month,
            zone=zone,
            actor=me(),
            now=now,
            key_file=settings.finance_key,
            accept=accept,
            note=note,
        )
    click.echo(f"{month}: closed, {closed.total_usd:,.2f} USD in {closed.rows} rows")
    click.echo(f"sha256 {closed.sha256}\nsignature {closed.signature} (key {closed.key_id})")


@months.command()
@click.argument("month")
def verify(month: str) -> None:
    """Check the file, lines and signature of closed MONTH; exit code 1 if one does not hold."""
    with transaction() as session:
        found = month_close.verify(session, month, key_file=load_settings().finance_key)
        changes = month_keys.key_changes(session)
    click.echo(f"{month}: sha256 {found.sha256}")
    click.echo(f"  file       {'holds' if found.is_file_whole else 'IS NOT THE ONE THAT WAS CLOSED'}")
    click.echo(f"  lines      {'hold' if found.are_lines_whole else 'ARE NOT THOSE OF THE FILE'}")
    signed = {True: "holds", False: "DOES NOT HOLD", None: "not checked"}
    click.echo(f"  signature  {signed[found.is_signed]}: {found.signature_by}")
    about = month_seal.ABOUT.get(found.seal_version, "none this release knows")
    click.echo(f"  seal       version {found.seal_version}: {about}")
    for change in changes:
        click.echo(
            f"  key        {change.key_id} since {_stamp(change.created_at)} "
            f"by {change.created_by}, in place of {change.replaces or 'none'}: {change.reason}"
        )
    if not found.holds:
        sys.exit(1)


@months.command("new-key")
@click.option("--reason", required=True, help="What became of the key before, and who decided.")
def new_key(reason: str) -> None:
    """Sign the months to come with another key; what is closed is held to what the new key finds now."""
    with transaction() as session:
        made = month_keys.new_key(
            session, load_settings().finance_key, reason=reason, actor=me(), now=SystemClock().now()
        )
    click.echo(f"months are signed with key {made.key_id}, in place of {made.replaces or 'none'}")


@months.command()
@click.argument("month")
@click.argument("amount_usd")
@click.option("--tenant", required=True, help="Whose cost changes.")
@click.option("--tier", default="", help="Of the line; none unless said.")
@click.option("--model", default="", help="Of the line; none unless said.")
@click.option("--pool", default="", help="Of the line; none unless said.")
@click.option("--reason", required=True, help="What was wrong.")
def correct(
    month: str, amount_usd: str, tenant: str, tier: str, model: str, pool: str, reason: str
) -> None:
    """Correct closed MONTH by AMOUNT_USD, as a line of the next month that closes. Negative: after `--`."""
    with transaction() as session:
        number = adjustments.correct(
            session,
            month=month,
            tenant=tenant,
            tier=tier,
            model=model,
            pool=pool,
            amount_usd=amount_usd,
            reason=reason,
            actor=me(),
            now=SystemClock().now(),
        )
    click.echo(f"correction {number} of {month}")


@months.command("node-time")
@click.argument("node")
@click.option("--up/--down", "was_up", required=True, help="Whether it ran.")
@click.option("--from", "start", required=True, help="As 2026-12-01T00:15Z; a quarter-hour.")
@click.option("--to", "end", required=True, help="Not included.")
@click.option("--reason", required=True, help="What was wrong.")
def node_time(node: str, was_up: bool, start: str, end: str, reason: str) -> None:
    """Correct the life of NODE: it ran though nobody saw it, or it did not. Closed months stay closed."""
    with transaction() as session:
        changed = correct_node_life(
            session,
            node=node,
            start=instant_of(start, "--from"),
            end=instant_of(end, "--to"),
            was_up=was_up,
            reason=reason,
            actor=me(),
            now=SystemClock().now(),
        )
    click.echo(f"{node}: {changed / 3600:+,.4f} node-hours")


@months.command()
@click.option("--from", "from_month", required=True, help="First month it holds for, as 2026-12.")
@click.option(
    "--by",
    "basis",
    type=click.Choice(allocation_rules.BASES),
    default="engine_seconds",
    show_default=True,
    help="What use counts by.",
)
@click.option(
    "--share",
    type=click.Choice(allocation_rules.SHARES),
    default="apart",
    show_default=True,
    help="Who bears what nobody used.",
)
@click.option("--output-weight", default="12", help="What an output token counts; a prompt token is 1.")
@click.option("--reason", required=True, help="Who decided it, and when.")
def rule(from_month: str, basis: str, share: str, output_weight: str, reason: str) -> None:
    """Divide cost by engine-seconds, tokens or KV-token-seconds; share the unused part."""
    with transaction() as session:
        made = allocation_rules.set_rule(
            session,
            from_month=from_month,
            basis=basis,
            share=share,
            output_weight=output_weight,
            reason=reason,
            zone=_zone(),
            actor=me(),
            now=SystemClock().now(),
        )
    click.echo(f"from {from_month}: {made.method}")


@months.command()
@click.argument("usd_per_hour")
@click.option("--pool", help="Pool of the committed nodes; without it, cost of the platform.")
@click.option("--nodes", default=1, show_default=True, help="How many nodes are committed.")
@click.option("--upfront", default="0", help="USD paid at once, spread evenly over the term.")
@click.option("--from", "start", required=True, help="As 2026-12-01T00:00Z.")
@click.option("--to", "end", required=True, help="Not included.")
@click.option("--source", required=True, help="Contract, and its date.")
def commit(
    usd_per_hour: str, pool: str | None, nodes: int, upfront: str, start: str, end: str, source: str
) -> None:
    """Enter nodes that are paid whether used or not: USD_PER_HOUR of each; or the platform's own cost."""
    with transaction() as session:
        allocation_rules.add_commitment(
            session,
            pool=pool,
            nodes=nodes,
            usd_per_hour=usd_per_hour,
            upfront_usd=upfront,
            starts_at=instant_of(start, "--from"),
            ends_at=instant_of(end, "--to"),
            source=source,
            actor=me(),
            now=SystemClock().now(),
        )
    whom = f"each of {nodes} nodes of {pool}" if pool else "the platform"
    click.echo(f"{usd_per_hour} USD an hour for {whom}, {start} to {end}")
