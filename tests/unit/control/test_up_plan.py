"""The plan of one machine agrees with what the settings and their documentation say."""

from __future__ import annotations

from pathlib import Path

from control import up
from control.settings import Settings


def test_the_usual_ports_are_the_documented_ones() -> None:
    fields = Settings.model_fields
    assert fields["dashboard_port"].default == up.DASHBOARD_PORT
    assert fields["api_port"].default == up.API_PORT
    assert fields["control_port"].default == up.CONTROL_PORT


def test_parts_listen_on_this_machine_and_secrets_travel_by_file_name() -> None:
    ports = up.Ports(dashboard=18_501, api=18_700, control=18_710, gateways=(18_400,))
    folders = up.Folders(Path("/state"))
    env = up.environment("postgresql:///db", folders, ports, None)
    assert env["RHODECK_DASHBOARD_PORT"] == "18501"
    assert {env[f"RHODECK_{part}_HOST"] for part in ("API", "CONTROL", "DASHBOARD")} == {up.HOST}
    assert env["RHODECK_ADMIN_TOKEN_FILE"] == "/state/secrets/admin_token"
    assert "RHODECK_ADMIN_TOKEN" not in env
    (gateway,) = up.gateway_parts(folders, ports)
    assert str(folders.admin_token) in gateway.arguments
    assert not gateway.env  # it shares nothing with the database
