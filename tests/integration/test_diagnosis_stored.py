"""A diagnosis of what was scraped over sockets and stored in Postgres, by query, command line and API."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from control.cli_diagnose import diagnose as diagnose_command
from control.diagnose import diagnosis, gather, span_of
from control.partitions import make_partitions
from control.quiet_nodes import quiet_nodes
from control.tables import (
    GatewaySampleRow,
    HistogramEdgesRow,
    NodeRow,
    RoundRow,
    SampleRow,
    ScrapeFailureRow,
)
from fleet.clock import SystemClock
from fleet.diagnosis_evidence import Cause, Kind
from fleet.errors import InvalidInput
from fleet.readings import Histogram
from simfleet import check_cases
from tests.incident_fleet import store
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres
END = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
SPAN = timedelta(minutes=6)


def test_scraped_pages_in_postgres_give_the_verdict_and_what_was_not_stored_is_not_guessed(
    database: FreshDatabase,
):
    store(database.engine, check_cases.capped_front(nodes=4), END)
    with Session(database.engine) as session:
        verdict = diagnosis(session, END, SPAN)
        evidence = gather(session, END - SPAN, END)
    assert verdict.kind is Kind.SCHEDULING
    assert [f.cause for f in verdict.findings][:2] == [Cause.CONCURRENCY_CAP, Cause.HEAD_OF_LINE]
    assert evidence.order == "fifo"
    assert evidence.engines[0].launch.max_num_seqs == check_cases.capped_front().profile.max_num_seqs
    assert evidence.engines[0].capacity is not None  # as learnt by the controller, not from the interval
    assert evidence.silent == ()
    # 36 rounds of 10 s in six minutes
    assert [len(e.windows) for e in evidence.engines] == [36, 36, 36, 36]
    assert verdict.utilization is not None
    assert verdict.utilization.p50 < 0.4

    with Session(database.engine) as session, session.begin():
        session.execute(
            update(SampleRow).values(
                prompt_len_edges=None, prompt_len_counts=None, step_edges=None, step_counts=None
            )
        )
        verdict = diagnosis(session, END, SPAN)
    causes = [f.cause for f in verdict.findings]
    assert Cause.CONCURRENCY_CAP in causes
    assert Cause.HEAD_OF_LINE not in causes
    assert "head-of-line blocking: prompt lengths are not exported" in verdict.cannot_tell
    assert any(words.startswith("token budget") for words in verdict.cannot_tell)


def test_gateways_add_up_by_round_and_who_did_not_say_makes_the_sum_unknown(database: FreshDatabase):
    row: dict[str, object] = {
        "tenant": "t", "tier": "batch", "covered_s": 10.0, "offered": 7, "repeated": 0, "dispatched": 5,
        "outcomes": {"completed": 5, "rejected_queue_full": 2}, "prompt_tokens": 100, "queued_requests": 3,
        "queue_wait_edges": 1, "queue_wait_counts": [1, 2, 3], "queue_wait_sum_s": 4.0,
    }  # fmt: skip
    silent = {"prompt_tokens": None, "queue_wait_sum_s": None}
    finer = {"queue_wait_edges": 2, "queue_wait_counts": [1, 1, 1, 1]}
    with Session(database.engine) as session, session.begin():
        make_partitions(session, END)
        session.add(HistogramEdgesRow(id=1, edges=[0.1, 1.0]))
        session.add(HistogramEdgesRow(id=2, edges=[0.1, 0.5, 1.0]))
        session.flush()
        for second, others in ((0, {}), (10, silent), (20, finer)):
            at = END - timedelta(seconds=60 - second)
            session.add(GatewaySampleRow(at=at, gateway="g1", **row))
            session.add(GatewaySampleRow(at=at, gateway="g2", **row | others))
        (flow,) = gather(session, END - SPAN, END).flows
    both, unsure, mixed = flow.slices
    assert (both.offered, both.dispatched, both.refused, both.queued) == (14, 10, 4, 6)
    assert (both.covered_s, both.prompt_tokens, both.output_tokens) == (10.0, 200, None)
    assert both.queue_wait == Histogram((0.1, 1.0), (2, 4, 6), 8.0)
    assert (unsure.prompt_tokens, unsure.offered) == (None, 14)
    assert unsure.queue_wait == Histogram((0.1, 1.0), (2, 4, 6), None)
    # bounds both have: 1 + 1 up to 0.1 s, 2 + (1 + 1) up to 1 s, 3 + 1 above
    assert mixed.queue_wait == Histogram((0.1, 1.0), (2, 4, 4), 8.0)
    assert (mixed.offered, mixed.ttft) == (14, None)


def test_ten_minutes_without_samples_are_no_verdict(database: FreshDatabase):
    store(database.engine, replace(check_cases.healthy_fleet(), nodes=1, length_s=120.0), END)
    with Session(database.engine) as session:
        verdict = diagnosis(session, END + timedelta(minutes=10), timedelta(minutes=15))
    assert verdict.kind is Kind.UNKNOWN
    assert verdict.sentence == "Cannot say: no samples for 10 minutes."


def test_a_node_that_died_is_named_and_nobody_is_blamed_when_the_rounds_stop(database: FreshDatabase):
    whole = check_cases.healthy_fleet()  # 12 nodes at 70 %; an eighth of its requests is 53 % of two
    eighth = tuple(replace(s, phases=tuple((u, rate / 8) for u, rate in s.phases)) for s in whole.streams)
    store(database.engine, replace(whole, nodes=2, streams=eighth, length_s=240.0), END)
    died = END - timedelta(seconds=100)
    with Session(database.engine) as session, session.begin():
        gone = (SampleRow.node == "gpu-02", SampleRow.at > died)
        missed = list(session.scalars(select(SampleRow.at).where(*gone)))
        session.execute(delete(SampleRow).where(*gone))
        session.execute(
            insert(ScrapeFailureRow),
            [
                {"at": at, "node": "gpu-02", "reason": "refused", "detail": "nothing listens"}
                for at in missed
            ],
        )
    with Session(database.engine) as session:
        verdict = diagnosis(session, END, timedelta(minutes=4))
    assert verdict.kind is Kind.FAULT
    assert verdict.findings[0].cause is Cause.NODE_SILENT
    assert verdict.findings[0].subjects == ("gpu-02",)
    # rounds of 10 s: the last one it answered was 100 s before the end, ten were missed
    numbers = {n.label: n.value for n in verdict.findings[0].numbers}
    assert numbers["without metrics"] == 100.0
    assert numbers["rounds without an answer"] == 10.0
    assert numbers["last try"] == "refused: nothing listens"
    late = END + timedelta(minutes=3)
    with Session(database.engine) as session, session.begin():
        assert quiet_nodes(session, late - timedelta(minutes=15), late) == ()  # no round was made since
        session.execute(update(NodeRow).where(NodeRow.name == "gpu-02").values(state="draining"))
        assert quiet_nodes(session, END - timedelta(minutes=4), END) == ()
        session.execute(update(NodeRow).values(state="active"))
        session.execute(insert(RoundRow), [_round(late)])
        assert [q.node for q in quiet_nodes(session, END, late)] == ["gpu-01", "gpu-02"]


def _round(at: datetime) -> dict[str, object]:
    return {
        "at": at, "period_s": 10.0, "duration_s": 0.1, "lag_s": 0.0, "nodes_total": 2, "nodes_sampled": 0,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "15", "m", "-5m", "5d", "1" * 9 + "s", "\u0665m", "1.5h"])
def test_a_length_of_time_that_is_none_is_refused_with_its_field(text: str):
    with pytest.raises(InvalidInput) as caught:
        span_of(text)
    assert caught.value.field == "since"


def test_intervals_too_short_and_too_long_are_refused(session: Session):
    for span in (timedelta(minutes=2), timedelta(hours=7)):
        with pytest.raises(InvalidInput, match="cannot be diagnosed"):
            diagnosis(session, END, span)


def test_the_command_ends_with_the_verdict_as_exit_code_and_json(
    database: FreshDatabase, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DATABASE_URL", database.dsn)
    nothing = CliRunner().invoke(diagnose_command, ["--json"])
    assert nothing.exit_code == 3
    assert json.loads(nothing.stdout)["verdict"] == "unknown"
    store(database.engine, check_cases.capped_front(nodes=4), SystemClock().now())
    found = CliRunner().invoke(diagnose_command, ["--json", "--since", "6m"])
    assert found.exit_code == 1, found.output
    said = json.loads(found.stdout)
    assert said["verdict"] == "scheduling"
    assert said["findings"][0]["cause"] == "concurrency_cap"
    assert {"label", "value", "unit"} == set(said["findings"][0]["numbers"][0])
    text = CliRunner().invoke(diagnose_command, ["--since", "6m"])
    assert "1. A cap of 21" in text.output or "1. a cap of 21" in text.output
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/rhodeck")
    assert CliRunner().invoke(diagnose_command, ["--json"]).exit_code == 2
