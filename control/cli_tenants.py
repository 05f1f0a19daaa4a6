"""`rhodeck tenants`: API keys of tenants.

A new key is printed once, on stdout and alone, so that it can go straight into a secret store. Prevents:
a key in a log between two sentences.
"""

from __future__ import annotations

import click

from control import queries_policy, tenant_keys
from control.cli_session import me, transaction
from fleet.clock import SystemClock


@click.group()
def tenants() -> None:
    """Create and revoke tenants' API keys."""


@tenants.group()
def key() -> None:
    """Create, list and revoke keys."""


@key.command()
@click.argument("tenant")
@click.option("--label", default="", help="Where the key is used.")
def create(tenant: str, label: str) -> None:
    """Make a key for TENANT and print it. It is not stored and cannot be shown again."""
    with transaction() as session:
        made = tenant_keys.create_tenant_key(
            session, tenant=tenant, label=label, actor=me(), now=SystemClock().now()
        )
    click.echo(f"key {made.id} of tenant {made.tenant}; keep what follows, it is shown once", err=True)
    click.echo(made.secret)


@key.command("list")
@click.option("--tenant", help="Only keys of this tenant.")
def list_keys(tenant: str | None) -> None:
    """List keys, revoked ones included."""
    with transaction() as session:
        found = queries_policy.tenant_keys(session, tenant=tenant)
    for row in found:
        state = f"revoked {row.revoked_at:%Y-%m-%d %H:%M}" if row.revoked_at else "active"
        click.echo(f"{row.id}  {row.tenant}  {state}  by {row.created_by}  {row.label}".rstrip())
    if not found:
        click.echo("no keys")


@key.command()
@click.argument("key_id")
def revoke(key_id: str) -> None:
    """Revoke the key KEY_ID; gateways refuse it within a few seconds."""
    with transaction() as session:
        changed = tenant_keys.revoke_tenant_key(session, key_id=key_id, actor=me(), now=SystemClock().now())
    click.echo(f"key {key_id} {'revoked' if changed else 'was revoked before'}")
