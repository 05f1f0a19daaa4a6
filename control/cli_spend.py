"""`rhodeck spend` and `rhodeck prices`: a month's money on the terminal and as a file.

Files are written beside and renamed, so a failed export leaves nothing behind. Prevents: half a file
that looks like a whole one.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import tempfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from control import cli_spend_days
from control import prices as price_book
from control.cli_session import me, transaction
from control.exports import Export, status_of
from control.queries_spend import month_file, month_spend
from control.settings import load_settings
from fleet.clock import SystemClock
from fleet.errors import InvalidInput
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
        "total_usd": str(found.total_usd),
        "idle_usd": str(found.idle_usd),
        "node_hours": str(round(found.node_hours, 6)),
        "unpriced_node_hours": str(round(found.unpriced_node_hours, 6)),
        "by_tenant_usd": {tenant: str(usd) for tenant, usd in by_tenant.items()},
    }


@spend.command()
@click.argument("month")
@click.option("--out", type=click.Path(path_type=Path), help="File to write; default: standard output.")
def export(month: str, out: Path | None) -> None:
    """Write MONTH as CSV. Whole or refused; rows, total and sha256 go to standard error."""
    now, zone = SystemClock().now(), ZoneInfo(load_settings().finance_timezone)
    with transaction() as session:
        made = month_file(session, month, zone=zone, now=now)
    if out is None:
        sys.stdout.buffer.write(made.body)
        sys.stdout.buffer.flush()
    else:
        _write(made, out)
    click.echo(json.dumps(made.manifest()), err=True)


def _write(made: Export, out: Path) -> None:
    beside: Path | None = None
    try:
        target = out.resolve()
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):  # renaming over a device would remove the device
            raise InvalidInput(f"{out} cannot be written: it is not a file", field="--out")
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".rhodeck-", delete=False) as file:
            beside = Path(file.name)
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            file.write(made.body)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except (OSError, RuntimeError) as exc:  # RuntimeError: links in a circle
        if beside is not None:
            with contextlib.suppress(OSError):
                beside.unlink()
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise InvalidInput(
            f"{out} cannot be written: {reason}", hint="Choose a folder that exists", field="--out"
        ) from exc


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
            effective_from=now if effective_from is None else _instant(effective_from),
            source=source,
            actor=me(),
            now=now,
            pool=pool,
        )
    click.echo(f"{price_class}: {usd_per_node_hour} USD a node-hour")


def _instant(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as exc:
        raise InvalidInput(
            f"{text[:40]!r} is not a time", hint="Write it as 2026-12-01T00:00Z", field="--from"
        ) from exc
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
