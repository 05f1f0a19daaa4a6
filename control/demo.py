"""What a demonstration starts with: pool, nodes, tenants, policy, prices, accounts. Safe to run again.

Everything goes through the same commands an operator uses. Keys and passwords are random, kept in files
only the owner can read. Prevents: a demonstration that shows what the product cannot do, and a default
password.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from control import accounts, commands_fleet, commands_policy, prices, queries_policy, tenant_keys
from control.gateway_registry import add_gateway, gateways, remove_gateway
from control.roles import Actor, Role
from control.secret_files import read_json, write_secret
from control.tables import NodeRow, PoolRow, TenantKeyRow
from fleet.engine_profile import EngineProfile, throughput_at_batch
from fleet.months import Month
from fleet.policy import default_policy

SPOT_NODES = 2  # the last ones
ACTOR = Actor("demo", Role.ADMIN, "cli")
TRACE_MEAN_TOKENS = (1155, 211)  # prompt and output, of the replayed trace
PRICE_SOURCE = "default of 2026-11: bottom of the published band, not a quote"
PRICES = {"on_demand": Decimal(28), "reserved": Decimal("18.8"), "spot": Decimal(16)}


@dataclass(frozen=True, slots=True)
class Standing:
    """One demonstration tenant's part in the policy. Tokens a minute, weight, USD a month."""

    tier: str
    weight: int
    tokens_per_minute: int
    monthly_budget_usd: str


#: wonka-labs asks for more than it has, so that refusals can be seen from the start.
TENANTS: Mapping[str, Standing] = {
    "acme-chat": Standing("interactive", 3, 1_500_000, "90000.00"),
    "globex-support": Standing("interactive", 2, 1_200_000, "70000.00"),
    "initech-batch": Standing("batch", 2, 1_000_000, "50000.00"),
    "umbrella-etl": Standing("batch", 1, 800_000, "40000.00"),
    "hooli-research": Standing("best_effort", 1, 600_000, "20000.00"),
    "wonka-labs": Standing("best_effort", 1, 120_000, "5000.00"),
}


def policy_document() -> dict[str, Any]:
    """Return the demonstration's first policy."""
    document = default_policy().as_document()
    document["tenants"] = {
        name: {
            "tier": t.tier,
            "allowed_tiers": [t.tier],
            "weight": t.weight,
            "tokens_per_minute": t.tokens_per_minute,
            "burst_tokens": t.tokens_per_minute // 4,
            "max_in_flight_tokens": 400_000,
            "max_concurrent_requests": 400,
            "monthly_budget_usd": t.monthly_budget_usd,
        }
        for name, t in TENANTS.items()
    }
    return document


def seed_fleet(session: Session, nodes: Mapping[str, str], profile: EngineProfile, now: datetime) -> None:
    """Register the profile's pool and `nodes` (name -> URL); nodes that moved since then are moved."""
    pool = f"{profile.name}-a"
    if session.get(PoolRow, pool) is None:
        commands_fleet.add_pool(
            session,
            ACTOR,
            name=pool,
            models=[profile.model],
            now=now,
            max_num_seqs=profile.max_num_seqs,
            max_num_batched_tokens=profile.max_num_batched_tokens,
            scheduling_policy=profile.scheduling_policy,
            chunked_prefill=True,
            configured_service_rate=round(
                throughput_at_batch(profile, profile.max_num_seqs, *TRACE_MEAN_TOKENS), 2
            ),
            configured_source="the simulated engine's own formula at the replayed trace's mean lengths",
        )
    known = {row.name: row for row in session.scalars(select(NodeRow).where(NodeRow.state != "removed"))}
    stay = {
        n for n, url in nodes.items() if n in known and (known[n].base_url, known[n].pool) == (url, pool)
    }
    for name in known.keys() - stay:  # all before the first is added: two may have changed places
        note = "moved to another port or pool" if name in nodes else "not in this demonstration"
        commands_fleet.remove_node(session, ACTOR, name=name, now=now, note=note)
    spot = set(list(nodes)[-SPOT_NODES:]) if len(nodes) > 2 * SPOT_NODES else set[str]()
    for name in (name for name in nodes if name not in stay):
        price_class = "spot" if name in spot else "on_demand"
        commands_fleet.add_node(
            session, ACTOR, name=name, url=nodes[name], pool=pool, now=now, price_class=price_class
        )


def seed_gateways(
    session: Session, urls: Mapping[str, str], now: datetime, *, actor: Actor = ACTOR
) -> None:
    """Register gateways (name -> URL); those that moved are moved, others are removed."""
    known = {gateway.name: gateway.url for gateway in gateways(session)}
    for name, url in known.items():
        if urls.get(name) != url:
            remove_gateway(session, name=name, actor=actor, now=now)
    for name, url in urls.items():
        if known.get(name) != url:
            add_gateway(session, name=name, url=url, actor=actor, now=now)


def seed_policy(session: Session, now: datetime) -> None:
    """Publish the first policy unless there is one."""
    if queries_policy.head(session) is None:
        commands_policy.publish(
            session,
            document=policy_document(),
            parent=0,
            author=ACTOR,
            note="First policy of the demonstration",
            now=now,
            strategy="all_at_once",
        )


def seed_prices(session: Session, month: Month, now: datetime) -> None:
    """Set a price for each class from the start of the month unless there is one."""
    known = {price.price_class for price in prices.prices(session)}
    for price_class, usd in PRICES.items():
        if price_class not in known:
            prices.add_price(
                session,
                price_class=price_class,
                usd_per_node_hour=usd,
                effective_from=month.start,
                source=PRICE_SOURCE,
                actor=ACTOR,
                now=now,
            )


def seed_tenant_keys(session: Session, path: Path, now: datetime) -> None:
    """Make a key for each tenant and keep them in `path`; keys there that still hold are kept."""
    kept: dict[str, str] = read_json(path) if path.exists() else {}
    valid = set(session.scalars(select(TenantKeyRow.sha256).where(TenantKeyRow.revoked_at.is_(None))))
    keys = {
        tenant: kept[tenant]
        if tenant in kept and tenant_keys.key_hash(kept[tenant]) in valid
        else tenant_keys.create_tenant_key(
            session, tenant=tenant, label="replayed traffic", actor=ACTOR, now=now
        ).secret
        for tenant in TENANTS
    }
    if keys != kept:
        write_secret(path, json.dumps(keys))


def seed_accounts(session: Session, path: Path, now: datetime) -> dict[str, str]:
    """Make one account a role with a random password; return name -> password, kept in `path`."""
    kept: dict[str, str] = read_json(path) if path.exists() else {}
    existing = {account.name for account in accounts.accounts(session)}
    passwords = {role.value: kept.get(role.value) or secrets.token_urlsafe(9) for role in Role}
    write_secret(path, json.dumps(passwords))  # before the commit: a password nobody knows opens nothing
    for name, password in passwords.items():
        if name not in existing:
            accounts.create_account(
                session, name=name, password=password, role=Role(name), actor=ACTOR, now=now
            )
        elif name not in kept:
            accounts.set_password(session, name=name, password=password, actor=ACTOR, now=now)
    return passwords
