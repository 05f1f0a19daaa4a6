"""The controller's own pages over real sockets: who can reach them, and what they say of a still loop."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime

import aiohttp
import pytest

from control.cli_control import serve_own_pages
from control.jobs import Loop, Step
from control.own_metrics import ControlMetrics
from fleet.clock import ManualClock
from fleet.errors import InvalidInput


async def nothing() -> str:
    return "did nothing"


def standing_loop(metrics: ControlMetrics) -> Loop:
    steps = (Step("lease", 5.0, 15.0, nothing),)
    return Loop(ManualClock(datetime(2026, 3, 1, tzinfo=UTC)), steps, metrics, lambda _when: True)


def test_a_loop_that_never_ticked_is_not_well_and_its_metrics_can_still_be_read() -> None:
    async def scenario() -> tuple[int, int, str]:
        metrics = ControlMetrics()
        server = await serve_own_pages(metrics, standing_loop(metrics), "127.0.0.1", 0)
        port = server.addresses[0][1]
        try:
            async with aiohttp.ClientSession() as http:
                async with http.get(f"http://127.0.0.1:{port}/healthz") as health:
                    code = health.status
                async with http.get(f"http://127.0.0.1:{port}/metrics") as page:
                    return code, page.status, await page.text()
        finally:
            await server.cleanup()

    code, page_code, page = asyncio.run(scenario())
    assert (code, page_code) == (503, 200)
    assert "\nrhodeck_control_is_leader 0.0\n" in page


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])  # a taken port; an address of somebody else
def test_an_address_that_cannot_be_listened_on_is_named(host: str) -> None:
    async def scenario(port: int) -> None:
        metrics = ControlMetrics()
        await serve_own_pages(metrics, standing_loop(metrics), host, port)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"port {port} on {host} cannot be listened on"):
            asyncio.run(scenario(port))
