"""Who acts, and what each role may do. One matrix for pages, API and command line.

Owns: roles, permissions and the actor that every command takes. What the matrix does not grant is
denied. Prevents: a button that is hidden for a viewer while the command behind it is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from fleet.errors import Forbidden


class Role(StrEnum):
    """What a person or script was given. Also the values of `account.role`."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    FINANCE = "finance"
    ADMIN = "admin"


class Permission(StrEnum):
    """What a command or page asks for, in words that fit "your role may not ..."."""

    VIEW = "look at the fleet"
    PUBLISH_POLICY = "publish policy"
    STEER_ROLLOUT = "steer a rollout"
    MANAGE_FLEET = "change nodes and gateways"
    MANAGE_TENANT_KEYS = "manage tenants' keys"
    ACKNOWLEDGE_ALERTS = "acknowledge alerts"
    MANAGE_ALERTS = "change alert rules and webhooks"
    EXPORT_SPEND = "export spend"
    SET_PRICES = "set prices"
    RUN_ESTIMATES = "run simulations and keep traffic for estimates"
    CLOSE_MONTHS = "close months"
    MANAGE_ACCOUNTS = "manage accounts and API tokens"
    NAME_CREDENTIAL_FILES = "name files with credentials on the controller's machine"


_OPERATES = frozenset(
    {
        Permission.VIEW,
        Permission.PUBLISH_POLICY,
        Permission.STEER_ROLLOUT,
        Permission.MANAGE_FLEET,
        Permission.MANAGE_TENANT_KEYS,
        Permission.ACKNOWLEDGE_ALERTS,
        Permission.MANAGE_ALERTS,
        Permission.RUN_ESTIMATES,
    }
)
GRANTS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: frozenset({Permission.VIEW}),
    Role.OPERATOR: _OPERATES,
    Role.FINANCE: frozenset(
        {
            Permission.VIEW,
            Permission.EXPORT_SPEND,
            Permission.SET_PRICES,
            Permission.CLOSE_MONTHS,
            Permission.RUN_ESTIMATES,
        }
    ),
    Role.ADMIN: frozenset(Permission),
}


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks, in which role, through which door. Recorded with every change."""

    name: str
    role: Role
    via: Literal["page", "cli", "api", "controller"]


def may(actor: Actor, permission: Permission) -> bool:
    """Say whether `actor` holds `permission`. A role without a row in the matrix holds nothing."""
    return permission in GRANTS.get(actor.role, frozenset())


def require(actor: Actor, permission: Permission) -> None:
    """Raise Forbidden unless `actor` holds `permission`."""
    if may(actor, permission):
        return
    able = ", ".join(role for role in Role if permission in GRANTS[role])
    raise Forbidden(
        f"{actor.name} has the role {actor.role}, which may not {permission}",
        hint=f"Ask someone with one of these roles: {able}",
    )
