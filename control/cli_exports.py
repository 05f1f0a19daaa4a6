"""`rhodeck exports`: where months' files are dropped by themselves, and what became of each.

Prevents: a key to a bucket on a command line, where every process of the machine can read it.
"""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import click

from control import export_destinations as book
from control.cli_session import me, transaction
from control.settings import load_settings
from fleet.clock import SystemClock
from fleet.months import month_at

_FILES = click.option(
    "--file",
    "files",
    multiple=True,
    default=("csv", "focus.csv"),
    show_default=True,
    help=f"A kind of file; may be given several times: {', '.join(book.FILE_KINDS)}.",
)
_FROM = click.option("--from", "from_month", help="First month, as 2026-11; default: this month.")
_DAILY = click.option("--daily", is_flag=True, help="The running month too, once a day.")


@click.group()
def exports() -> None:
    """Drop months' files into folders and buckets when a month closes."""


@exports.command("list")
def list_exports() -> None:
    """List destinations, and files that are pending or were dropped last."""
    with transaction() as session:
        for row in book.destinations(session):
            bucket = "" if row.bucket is None else f"/{row.bucket}/{row.prefix}"
            often = ", daily" if row.is_daily else ""
            click.echo(
                f"{row.name}: {row.place}{bucket} from {row.from_month}{often}: {', '.join(row.files)}"
            )
        for each in book.deliveries(session):
            click.echo(f"  {_line(each)}")


def _line(each: book.Delivery) -> str:
    if each.state == "delivered" and each.delivered_at is not None:
        return f"{each.destination}  {each.file_name}  dropped {each.delivered_at:%Y-%m-%d %H:%M} UTC"
    tries = f"{each.attempts} tries" + (
        f", next {each.next_at:%H:%M} UTC" if each.state == "pending" else ""
    )
    return f"{each.destination}  {each.what}  {each.state.replace('_', ' ')}, {tries}" + (
        f": {each.error}" if each.error else ""
    )


@exports.command()
@click.argument("name")
@click.argument("path")
@_FILES
@_FROM
@_DAILY
def folder(name: str, path: str, files: tuple[str, ...], from_month: str | None, daily: bool) -> None:
    """Drop files into the folder PATH of the controller's machine."""
    now = SystemClock().now()
    with transaction() as session:
        book.add_folder(
            session,
            me(),
            name=name,
            path=path,
            files=files,
            from_month=from_month or _this_month(now),
            is_daily=daily,
            now=now,
        )
    click.echo(f"{name}: {path}")


@exports.command()
@click.argument("name")
@click.argument("endpoint")
@click.argument("bucket")
@click.option("--access-key", required=True, help="The public part of the key.")
@click.option("--secret", required=True, help="Where its secret is: file:/path or env:RHODECK_NAME.")
@click.option("--region", default="us-east-1", show_default=True, help="Of the bucket.")
@click.option("--prefix", default="", help="Before every name, as finance/.")
@_FILES
@_FROM
@_DAILY
def s3(
    name: str,
    endpoint: str,
    bucket: str,
    access_key: str,
    secret: str,
    region: str,
    prefix: str,
    files: tuple[str, ...],
    from_month: str | None,
    daily: bool,
) -> None:
    """Put files into BUCKET of the S3-compatible service at ENDPOINT (https://host)."""
    now = SystemClock().now()
    with transaction() as session:
        book.add_bucket(
            session,
            me(),
            name=name,
            endpoint=endpoint,
            bucket=bucket,
            access_key=access_key,
            secret=secret,
            region=region,
            prefix=prefix,
            files=files,
            from_month=from_month or _this_month(now),
            is_daily=daily,
            now=now,
        )
    click.echo(f"{name}: {endpoint}/{bucket}/{prefix}")


@exports.command()
@click.argument("name")
def remove(name: str) -> None:
    """Drop nothing more there. What was dropped stays."""
    with transaction() as session:
        book.remove(session, me(), name=name, now=SystemClock().now())
    click.echo(f"{name}: removed")


def _this_month(now: datetime) -> str:
    return month_at(now, ZoneInfo(load_settings().finance_timezone)).name
