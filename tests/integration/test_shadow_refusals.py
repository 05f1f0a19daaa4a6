"""What limits in shadow let through: from a gateway's metrics page to what status says of the last hour."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert

from control.cli_status import as_text
from control.database import session_scope
from control.gateway_scrape import gateway_window, read_gateway_page
from control.partitions import make_partitions
from control.queries_gateway_traffic import shadow_refusals
from control.status_report import status_report
from control.tables import GatewayObservedRow, GatewayRow, GatewaySampleRow
from fleet.messages import OverQuota, QueueState
from fleet.outcomes import TIERS
from tests.gateway_status import gateway_status
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
HEAD = (
    "# TYPE rhodeck_gateway_offered_total counter\n"
    'rhodeck_gateway_offered_total{tenant="acme",tier="batch"} 9\n'
)
SHADOW = "# TYPE rhodeck_gateway_would_refuse_total counter\n"


def page(*counts: tuple[str, int], declares: bool = True) -> bytes:
    lines = [
        f'rhodeck_gateway_would_refuse_total{{tenant="acme",tier="batch",limiter="{limiter}"}} {count}\n'
        for limiter, count in counts
    ]
    return (HEAD + (SHADOW if declares else "") + "".join(lines)).encode()


def window(before: bytes, after: bytes) -> dict[str, int] | None:
    first, second = read_gateway_page(before), read_gateway_page(after)
    assert first is not None
    assert second is not None
    (flow,) = gateway_window(first, second, 10.0)
    return flow.would_refuse


def test_increments_by_limit_are_read_and_a_gateway_that_does_not_say_is_unknown() -> None:
    before = page(("queue_length", 5))
    assert window(before, page(("queue_length", 7), ("node_room", 3))) == {
        "queue_length": 2,
        "node_room": 3,
    }
    assert window(page(), page()) == {}
    assert window(page(declares=False), page(declares=False)) is None
    assert window(page(), page(("made_up", 10**6), ("expected_wait", 1))) == {"expected_wait": 1}


def test_status_says_what_the_last_hour_would_have_refused_and_who_is_over(database: FreshDatabase) -> None:
    rows = [  # an hour and a half ago, twice within the hour, and a gateway that does not say
        (NOON - timedelta(minutes=90), {"queue_length": 1_000}),
        (NOON - timedelta(minutes=50), {"queue_length": 2, "monthly_budget": 1}),
        (NOON - timedelta(seconds=10), {"queue_length": 3}),
        (NOON - timedelta(seconds=5), None),
    ]
    status = gateway_status(
        over={"acme": OverQuota(tokens=1_200, requests=3)},
        queues={tier: QueueState(requests=0, tokens=0, oldest_wait_s=0.0) for tier in TIERS},
        clock_at_s=NOON.timestamp(),
        started_at_s=NOON.timestamp(),
    )
    with session_scope(database.engine) as session:
        make_partitions(session, NOON)
        assert shadow_refusals(session, NOON - timedelta(hours=1), NOON) is None  # not none: not known
        for name in ("gw-1", "gw-2"):
            session.add(GatewayRow(name=name, base_url=f"http://{name}", state="active", created_at=NOON))
            session.flush()
            session.add(
                GatewayObservedRow(
                    gateway=name,
                    condition="converged",
                    message="",
                    tried_at=NOON,
                    seen_at=NOON,
                    status=status.model_dump(mode="json", by_alias=True),
                )
            )
        session.execute(
            insert(GatewaySampleRow),
            [
                {"at": at, "gateway": "gw-1", "tenant": "acme", "tier": "batch", "would_refuse": counts}
                for at, counts in rows
            ],
        )
    with session_scope(database.engine) as session:
        report = status_report(session, NOON)
    assert report.would_refuse == {"queue_length": 5, "monthly_budget": 1}
    assert list(report.would_refuse or ()) == ["queue_length", "monthly_budget"]  # most first
    assert report.over == {"acme": OverQuota(tokens=2_400, requests=6)}
    said = as_text(report)
    assert "acme: over by 2,400 tokens and 6 requests" in said
    assert "queue_length would have refused 5 in the last hour" in said
    document = report.as_dict()
    assert document["over_quota"] == {"acme": {"tokens": 2_400, "requests": 6}}
    assert document["would_have_refused_last_hour"] == {"queue_length": 5, "monthly_budget": 1}
