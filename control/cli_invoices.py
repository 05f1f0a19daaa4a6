"""`rhodeck invoices`: import a provider's invoice, say what its labels are, see where it differs.

Prevents: an import by a script that never saw how the file was read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from control import invoices as book
from control.cli_session import me, transaction
from control.day_spend import zone_named
from control.invoice_files import MAX_BYTES, InvoiceFile, read_invoice
from control.reconciliations import Report, as_json, reconciliation
from control.settings import load_settings
from fleet.clock import SystemClock
from fleet.errors import InvalidInput
from fleet.invoice_columns import ROLES, FileMapping, checked_classes, checked_options
from fleet.months import month_at
from fleet.reconciliation import Sums, Variance


@click.group()
def invoices() -> None:
    """Import providers' invoices and set them against our books."""


@invoices.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--provider", required=True, help="Whose invoice it is; how its files are read is kept.")
@click.option("--month", help="As 2026-11; default: the month its days are of.")
@click.option("--map", "maps", multiple=True, help=f"ROLE=COLUMN, - for none; {', '.join(ROLES)}.")
@click.option("--assign", "assigned", multiple=True, help="LABEL=CLASS: on_demand, spot/POOL, other.")
@click.option("--zone", help="Zone of the invoice's days; UTC at first.")
@click.option("--decimal", type=click.Choice([".", ","]), help="Where the values leave it open.")
@click.option("--dates", type=click.Choice(["ymd", "mdy", "dmy"]), help="Where the values leave it open.")
@click.option("--currency", help="Where no column says; USD at first.")
@click.option("--rate", help="USD for one unit of another currency.")
@click.option("--rate-source", default="", help="Whose rate, of which day.")
@click.option("--note", default="", help="Why, for whoever reads it later.")
@click.option("--dry-run", is_flag=True, help="Say how the file would be read; change nothing.")
def import_file(
    file: Path,
    provider: str,
    month: str | None,
    maps: Sequence[str],
    assigned: Sequence[str],
    zone: str | None,
    decimal: str | None,
    dates: str | None,
    currency: str | None,
    rate: str | None,
    rate_source: str,
    note: str,
    dry_run: bool,
) -> None:
    """Import FILE, a CSV. Whole or refused; the same content again changes nothing."""
    body, now = _body(file), SystemClock().now()
    with transaction() as session:
        saved = book.saved_mapping(session, provider)
        given = _mapping(saved, maps, assigned, zone, decimal, dates)
        read = read_invoice(body, given)
        known = book.rate_of(read, currency, rate, rate_source)
        _say_how(read, known)
        if dry_run:
            click.echo("nothing was imported (--dry-run)")
            return
        made = book.import_invoice(
            session,
            body,
            read,
            provider=provider,
            month=month,
            rate=known,
            given=given,
            assigned=_pairs(assigned),
            file_name=file.name,
            actor=me(),
            now=now,
            note=note,
        )
    kept = made.invoice
    if not made.is_new:
        click.echo(f"{provider} {kept.month}: imported before as {kept.id}, nothing was changed")
        return
    instead = f", in the place of {made.replaced.id}" if made.replaced else ""
    click.echo(f"{provider} {kept.month}: invoice {kept.id}, {kept.rows} lines{instead}")
    click.echo(f"see `rhodeck invoices show {kept.month}`")


@invoices.command()
@click.argument("provider")
@click.argument("assigned", nargs=-1, required=True, metavar="LABEL=CLASS...")
def assign(provider: str, assigned: Sequence[str]) -> None:
    """Say what node class PROVIDER's labels are: on_demand, reserved, spot, spot/POOL, or other."""
    with transaction() as session:
        made = book.assign_labels(session, provider, _pairs(assigned), actor=me(), now=SystemClock().now())
    for label, node_class in sorted(made.classes.items()):
        click.echo(f"{label} = {node_class}")


@invoices.command("list")
def list_invoices() -> None:
    """List the invoices that count, newest month first."""
    with transaction() as session:
        found = book.invoices(session)
    for each in found:
        click.echo(
            f"{each.month}  {each.provider:<20} {each.amount:>16,.2f} {each.currency}  "
            f"{each.rows:>7} lines  sha256 {each.sha256[:12]}  "
            f"{each.imported_at:%Y-%m-%d %H:%M}Z by {each.imported_by}"
        )
    if not found:
        click.echo("no invoice was imported")


