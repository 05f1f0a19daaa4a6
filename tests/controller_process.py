"""A controller that only leads, reconciles and rolls out, run as a child process by tests.

Arguments: DSN, owner, lease TTL in seconds, admin token, and "quotas" to lend quotas too, with leases of
6 s and shares lent away for 13 s. It ticks every 0.1 s and logs JSON lines to stderr. Verdicts are
"healthy", so that rollouts pass.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from control import lease, reconcile, rollout
from control.database import make_engine
from control.deps import Deps, Finding, Leadership, Verdict
from control.gateways import new_session
from control.quota_leases import QuotaLeases
from fleet import logs
from fleet.clock import SystemClock
from fleet.errors import FleetError

log = logging.getLogger("controller")
TICK_S = 0.1


async def run(dsn: str, owner: str, ttl_s: float, token: str, *, lends: bool) -> None:
    async with new_session() as http:
        deps = Deps(
            engine=make_engine(dsn),
            clock=SystemClock(),
            leadership=Leadership(owner),
            http=lambda: http,
            admin_token=token,
            verdict=lambda _session, _bake: Finding(Verdict.HEALTHY, "the test says so"),
            lease_ttl_s=ttl_s,
            lease_margin_s=ttl_s / 8,
            call_deadline_s=1.0 if lends else 30.0,
        )
        steps = [lease.tick, reconcile.tick, rollout.tick]
        if lends:
            quotas = QuotaLeases(deps, lease_s=6.0, hold_s=13.0)
            steps.append(lambda deps: quotas.tick())
        last = ""
        while True:
            try:
                said = [await step(deps) for step in steps]
            except FleetError as exc:
                said = [exc.message]
            if (line := " | ".join(said)) != last:
                log.info("ticked", extra={"said": line})
                last = line
            await asyncio.sleep(TICK_S)


if __name__ == "__main__":
    logs.configure("controller")
    asyncio.run(
        run(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4], lends="quotas" in sys.argv[5:])
    )
