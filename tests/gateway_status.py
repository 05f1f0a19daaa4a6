"""What an idle gateway says of itself, for tests of those who read it."""

from __future__ import annotations

from typing import Any

from fleet.messages import GatewayStatus


def gateway_status(**said: Any) -> GatewayStatus:
    """Return the status of a gateway that runs the first assignment of epoch 1, but for what is `said`."""
    quiet: dict[str, Any] = {
        "gateway": "gw-1",
        "boot_id": "b",
        "version": "1",
        "ready": True,
        "epoch": 1,
        "generation": 1,
        "revision": 1,
        "digest": None,
        "from_disk": False,
        "in_flight_requests": 0,
        "in_flight_tokens": 0,
        "queues": {},
        "nodes_usable": 1,
        "nodes_total": 1,
        "usage_spool": "s",
        "usage_last_seq": 0,
        "clock_at_s": 0.0,
        "started_at_s": 0.0,
    }
    return GatewayStatus(**(quiet | said))
