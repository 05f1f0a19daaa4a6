"""`rhodeck audit`: list the record, and verify that nobody edited it.

Prevents: trust in a record that was never checked; `verify` ends with exit code 1 and names the row.
"""

from __future__ import annotations

import json

import click

from control import queries_policy
from control.audit import tail
from control.audit import verify as verify_chain
from control.cli_session import transaction
from fleet.errors import Conflict


@click.group()
def audit() -> None:
    """List and verify the audit trail."""


@audit.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Rows.")
@click.option("--before", type=click.IntRange(1), help="Only rows below this number.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line, details included.")
def list_rows(limit: int, before: int | None, as_json: bool) -> None:
    """List rows, newest first."""
    with transaction() as session:
        rows = queries_policy.audit_page(session, before=before, limit=limit)
    for row in rows:
        if as_json:
            said = {"id": row.id, "at": row.at.isoformat(), "actor": row.actor, "role": row.role}
            said |= {"via": row.via, "action": row.action, "subject": row.subject, "note": row.note}
            click.echo(json.dumps(said | {"detail": row.detail}, ensure_ascii=False))
        else:
            who = f"{row.actor} ({row.role}, {row.via})"
            note = f": {' '.join(row.note.split())}" if row.note else ""
            click.echo(f"{row.id:>6}  {row.at:%Y-%m-%d %H:%M:%S}  {who}  {row.action}  {row.subject}{note}")


@audit.command()
def verify() -> None:
    """Say whether the record is whole; otherwise name the first row that is not.

    Keep the printed hash outside the database: a record rewritten as a whole no longer contains it.
    """
    with transaction() as session:
        broken = verify_chain(session)
        number, last_hash = tail(session)
    if broken is not None:
        raise Conflict(
            f"the record cannot be trusted from row {broken.id} on: {broken.reason}",
            hint="Compare with a backup; keep the database as it is for whoever investigates",
        )
    click.echo(f"whole: {number} rows, each follows from the one before; the last has hash {last_hash}")
