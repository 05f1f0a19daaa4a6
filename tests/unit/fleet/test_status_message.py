"""A gateway's status, whatever it says, is refused with its place or can be stored and shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from fleet.messages import GatewayStatus

STATUS: dict[str, Any] = {
    "gateway": "gw-1",
    "boot_id": "b1",
    "version": "0.1.0",
    "ready": True,
    "epoch": 3,
    "generation": 7,
    "revision": 5,
    "digest": "d" * 64,
    "from_disk": False,
    "in_flight_requests": 0,
    "in_flight_tokens": 0,
    "queues": {"batch": {"requests": 1, "tokens": 10, "oldest_wait_s": 0.5}},
    "nodes_usable": 1,
    "nodes_total": 1,
    "usage_spool": "s1",
    "usage_last_seq": 0,
    "clock_at_s": 1.8e9,
    "started_at_s": 1.8e9,
}


def read(**changes: object) -> GatewayStatus:
    return GatewayStatus.model_validate_json(json.dumps(STATUS | changes))


@pytest.mark.parametrize(
    "nonsense",
    [
        {"boot_id": "b\x00"},
        {"boot_id": ""},
        {"digest": "d\x00"},
        {"revision": 2**63},
        {"usage_spool": "s\n1"},
        {"clock_at_s": 1e18},
        {"started_at_s": float("nan")},
        {"queues": {"batch": {"requests": 1, "tokens": 10, "oldest_wait_s": float("inf")}}},
    ],
    ids=lambda nonsense: next(iter(nonsense)),
)
def test_what_no_row_or_date_can_hold_is_refused_with_its_place(nonsense: dict[str, object]) -> None:
    assert read().boot_id == "b1"
    with pytest.raises(ValidationError) as caught:
        read(**nonsense)
    assert caught.value.errors()[0]["loc"][0] == next(iter(nonsense))


def test_odd_words_of_a_refusal_do_not_make_a_gateway_unreachable() -> None:
    said = {"revision": 5, "generation": 7, "at_s": 1.8e9, "message": "bad\x00\nweight" + "x" * 5_000}
    rejection = read(last_rejection=said | {"pointer": "/tiers\x1b[0m"}).last_rejection
    assert rejection is not None
    assert rejection.message.startswith("bad  weightx")
    assert len(rejection.message) == 1_000
    assert rejection.pointer == "/tiers [0m"
