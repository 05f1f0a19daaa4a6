"""The nodes page and the node page's hardware: four states, what they say, and what their forms change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from streamlit.testing.v1 import AppTest

from control import commands_discovery
from control.database import session_scope
from control.tables import (
    AuditRow,
    DiscoveredNodeRow,
    DiscoverySourceRow,
    EndpointSeenRow,
    GpuRow,
    GpuSampleRow,
    NodeRow,
)
from fleet.clock import SystemClock
from tests.pages.conftest import Show, column, text
from tests.pages.fleet_rows import ADMIN
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres
GIB = 1024.0**3


def gpu(uuid: str, slot: int, **values: Any) -> GpuRow:
    return GpuRow(
        **{
            "node": "n1",
            "uuid": uuid,
            "slot": slot,
            "label": str(slot),
            "model": "NVIDIA H100 80GB HBM3",
            "host": "n1",
            **values,
        }
    )


def with_source(database: FreshDatabase, *, problem: str = "") -> None:
    now = SystemClock().now()
    with session_scope(database.engine) as session:
        commands_discovery.add_source(
            session, ADMIN, name="sd", kind="file", settings={"path": "/n.json"}, pool="main", now=now
        )
        session.flush()
        row = session.get_one(DiscoverySourceRow, "sd")
        row.tried_at, row.answered_at, row.found, row.problem = now, now, 1, problem
        since = now - timedelta(seconds=120)
        session.add(
            DiscoveredNodeRow(
                node="n2", source="sd", first_seen_at=since, seen_at=since, missing_since=since
            )
        )


def with_gpus(database: FreshDatabase) -> None:
    now = SystemClock().now()
    with session_scope(database.engine) as session:
        session.add_all(
            [
                gpu(
                    "GPU-a",
                    0,
                    seen_at=now,
                    used_ratio=0.97,
                    power_w=612.0,
                    memory_used_bytes=60 * GIB,
                    memory_total_bytes=80 * GIB,
                    xid=79,
                    xid_at=now - timedelta(minutes=20),
                ),
                gpu("GPU-b", 1, seen_at=now - timedelta(hours=1), xid=0),
                EndpointSeenRow(
                    node="n1",
                    url="http://10.0.0.1:8000/metrics",
                    kind="engine",
                    dialect="sglang",
                    tried_at=now,
                    seen_at=now,
                    not_exported=["kv_capacity_tokens"],
                ),
            ]
        )
        for minute in range(5):
            session.add(
                GpuSampleRow(
                    at=now - timedelta(minutes=minute),
                    node="n1",
                    used_ratio=[0.9, None],
                    power_w=[600.0, None],
                    memory_used_ratio=[0.75, None],
                    temperature_c=[60.0, None],
                )
            )


def removal_script() -> None:
    from dashboard import access, node_forms, state

    state.show_flash()
    access.look_up(is_active=True)
    node_forms.removal_body("sd", 0)


@pytest.mark.parametrize("state", ["full", "empty", "stale", "failing"])
def test_the_page_shows_no_exception_in_any_state(state: str, request: pytest.FixtureRequest) -> None:
    at = request.getfixturevalue(state)("nodes")
    assert [e.message for e in at.exception] == []
    assert [t.value for t in at.title] == ["Nodes"] or state == "failing"


def test_an_empty_installation_says_how_to_begin(empty: Show) -> None:
    said = text(empty("nodes"))
    assert "Nothing is registered yet" in said
    assert "nodes come and go by hand only" in said


def test_a_node_without_a_sample_is_no_green_list(full: Show) -> None:
    assert "1 of 3 nodes without a fresh sample: n3." in text(full("nodes"))


def test_origins_and_missing_nodes_are_told(full: Show, dashboard_on: FreshDatabase) -> None:
    with_source(dashboard_on)
    at = full("nodes")
    assert "1 node missing from discovery" in text(at)
    assert column(at, "origin") == ["by hand", "sd", "by hand"]
    states = [str(state) for state in column(at, "state")]
    assert states[0] == "\u2713 active"
    assert states[1].startswith("\u2713 active, missing since ")
    assert "removed in 8 min" in states[1]  # missing for 2 min of a grace of 10


def test_a_failing_source_is_no_green_page(full: Show, dashboard_on: FreshDatabase) -> None:
    with_source(dashboard_on, problem="the file /n.json cannot be read")
    at = full("nodes")
    assert "Discovery fails at sd" in text(at)
    assert "its nodes stay as they are" in text(at)
    assert "sd fails: the file /n.json cannot be read" in text(at).replace("\\", "")


def test_a_node_is_added_and_removed_by_its_forms(
    full: Show, as_role: Callable[[str], str], dashboard_on: FreshDatabase
) -> None:
    as_role("operator")
    at = full("nodes")
    at.text_input(key="new_node_name").set_value("n9")
    at.text_input(key="new_node_url").set_value("http://169.254.169.254:80")
    submit = next(b for b in at.button if b.label == "Add node")
    submit.click().run()
    assert "not allowed as a scrape target" in text(at)
    at.text_input(key="new_node_url").set_value("http://10.0.0.9:8000")
    next(b for b in at.button if b.label == "Add node").click().run()
    assert "Node n9 is added" in text(at)
    with session_scope(dashboard_on.engine) as session:
        assert session.get_one(NodeRow, "n9").base_url == "http://10.0.0.9:8000"
        actions = session.scalars(select(AuditRow.action).where(AuditRow.via == "page")).all()
    assert actions == ["node.add"]


def test_a_source_is_added_paused_and_removed(
    full: Show, as_role: Callable[[str], str], dashboard_on: FreshDatabase
) -> None:
    as_role("operator")
    at = full("nodes")
    at.text_input(key="source_name").set_value("sd")
    at.text_input(key="source_file_path").set_value("relative")
    next(b for b in at.button if b.label == "Add source").click().run()
    assert "must be an absolute path" in text(at)
    at.text_input(key="source_file_path").set_value("/etc/nodes.json")
    next(b for b in at.button if b.label == "Add source").click().run()
    assert "Source sd is added" in text(at)
    at.button(key="source_pause").click().run()
    ask = AppTest.from_function(removal_script, default_timeout=120).run()
    ask.button(key="source_confirm").click().run()
    assert "Source sd is removed" in text(ask)
    with session_scope(dashboard_on.engine) as session:
        actions = session.scalars(
            select(AuditRow.action).where(AuditRow.via == "page").order_by(AuditRow.id)
        ).all()
    assert actions == ["discovery.add", "discovery.pause", "discovery.remove"]


def test_a_viewer_sees_and_changes_nothing(full: Show, as_role: Callable[[str], str]) -> None:
    as_role("viewer")
    at = full("nodes")
    assert all(b.disabled for b in at.button if b.label in {"Add node", "Add source", "Drain", "Remove"})
    assert len(column(at, "origin")) == 3


def test_gpus_are_shown_with_their_ages_and_errors_in_words(
    full: Show, dashboard_on: FreshDatabase
) -> None:
    with_gpus(dashboard_on)
    at = full("node", node="n1")
    said = text(at)
    assert "fallen off the bus" in said
    assert "reboot it" in said
    assert "1 of them gave no value" in said
    assert column(at, "use") == [pytest.approx(97.0), None]
    assert column(at, "memory") == ["60.0 of 80.0 GiB", "\u2014"]
    assert str(column(at, "error")[0]).endswith("Xid 79, 20 min ago")
    assert column(at, "error")[1] == "\u2713 none"
    assert "60 min" in column(at, "age")[1]
    assert column(at, "not exported") == ["kv_capacity_tokens"]


def test_a_node_without_an_exporter_says_how_to_name_one(full: Show) -> None:
    assert "nodes add-page" in text(full("node", node="n1"))
