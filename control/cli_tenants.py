"""`rhodeck tenants`: a tenant's quota in one line, and API keys.

`set` publishes a revision that changes this tenant alone. A new key is printed once, on stdout and alone,
so that it can go straight into a secret store. Prevents: a key in a log between two sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from control import commands_policy, queries_policy, tenant_keys
from control.cli_session import me, transaction
from fleet.clock import SystemClock
from fleet.outcomes import TIERS, Tier
from fleet.policy import default_policy

#: Of a tenant that begins at a quota of 0, for the day on which it is raised.
_SIZES_AT_0 = {"burst_tokens": 25_000, "max_in_flight_tokens": 100_000}


@click.group()
def tenants() -> None:
    """Create and revoke tenants' API keys."""


@tenants.command("set")
@click.argument("name")
@click.option(
    "--tier", type=click.Choice(TIERS), default=Tier.INTERACTIVE, show_default=True, help="Its tier."
)
@click.option(
    "--weight", type=click.IntRange(1), default=1, show_default=True, help="Against others of the tier."
)
@click.option(
    "--tokens-per-minute", type=click.IntRange(0), required=True, help="Sustained; 0 refuses all."
)
@click.option(
    "--burst-tokens",
    type=click.IntRange(0),
    help="Default: a quarter of a minute's tokens; at 0 as it was.",
)
@click.option(
    "--max-in-flight-tokens", type=click.IntRange(0), help="Default: a minute's tokens; at 0 as it was."
)
@click.option(
    "--max-concurrent-requests",
    type=click.IntRange(0),
    default=200,
    show_default=True,
    help="Running and queued.",
)
@click.option("--staged", is_flag=True, help="Bake it at one gateway first; needs traffic to judge by.")
@click.option("--note", default="", help="Why, for whoever reads it later.")
def set_tenant(
    name: str,
    tier: str,
    weight: int,
    tokens_per_minute: int,
    burst_tokens: int | None,
    max_in_flight_tokens: int | None,
    max_concurrent_requests: int,
    staged: bool,
    note: str,
) -> None:
    """Add tenant NAME to the policy or change its quota, and publish that as a revision."""
    quota: dict[str, Any] = {
        "tier": tier,
        "allowed_tiers": [tier],
        "weight": weight,
        "tokens_per_minute": tokens_per_minute,
        "max_concurrent_requests": max_concurrent_requests,
    }
    with transaction() as session:
        head = queries_policy.head(session)
        document = default_policy().as_document() if head is None else dict(head.document)
        before = document["tenants"].get(name, {})
        quota |= _sizes(tokens_per_minute, before, burst_tokens, max_in_flight_tokens)
        document["tenants"] = {**document["tenants"], name: {**before, **quota}}
        published = commands_policy.publish(
            session,
            document=document,
            parent=0 if head is None else head.number,
            author=me(),
            note=note or f"Set tenant {name} to {tokens_per_minute} tokens/min",
            now=SystemClock().now(),
            strategy="staged" if staged else "all_at_once",
        )
    click.echo(f"revision {published.number}; follow it with `rhodeck policy rollout`")


def _sizes(
    tokens_per_minute: int, before: Mapping[str, Any], burst: int | None, in_flight: int | None
) -> dict[str, int]:
    """Return what may be used and held at once. A quota of 0 leaves them as they were."""
    if tokens_per_minute:
        usual = {"burst_tokens": tokens_per_minute // 4, "max_in_flight_tokens": tokens_per_minute}
    else:
        usual = {field: int(before.get(field, amount)) for field, amount in _SIZES_AT_0.items()}
    given = {"burst_tokens": burst, "max_in_flight_tokens": in_flight}
    return {field: usual[field] if amount is None else amount for field, amount in given.items()}


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
        warning = tenant_keys.standing_words(session, tenant)
    if warning is not None:
        click.echo(f"warning: {warning}", err=True)
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