@invoices.command()
@click.argument("month", required=False)
@click.option("--days", is_flag=True, help="Every day, not only node classes.")
@click.option("--json", "as_text", is_flag=True, help="Print JSON.")
def show(month: str | None, days: bool, as_text: bool) -> None:
    """Show where the invoices of MONTH (default: this month) differ from our books, and why."""
    now, zone = SystemClock().now(), ZoneInfo(load_settings().finance_timezone)
    with transaction() as session:
        report = reconciliation(session, month or month_at(now, zone).name, zone=zone, now=now)
    if as_text:
        click.echo(json.dumps(as_json(report), indent=2))
        return
    _show(report, days=days)


def _show(report: Report, *, days: bool) -> None:
    found = report.found
    for each in report.invoices:
        click.echo(f"{each.provider}: invoice {each.id}, {each.amount:,.2f} {each.currency}")
    click.echo(f"{found.month.name}, days of {found.month.zone}; USD, invoice less ours")
    head = ("ours", "invoice", "difference", "hours", "price", "unexplained")
    click.echo(f"{'node class':<28}" + "".join(f"{name:>15}" for name in head))
    for name, sums in found.by_class().items():
        click.echo(_line(name, sums))
        for row in found.rows if days else ():
            if row.node_class == name:
                click.echo(_line(f"  {row.day or 'no day'}", row) + (f"  {row.why}" if row.why else ""))
    click.echo(_line("total", found.total()))
    for why in sorted({f"{row.node_class}: {row.why}" for row in found.rows if row.why}):
        click.echo(f"  {why}")
    click.echo(
        f"our month is {report.month_usd:,.2f} ({report.zone}); not compared (platform, adjustments) "
        f"{report.not_compared_usd:,.2f}; node time that came after the close {report.late_usd:,.2f}; "
        f"hours at the month's ends in two zones {report.edges_usd:,.2f}"
    )
    for label in report.labels:
        if label.node_class is None:
            click.echo(
                f"no class: {label.label or '(no label)'} of {label.provider}, {label.usd:,.2f} USD; "
                f"`rhodeck invoices assign {label.provider} LABEL=CLASS`"
            )


def _line(name: str, sums: Sums | Variance) -> str:
    return f"{name[:28]:<28}" + "".join(
        f"{_usd(value):>15}"
        for value in (
            sums.our_usd,
            sums.invoice_usd,
            sums.difference_usd,
            sums.hours_usd,
            sums.price_usd,
            sums.unexplained_usd,
        )
    )


def _usd(value: Decimal | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _say_how(read: InvoiceFile, rate: book.Rate) -> None:
    mapping = read.mapping
    for role, column in mapping.columns.items():
        click.echo(f"  {role:<12} {column}")
    in_usd = "" if rate.currency == "USD" else f" at {rate.usd_per_unit} USD ({rate.source})"
    click.echo(
        f"  {len(read.lines)} lines, {read.total:,.2f} {rate.currency}{in_usd}; {read.encoding}, "
        f"decimals after {mapping.decimal!r}, days {mapping.dates} of {mapping.zone}"
    )


def _mapping(
    saved: FileMapping,
    maps: Sequence[str],
    assigned: Sequence[str],
    zone: str | None,
    decimal: str | None,
    dates: str | None,
) -> FileMapping:
    columns = {role: column for role, _, column in (text.partition("=") for text in maps)}
    for role in columns:
        if role not in ROLES:
            raise InvalidInput(f"{role[:40]!r} is no role", hint=f"Use {', '.join(ROLES)}", field="--map")
    if zone is not None:
        zone_named(zone)
    mark, order = checked_options(decimal, dates)
    return replace(
        saved,
        **columns,
        zone=zone or saved.zone,
        decimal=mark or saved.decimal,
        dates=order or saved.dates,
        classes=checked_classes({**saved.classes, **_pairs(assigned)}),
    )


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        left, _, right = text.rpartition("=")
        if not left.strip() or not right.strip():
            raise InvalidInput(f"{text[:60]!r} is not LABEL=CLASS", hint="Write 'p5 Spot=spot'")
        pairs[left.strip()] = right.strip()
    return pairs


def _body(file: Path) -> bytes:
    try:
        if not file.is_file():  # a pipe or a device may never end
            raise InvalidInput(f"{file} is not a file", hint="Give the CSV the provider sent", field="FILE")
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES + 1)
    except OSError as exc:
        raise InvalidInput(f"{file} cannot be read: {exc.strerror}", field="FILE") from exc
