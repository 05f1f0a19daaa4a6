"""`rhodeck spend` and `rhodeck prices`: a month's money on the terminal and as a file.

Files are written whole or not at all (`control/export_file.py`). Prevents: half a file that looks like a
whole one.
"""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from control import cli_spend_days
from control import prices as price_book
from control.cli_session import engine_in_use, me, transaction
from control.export_file import whole_file, write_whole
from control.export_month import issuer_of, month_in
from control.exports import FORMATS, LAYOUTS, Format, Layout, status_of
from control.queries_spend import month_spend
from control.settings import load_settings
from fleet.clock import SystemClock
from fleet.errors import InvalidInput
from fleet.instants import instant_of
from fleet.messages import PRICE_CLASSES
from fleet.months import month_at
from fleet.spend import MonthSpend, subtotals


def _month(name: str | None) -> MonthSpend:
    now, zone = SystemClock().now(), ZoneInfo(load_settings().finance_timezone)
    wanted = month_at(now, zone).name if name is None else name
    with transaction() as session:
        return month_spend(session, wanted, zone=zone, now=now)


@click.group()
def spend() -> None:
    """Show and export a month's spend."""


spend.add_command(cli_spend_days.days)


@spend.command()
@click.argument("month", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(month: str | None, as_json: bool) -> None:
    """Show the spend of MONTH (2026-11; default: this month) by tenant."""
    found = _month(month)
    by_tenant = {tenant or "(idle)": usd for (tenant,), usd in subtotals(found.lines, "tenant").items()}
    if as_json:
        click.echo(json.dumps(_as_json(found, by_tenant), indent=2))
        return
    state = "estimated, the month is not over" if found.is_estimated else status_of(found)
    click.echo(f"{found.month.name} ({found.month.zone}), {state}")
    if not found.has_records:
        click.echo("  nothing is recorded of it")
        return
    for tenant, usd in sorted(by_tenant.items(), key=lambda item: -item[1]):
        click.echo(f"  {tenant:<32} {usd:>14,.2f} USD")
    click.echo(f"  {'total':<32} {found.total_usd:>14,.2f} USD   {found.node_hours:,.2f} node-hours")
    if found.unpriced_node_hours:
        click.echo(f"  not in the total: {found.unpriced_node_hours:,.2f} node-hours without a price")


def _as_json(found: MonthSpend, by_tenant: dict[str, Decimal]) -> dict[str, object]:
    return {
        "month": found.month.name,
        "time_zone": found.month.zone,
        "estimated": found.is_estimated,
        "state": found.state,
        "method": found.method,
        "recorded": found.has_records,
        "total_usd": str(found.total_usd) if found.has_records else None,
        "idle_usd": str(found.idle_usd) if found.has_node_time else None,
        "node_hours": str(round(found.node_hours, 6)) if found.has_node_time else None,
        "unpriced_node_hours": str(round(found.unpriced_node_hours, 6)),
        "by_tenant_usd": {tenant: str(usd) for tenant, usd in by_tenant.items()},
    }


@spend.command()
@click.argument("month")
@click.option("--out", type=click.Path(path_type=Path), help="File to write; default: standard output.")
@click.option(
    "--format", "fmt", type=click.Choice(FORMATS), default="csv", show_default=True, help="Kind of file."
)
@click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    default="plain",
    show_default=True,
    help="Our columns or those of FOCUS.",
)
@click.option("--manifest", is_flag=True, help="Write FILE.manifest.json beside the file too.")
def export(month: str, out: Path | None, fmt: Format, layout: Layout, manifest: bool) -> None:
    """Write MONTH as a file. Whole or refused; rows, total and sha256 go to standard error."""
    settings, now = load_settings(), SystemClock().now()
    zone = ZoneInfo(settings.finance_timezone)
    if manifest and out is None:
        raise InvalidInput(
            "a manifest stands beside a file", hint="Name the file with --out", field="--manifest"
        )
    with transaction() as session:
        made = month_in(session, month, fmt, layout, zone=zone, now=now, issuer=issuer_of(settings))
    if out is None:
        sys.stdout.buffer.write(made.body)
        sys.stdout.buffer.flush()
    else:
        write_whole(out, made.body)
    if manifest and out is not None:
        write_whole(out.with_name(f"{out.name}.manifest.json"), made.manifest_file())
    click.echo(json.dumps(made.manifest()), err=True)


@spend.command()
@click.argument("month")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File to write.")
@click.option(
    "--format",
    "fmt",
    type=click.Choice(("csv", "parquet")),
    default="csv",
    show_default=True,
    help="Kind of file.",
)
@click.option("--manifest", is_flag=True, help="Write FILE.manifest.json beside the file too.")
def usage(month: str, out: Path, fmt: str, manifest: bool) -> None:
    """Write MONTH's usage records as a file. Whole or refused; rows and sums go to standard error."""
    from control.export_usage import usage_format, write_usage  # Arrow is loaded by whoever asks for a file

    zone = ZoneInfo(load_settings().finance_timezone)
    with engine_in_use() as engine, whole_file(out) as file:
        made = write_usage(engine, month, usage_format(fmt), file, zone=zone, now=SystemClock().now())
    if manifest:
        text = json.dumps(made.manifest(), indent=2) + "\n"
        write_whole(out.with_name(f"{out.name}.manifest.json"), text.encode())
    click.echo(json.dumps(made.manifest()), err=True)


@click.group()
def prices() -> None:
    """List and add node-hour prices."""


@prices.command("list")
def list_prices() -> None:
    """List every price, newest first."""
    with transaction() as session:
        found = price_book.prices(session)
    for row in found:
        click.echo(
            f"{row.effective_from:%Y-%m-%d %H:%M}Z  {row.price_class:<10} {row.pool or 'all pools':<20} "
            f"{row.usd_per_node_hour.normalize():>10f} USD/node-hour  {row.source}"
        )
    if not found:
        click.echo("no prices; add one with `rhodeck prices add on_demand 28 --source ...`")


@prices.command()
@click.argument("price_class", type=click.Choice(PRICE_CLASSES))
@click.argument("usd_per_node_hour")
@click.option("--source", required=True, help="Contract or page, and its date.")
@click.option("--from", "effective_from", help="When it takes effect, as 2026-12-01T00:00Z; default: now.")
@click.option("--pool", help="Only for nodes of this pool.")
def add(
    price_class: str, usd_per_node_hour: str, source: str, effective_from: str | None, pool: str | None
) -> None:
    """Set what a node-hour of PRICE_CLASS costs. It holds from the next quarter-hour on; the past stays."""
    now = SystemClock().now()
    with transaction() as session:
        price_book.add_price(
            session,
            price_class=price_class,
            usd_per_node_hour=usd_per_node_hour,
            effective_from=now if effective_from is None else instant_of(effective_from, "--from"),
            source=source,
            actor=me(),
            now=now,
            pool=pool,
        )
    click.echo(f"{price_class}: {usd_per_node_hour} USD a node-hour")
