"""A real Prometheus scrapes our verdicts and answers with them; what is unknown has no series there."""

from __future__ import annotations

import asyncio
from pathlib import Path

from control.cli_control import serve_own_pages
from control.derived_metrics import DerivedMetrics
from control.fetch import open_session
from control.own_metrics import ControlMetrics
from control.promsource import PromClient, SourceSettings
from fleet.clock import SystemClock
from fleet.health_reading import Rho
from tests import in_process
from tests.prom_servers import prometheus, scrape_config, static_job
from tests.unit.control.test_derived_metrics import T0, Assessment, node, pool
from tests.unit.control.test_own_pages import standing_loop

CLOCK = SystemClock()
PATIENCE_S = 120


def test_prometheus_reads_back_what_was_exported(tmp_path: Path):
    # 3 nodes at rho 1.2 need 3 * 1.2 / 0.85 = 4.2, so 5; at the upper end 3 * 1.5 / 0.85 = 5.3, so 6
    chat = pool(Rho(value=1.2, low=1.0, high=1.5), arrival_rate=12.0)
    round_ = Assessment(T0, 300.0, (chat,), tuple(node(name) for name in "abc"))

    async def ask(client: PromClient, query: str) -> list[float]:
        answer = await client.query(query, deadline_s=60.0)
        return [series.samples[-1][1] for series in answer.series]

    async def run() -> dict[str, list[float]]:
        metrics, derived = ControlMetrics(), DerivedMetrics(CLOCK)
        metrics.registry.register(derived)
        derived.take(round_)
        runner = await serve_own_pages(metrics, standing_loop(metrics), "127.0.0.1", 0)
        server = prometheus(
            tmp_path, scrape_config([static_job("rhodeck", [f"127.0.0.1:{runner.addresses[0][1]}"])])
        )
        try:
            running = await asyncio.to_thread(server.__enter__)
            async with open_session() as http, asyncio.timeout(PATIENCE_S):
                client = PromClient(http, CLOCK, SourceSettings("main", running.url))
                while not await ask(client, "rhodeck_assessed_timestamp_seconds"):
                    await asyncio.sleep(0.2)
                return {
                    query: await ask(client, query)
                    for query in (
                        'max(rhodeck_desired_nodes{scope="pool",name="chat"})',
                        'max(rhodeck_desired_high_nodes{scope="pool",name="chat"})',
                        'max(rhodeck_utilization_ratio{scope="pool"})',
                        'rhodeck_arrival_requests_per_second{name="chat"}',
                        "rhodeck_service_requests_per_second",
                        "absent(rhodeck_headroom_requests_per_second)",
                    )
                }
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)
            await in_process.close(runner)

    assert list(asyncio.run(run()).values()) == [[5.0], [6.0], [1.2], [12.0], [], [1.0]]
