"""The recorded hour, read back as requests and replayed through a policy that is not yet published."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from control.cli import main
from control.recorded_traffic import recorded_traffic, replay_nodes
from control.tables import GatewaySampleRow, UsageRecordRow
from fleet.clock import SystemClock
from fleet.errors import InvalidInput
from fleet.gate_replay import replay
from fleet.outcomes import SHED
from fleet.policy import parse
from fleet.replay_outcomes import by_tenant_and_tier
from tests.pages.fleet_rows import fill, policy_document
from tests.postgres_server import FreshDatabase
from tests.usage_rows import ENGINE_S, served

pytestmark = pytest.mark.postgres

REQUESTS = 100
QUEUED_S = 0.5


def record(number: int, arrived_at: datetime) -> UsageRecordRow:
    return served(number, arrived_at, queued_s=QUEUED_S)


@pytest.fixture
def until(session: Session) -> datetime:
    """A fleet with 100 requests of `acme` in the ten minutes before the instant returned."""
    now = SystemClock().now().astimezone(UTC)
    fill(session, now)
    since = now - timedelta(minutes=10)
    session.add_all(record(n, since + timedelta(seconds=5 * n + 1)) for n in range(REQUESTS))
    session.add(record(REQUESTS, since - timedelta(seconds=3)))  # came before, ended inside
    session.commit()
    return now


def counted_refusals(session: Session, since: datetime, until: datetime) -> int:
    g = GatewaySampleRow
    rows = session.scalars(select(g.outcomes).where(g.at >= since, g.at < until, g.tenant == "acme"))
    return sum(count for outcomes in rows for outcome, count in outcomes.items() if outcome in SHED)


def test_served_and_refused_requests_come_back_at_their_time(session: Session, until: datetime) -> None:
    since = until - timedelta(minutes=10)
    found = recorded_traffic(session, since, until)
    refused = counted_refusals(session, since, until)
    assert refused > 0
    assert found.served == REQUESTS
    assert found.refused == {("acme", "interactive"): refused}
    assert len(found.arrivals) == REQUESTS + refused
    times = [one.at_s for one in found.arrivals]
    assert times == sorted(times)
    served = [one for one in found.arrivals if not one.request.request_id.startswith("refused-")]
    assert [one.at_s for one in served[:3]] == pytest.approx([1, 6, 11], abs=1e-3)
    assert {one.service_s for one in found.arrivals} == {ENGINE_S}


def test_a_smaller_quota_would_have_refused_what_it_does_not_hold(
    session: Session, until: datetime
) -> None:
    found = recorded_traffic(session, until - timedelta(minutes=10), until)
    nodes = replay_nodes(session, until)
    assert [node.name for node in nodes] == ["n1", "n2"]  # n3 never said anything
    tight = parse(policy_document(tokens_per_minute=4_000))
    group = by_tenant_and_tier(replay(tight, found.arrivals, nodes))["acme", "interactive"]
    # 10,000 of burst and 40,000 over ten minutes hold 62 requests of 800 tokens.
    assert group.offered == len(found.arrivals)
    assert group.completed == pytest.approx(62, abs=3)


def test_an_empty_range_is_said(session: Session, until: datetime) -> None:
    with pytest.raises(InvalidInput):
        recorded_traffic(session, until - timedelta(days=2), until - timedelta(days=1))


def test_the_command_prints_whom_a_policy_refuses_beside_the_one_in_force(
    database: FreshDatabase,
    until: datetime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.dsn)
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(policy_document(tokens_per_minute=4_000)))
    main_returns(["estimate", "replay", str(path), "--minutes", "11", "--json"])
    document = json.loads(capsys.readouterr().out)
    row = next(row for row in document["groups"] if row["tenant"] == "acme")
    assert row["in_force_refuses"] == 0  # 60,000 a minute
    assert row["would_refuse"] > 20
    assert set(row["by_reason"]) == {"rejected_quota_rate"}
    main_returns(["estimate", "replay", str(path), "--minutes", "11"])
    assert "acme as interactive: would have refused" in capsys.readouterr().out


def main_returns(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code in (None, 0)
