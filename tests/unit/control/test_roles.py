"""Who may do what: denied unless granted."""

from __future__ import annotations

import pytest

from control.roles import GRANTS, Actor, Permission, Role, may, require
from fleet.errors import Forbidden

CHANGES = [
    Permission.PUBLISH_POLICY,
    Permission.STEER_ROLLOUT,
    Permission.MANAGE_FLEET,
    Permission.MANAGE_TENANT_KEYS,
    Permission.ACKNOWLEDGE_ALERTS,
    Permission.MANAGE_ALERTS,
]


@pytest.mark.parametrize("permission", list(Permission))
@pytest.mark.parametrize("role", list(Role))
def test_everybody_may_look_and_only_admin_may_all(role: Role, permission: Permission) -> None:
    actor = Actor("ada", role, "page")
    operates = role in (Role.OPERATOR, Role.ADMIN) and permission in CHANGES
    counts = role in (Role.FINANCE, Role.ADMIN) and permission in (
        Permission.EXPORT_SPEND,
        Permission.SET_PRICES,
        Permission.CLOSE_MONTHS,
    )
    simulates = permission is Permission.RUN_ESTIMATES and role is not Role.VIEWER
    expected = permission is Permission.VIEW or operates or counts or simulates or role is Role.ADMIN
    assert may(actor, permission) is expected


def test_a_role_without_a_row_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(GRANTS, Role.VIEWER)
    assert not may(Actor("eve", Role.VIEWER, "api"), Permission.VIEW)


def test_a_refusal_names_who_what_and_whom_to_ask() -> None:
    with pytest.raises(Forbidden) as caught:
        require(Actor("eve", Role.FINANCE, "api"), Permission.PUBLISH_POLICY)
    assert caught.value.message == "eve has the role finance, which may not publish policy"
    assert caught.value.hint == "Ask someone with one of these roles: operator, admin"
