"""`rhodeck users` and `rhodeck tokens`: who may sign in, and what scripts may do.

Passwords are asked for on the terminal or read from standard input, never taken as an argument. Prevents:
a password in the shell's history or the process list.
"""

from __future__ import annotations

import sys

import click

from control import accounts
from control import tokens as api
from control.cli_session import me, transaction
from control.roles import Role
from fleet.clock import SystemClock
from fleet.errors import InvalidInput

ROLES = click.Choice([role.value for role in Role])


def _password() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    given = sys.stdin.readline().rstrip("\r\n")
    if not given:
        raise InvalidInput(
            "no password on standard input", hint="Type it on a terminal, or send a file in with `< FILE`"
        )
    return given


@click.group()
def users() -> None:
    """Create accounts, set passwords and roles."""


@users.command()
@click.argument("name")
@click.option("--role", type=ROLES, required=True, help="What the person may do.")
def add(name: str, role: str) -> None:
    """Create account NAME. The password is asked for, or read from standard input."""
    password = _password()
    with transaction() as session:
        accounts.create_account(
            session, name=name, password=password, role=Role(role), actor=me(), now=SystemClock().now()
        )
    click.echo(f"account {name} may sign in as {role}")


@users.command()
@click.argument("name")
def password(name: str) -> None:
    """Set a new password for NAME and end its sign-ins."""
    new = _password()
    with transaction() as session:
        accounts.set_password(session, name=name, password=new, actor=me(), now=SystemClock().now())
    click.echo(f"password of {name} changed; its sign-ins have ended")


@users.command("role")
@click.argument("name")
@click.argument("role", type=ROLES)
def set_role(name: str, role: str) -> None:
    """Give NAME another role; it holds from the next click on."""
    with transaction() as session:
        accounts.set_role(session, name=name, role=Role(role), actor=me(), now=SystemClock().now())
    click.echo(f"{name} is {role} now")


@users.command()
@click.argument("name")
def disable(name: str) -> None:
    """Bar NAME from signing in and end its sign-ins."""
    with transaction() as session:
        accounts.disable_account(session, name=name, actor=me(), now=SystemClock().now())
    click.echo(f"{name} is disabled")


@users.command("list")
def list_users() -> None:
    """List accounts."""
    with transaction() as session:
        found = accounts.accounts(session)
    for row in found:
        click.echo(f"{row.name}  {row.role}{'  disabled' if row.disabled else ''}")
    if not found:
        click.echo("no accounts; add one with `rhodeck users add NAME --role admin`")


@click.group()
def tokens() -> None:
    """Create and revoke scoped API tokens."""


@tokens.command()
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, help=", ".join(api.Scope))
@click.option("--days", type=int, default=90, show_default=True, help="Days until it expires.")
def create(name: str, scopes: tuple[str, ...], days: int) -> None:
    """Make a token called NAME and print it. It is not stored and cannot be shown again."""
    with transaction() as session:
        made = api.create_api_token(
            session, name=name, scopes=scopes, days=days, actor=me(), now=SystemClock().now()
        )
    click.echo(f"token {made.id}, good until {made.expires_at:%Y-%m-%d}; shown once:", err=True)
    click.echo(made.secret)


@tokens.command()
@click.argument("token_id")
def revoke(token_id: str) -> None:
    """Revoke the token TOKEN_ID at once."""
    with transaction() as session:
        changed = api.revoke_api_token(session, token_id=token_id, actor=me(), now=SystemClock().now())
    click.echo(f"token {token_id} {'revoked' if changed else 'was revoked before'}")


@tokens.command("list")
def list_tokens() -> None:
    """List tokens, without their secrets."""
    with transaction() as session:
        found = api.api_tokens(session)
    for row in found:
        state = (
            "revoked"
            if row.revoked_at
            else f"until {row.expires_at:%Y-%m-%d}"
            if row.expires_at
            else "active"
        )
        click.echo(f"{row.id}  {', '.join(row.scopes)}  {state}  {row.name}")
    if not found:
        click.echo("no tokens")
