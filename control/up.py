"""Everything on one machine over the embedded Postgres: which parts, in which order, with which settings.

Owns the plan; `supervise` owns the processes. Ports are the usual ones, or free ones where those are
taken. Prevents: parts that disagree about the database, the token or a port because each was set by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from control.ports import PortClaims
from control.supervise import Part
from fleet.errors import Conflict

HOST = "127.0.0.1"
DASHBOARD_PORT = 8501
API_PORT = 8700
CONTROL_PORT = 8710
GATEWAY_PORT = 8400
NODE_PORT = 9100
DEMO_RATE = 30.0  # requests/s over the trace; about 0.6 of what 12 nodes can do


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the parts listen."""

    dashboard: int
    api: int
    control: int
    gateways: tuple[int, ...]

    @property
    def dashboard_url(self) -> str:
        return f"http://{HOST}:{self.dashboard}"

    @property
    def api_url(self) -> str:
        return f"http://{HOST}:{self.api}"

    def gateway_urls(self) -> dict[str, str]:
        """Return gateway name -> URL."""
        return {f"gw-{n}": f"http://{HOST}:{port}" for n, port in enumerate(self.gateways, 1)}


@dataclass(frozen=True, slots=True)
class Folders:
    """What lies where in the state folder, besides the database."""

    state: Path

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def admin_token(self) -> Path:
        return self.state / "secrets" / "admin_token"

    @property
    def traffic_keys(self) -> Path:
        return self.state / "secrets" / "traffic_keys.json"

    @property
    def passwords(self) -> Path:
        return self.state / "secrets" / "passwords.json"

    @property
    def node_addresses(self) -> Path:
        return self.state / "nodes.json"

    @property
    def summary(self) -> Path:
        return self.state / "secrets" / "demo.json"

    def gateway(self, name: str) -> Path:
        """Return the state folder of one gateway."""
        return self.state / "gateways" / name


def choose_ports(claims: PortClaims, gateways: int, dashboard: int | None) -> Ports:
    """Return free ports, the usual ones where possible.

    An asked-for dashboard port is not replaced: raises Conflict where it is taken.
    """
    chosen = claims.take(dashboard or DASHBOARD_PORT)
    if dashboard is not None and chosen != dashboard:
        hint = "Give another --dashboard-port, or none"
        raise Conflict(f"port {dashboard} of {HOST} is taken", hint=hint, field="--dashboard-port")
    return Ports(
        dashboard=chosen,
        api=claims.take(API_PORT),
        control=claims.take(CONTROL_PORT),
        gateways=tuple(claims.take(GATEWAY_PORT + n) for n in range(gateways)),
    )


def environment(dsn: str, folders: Folders, ports: Ports, sign_in: str | None) -> Mapping[str, str]:
    """Return the settings every part of the control plane shares."""
    env = {
        "DATABASE_URL": dsn,
        "RHODECK_STATE_DIR": str(folders.state),
        "RHODECK_ADMIN_TOKEN_FILE": str(folders.admin_token),
        "RHODECK_API_HOST": HOST,
        "RHODECK_API_PORT": str(ports.api),
        "RHODECK_CONTROL_HOST": HOST,
        "RHODECK_CONTROL_PORT": str(ports.control),
        "RHODECK_DASHBOARD_HOST": HOST,
        "RHODECK_DASHBOARD_PORT": str(ports.dashboard),
        "RHODECK_PUBLIC_URL": ports.dashboard_url,
        "OPENBLAS_NUM_THREADS": "1",  # small fits: more threads only make them slower
    }
    return env if sign_in is None else env | {"RHODECK_SIGN_IN": sign_in}


def gateway_parts(folders: Folders, ports: Ports) -> list[Part]:
    """Return the gateways. They share nothing with the database."""
    return [
        Part(
            name,
            (
                "-m",
                "admission",
                "--name",
                name,
                "--port",
                url.rsplit(":", 1)[1],
                "--state-dir",
                str(folders.gateway(name)),
                "--admin-token-file",
                str(folders.admin_token),
            ),
            ready_url=f"{url}/healthz",
        )
        for name, url in ports.gateway_urls().items()
    ]


def control_parts(env: Mapping[str, str], ports: Ports) -> list[Part]:
    """Return controller, API and dashboard."""
    return [
        Part("control", ("-m", "control", "control"), env, f"http://{HOST}:{ports.control}/healthz"),
        Part("api", ("-m", "control", "api"), env, f"{ports.api_url}/healthz"),
        Part("dashboard", ("-m", "dashboard"), env, f"{ports.dashboard_url}/healthz"),
    ]


def fleet_part(claims: PortClaims, folders: Folders, nodes: int, profile: str, seed: int) -> Part:
    """Return the simulated nodes; they write their addresses when they listen."""
    base = claims.take_row(NODE_PORT, nodes)
    arguments = ("--nodes", nodes, "--profile", profile, "--seed", seed, "--base-port", base)
    return Part(
        "simfleet",
        ("-m", "simfleet", "nodes", *map(str, arguments), "--ports-file", str(folders.node_addresses)),
        ready_file=folders.node_addresses,
    )


def traffic_part(folders: Folders, ports: Ports, model: str, rate: float, seed: int) -> Part:
    """Return the clients that replay public traffic against the gateways."""
    targets = [word for url in ports.gateway_urls().values() for word in ("--gateway", url)]
    arguments = ("--keys-file", folders.traffic_keys, "--model", model, "--rate", rate, "--seed", seed)
    return Part("traffic", ("-m", "simfleet", "traffic", *targets, *map(str, arguments)))
