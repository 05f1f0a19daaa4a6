"""`rhodeck db`: start, migrate, check, back up and restore the database.

Results go to stdout, progress to stderr. Prevents: a script that has to guess an address from a log.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType

import click

from control.backup import backup as write_backup
from control.backup import restore as restore_backup
from control.database import check_declarations, make_engine, redacted, require_head
from control.database import upgrade as upgrade_schema
from control.database_url import resolve_dsn
from control.embedded import EmbeddedPostgres
from control.settings import load_settings
from fleet.errors import Conflict

_LOOK_AFTER_S = 1.0


@click.group()
def db() -> None:
    """Start, migrate, back up and restore the database."""


@db.command()
@click.option("--pg-user", help="Account the server runs under when started by root.")
@click.option(
    "--tcp-port",
    type=click.IntRange(0, 65535),
    help="Also listen on 127.0.0.1, with a password; 0: any port.",
)
def up(pg_user: str | None, tcp_port: int | None) -> None:
    """Run the embedded database in the foreground, migrated, until Ctrl-C or SIGTERM."""
    settings = load_settings()
    if settings.database_url is not None:
        raise Conflict(
            "DATABASE_URL names another database than the embedded one",
            hint="Unset DATABASE_URL to run the embedded one",
            field="DATABASE_URL",
        )
    stopping = _set_by_signals()
    server = EmbeddedPostgres(
        settings.state_dir, progress=_show, pg_user=pg_user or settings.pg_user, tcp_port=tcp_port
    )
    with server:
        revision = upgrade_schema(server.dsn)
        _show(f"schema at revision {revision}; single machine, not highly available; Ctrl-C stops it")
        if tcp_port is not None:
            _show(f"also at {redacted(server.tcp_dsn)}, password in {server.folder / 'password'}")
        click.echo(server.dsn)
        while not stopping.wait(_LOOK_AFTER_S):
            if not server.is_running():
                _show("the server ended by itself; starting it again")
                server.start()
    _show("stopped")


@db.command()
@click.option("--show-password", is_flag=True, help="Print the password instead of ***.")
def url(show_password: bool) -> None:
    """Print the address of the database in use."""
    dsn = resolve_dsn(load_settings())
    click.echo(dsn if show_password else redacted(dsn))


@db.command()
def upgrade() -> None:
    """Bring the schema to the one of this release."""
    click.echo(f"schema at revision {upgrade_schema(resolve_dsn(load_settings()))}")


@db.command()
def check() -> None:
    """Say whether the schema is exactly the one this release declares."""
    dsn = resolve_dsn(load_settings())
    engine = make_engine(dsn, pool_size=1)
    try:
        require_head(engine)
    finally:
        engine.dispose()
    check_declarations(dsn)
    click.echo("the schema is the one this release declares")


@db.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def backup(file: Path, force: bool) -> None:
    """Write the whole database into FILE."""
    size_bytes = write_backup(resolve_dsn(load_settings()), file, overwrite=force)
    click.echo(f"wrote {file}, {size_bytes:,} bytes")


@db.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def restore(file: Path) -> None:
    """Restore FILE into an empty database."""
    restore_backup(resolve_dsn(load_settings()), file)
    click.echo(f"restored {file}")


def _set_by_signals() -> threading.Event:
    """Return an event that Ctrl-C and SIGTERM set."""
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return stopping


def _show(line: str) -> None:
    click.echo(line, err=True)
