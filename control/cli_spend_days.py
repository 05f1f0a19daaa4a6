"""`rhodeck spend days`: what each day of a month or range cost, adding up to the month's own total.

Prevents: daily figures made in a spreadsheet from another zone's midnight.
"""

from __future__ import annotations

import json
from zoneinfo import ZoneInfo

import click

from control.cli_session import transaction
from control.day_spend import as_json, asked_days
from control.settings import load_settings
from fleet.clock import SystemClock


@click.command()
@click.argument("month", required=False)
@click.option("--from", "first", help="First day of a range, as 2026-11-01.")
@click.option("--to", "last", help="Last day of it, included.")
@click.option("--zone", "cut", help="Cut days at this zone's midnight; the total stays the same.")
@click.option("--json", "as_text", is_flag=True, help="Print JSON.")
def days(month: str | None, first: str | None, last: str | None, cut: str | None, as_text: bool) -> None:
    """Show each day of MONTH (2026-11; default: this month), or of a range of days, and their sum."""
    now, zone = SystemClock().now(), ZoneInfo(load_settings().finance_timezone)
    with transaction() as session:
        found = asked_days(session, month=month, first=first, last=last, cut=cut, zone=zone, now=now)
    if as_text:
        click.echo(json.dumps(as_json(found, zone), indent=2))
        return
    click.echo(f"days of {found.zone}; months begin and end in {zone.key}")
    for day in found.days:
        adjusted = f"  {day.adjustments_usd:+,.2f} adjustments" if day.adjustments_usd else ""
        unpriced = f"  {day.unpriced_hours:,.2f} node-hours without a price" if day.unpriced_hours else ""
        usd = f"{day.total_usd:>14,.2f}" if day.is_known else f"{'-':>14}"
        hours = f"{day.node_hours:>10,.2f} node-hours" if day.is_recorded else "  not recorded"
        click.echo(f"{day.day}  {usd} USD  {hours}{adjusted}{unpriced}")
    if not found.is_known:
        click.echo("nothing is recorded of these days")
        return
    click.echo(f"{'total':<10}  {found.total_usd:>14,.2f} USD")
