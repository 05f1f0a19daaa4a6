"""Starts the parts of one machine in order, seeds the database between them, and says where everything is.

Runs in the main thread's event loop; database work runs in threads. Prevents: a gateway that waits for a
controller that waits for a policy nobody wrote.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from control import demo
from control import up as plan
from control.commands_policy import ensure_first_revision
from control.database import make_engine, session_scope
from control.embedded import EmbeddedPostgres
from control.ports import PortClaims
from control.roles import Actor, Role
from control.secret_files import secret_of, write_secret
from control.supervise import Supervisor
from fleet.clock import Clock, SystemClock
from fleet.engine_profile import EngineProfile
from fleet.months import month_at

_LOOK_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """A fleet that does not exist and the traffic it gets."""

    nodes: int
    profile: EngineProfile
    seed: int
    rate: float  # requests/s, mean over the trace


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asked for."""

    gateways: int
    dashboard_port: int | None
    simulation: Simulation | None = None

    @property
    def is_demo(self) -> bool:
        return self.simulation is not None


@dataclass(slots=True)
class Machine:
    """Everything on one machine, around a database that runs."""

    server: EmbeddedPostgres
    folders: plan.Folders
    asked: Asked
    zone: ZoneInfo
    say: Callable[[str], None]
    clock: Clock = field(default_factory=SystemClock)

    async def run(self) -> None:
        """Start all parts, print the summary, and run until SIGINT or SIGTERM. Then stop all parts."""
        boss = Supervisor(self.clock, self.folders.logs, self.say)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, boss.request_stop)
        tasks = [
            asyncio.create_task(self._start(boss)),
            asyncio.create_task(boss.run()),
            asyncio.create_task(self._guard()),
        ]
        starting, stopping, guard = tasks
        try:
            done, _ = await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping not in done:
                await starting  # raises what went wrong
                await asyncio.wait({stopping, guard}, return_when=asyncio.FIRST_COMPLETED)
                if guard.done():
                    guard.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.say("stopping ...")
            await boss.stop()

    async def _guard(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_AFTER_S)
            if not self.server.is_running():
                self.say("  postgres     ended by itself; starting it again")
                self.server.start()  # in the main thread, whose life the kernel ties it to

    async def _start(self, boss: Supervisor) -> None:
        with PortClaims() as claims:
            await self._start_parts(boss, claims)

    async def _start_parts(self, boss: Supervisor, claims: PortClaims) -> None:
        ports = plan.choose_ports(claims, self.asked.gateways, self.asked.dashboard_port)
        secret_of(self.folders.admin_token)
        simulation, passwords = self.asked.simulation, dict[str, str]()
        if simulation is not None:
            self.folders.node_addresses.unlink(missing_ok=True)
            name = simulation.profile.name
            await boss.start(plan.fleet_part(claims, self.folders, simulation.nodes, name, simulation.seed))
        await asyncio.to_thread(self._seed, ports, passwords)
        env = plan.environment(self.server.dsn, self.folders, ports, "local" if simulation else None)
        for part in (*plan.gateway_parts(self.folders, ports), *plan.control_parts(env, ports)):
            await boss.start(part)
        if simulation is not None:
            model, rate = simulation.profile.model, simulation.rate
            await boss.start(plan.traffic_part(self.folders, ports, model, rate, simulation.seed))
        self._summarise(ports, passwords)

    def _seed(self, ports: plan.Ports, passwords: dict[str, str]) -> None:
        now, simulation = self.clock.now(), self.asked.simulation
        engine = make_engine(self.server.dsn, pool_size=1)
        try:
            with session_scope(engine) as session:
                if simulation is not None:
                    demo.seed_gateways(session, ports.gateway_urls(), now)
                    passwords.update(self._seed_demo(session, simulation.profile))
                else:
                    up = Actor("up", Role.ADMIN, "cli")
                    demo.seed_gateways(session, ports.gateway_urls(), now, actor=up)
                    ensure_first_revision(session, author=up, now=now)
        finally:
            engine.dispose()

    def _seed_demo(self, session: Session, profile: EngineProfile) -> dict[str, str]:
        now = self.clock.now()
        listed = json.loads(self.folders.node_addresses.read_text())
        demo.seed_fleet(session, {str(row["name"]): str(row["base_url"]) for row in listed}, profile, now)
        demo.seed_policy(session, now)
        demo.seed_prices(session, month_at(now, self.zone), now)
        demo.seed_tenant_keys(session, self.folders.traffic_keys, now)
        return demo.seed_accounts(session, self.folders.passwords, now)

    def _summarise(self, ports: plan.Ports, passwords: dict[str, str]) -> None:
        lines = [
            "",
            f"Dashboard   {ports.dashboard_url}",
            f"API         {ports.api_url}   (GET /openapi.json)",
            *(f"Gateway     {url}   ({name})" for name, url in ports.gateway_urls().items()),
            f"Database    export DATABASE_URL='{self.server.dsn}'",
            f"Logs        {self.folders.logs}",
        ]
        if passwords:
            width = max(map(len, passwords))
            lines += ["", "Sign in as"]
            lines += [f"  {name:<{width}}   {password}" for name, password in passwords.items()]
        lines += ["", "Ctrl-C stops everything; the data stay in " + str(self.folders.state)]
        self.say("\n".join(lines))
        if passwords:
            document = {
                "dashboard": ports.dashboard_url,
                "api": ports.api_url,
                "gateways": ports.gateway_urls(),
                "database_url": self.server.dsn,
                "accounts": passwords,
            }
            write_secret(self.folders.summary, json.dumps(document, indent=1) + "\n")
