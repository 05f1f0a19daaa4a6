"""Ejected nodes in words: which, why, since when, until when, and by whom."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from test_viewmodels import gateway

from dashboard.times import UTC_ZONE
from dashboard.viewmodels_ejected import ejected, notices, of_node, remarks
from fleet.messages import NodeOut

AT = datetime(2026, 11, 30, 15, 2, 11, tzinfo=UTC)


def out(*, for_s: float, left_s: float, because: str = "consecutive_failures") -> NodeOut:
    """Return a node that has been out `for_s` and comes back in `left_s` seconds."""
    since, until = AT - timedelta(seconds=for_s), AT + timedelta(seconds=left_s)
    return NodeOut(because=because, since_s=since.timestamp(), until_s=until.timestamp())


def gateways(**by: dict[str, NodeOut]) -> list:
    return [
        replace(
            gateway("converged"),
            name=name.replace("_", "-"),
            nodes_out=nodes,
            nodes_apart={
                n: "ejected" if o.until_s > AT.timestamp() else "on trial" for n, o in nodes.items()
            },
        )
        for name, nodes in by.items()
    ]


def test_a_node_that_is_out_is_named_with_its_reason_its_times_and_its_gateways() -> None:
    seen = gateways(gw_1={"n1": out(for_s=3, left_s=2)}, gw_2={"n1": out(for_s=12, left_s=8)}, gw_3={})
    (line,) = notices(ejected(seen, AT), AT, UTC_ZONE)
    assert (line.word, line.tone, line.query) == ("ejected", "watch", {"node": "n1"})
    assert line.text == "Node n1 gets no requests from gw-1 and gw-2: requests in a row failed"
    # out at the first of them 12 s ago; the first to try it again does in 2 s
    assert line.since == "since 12 s ago, 15:01:59 UTC; tried again in 2 s, 15:02:13 UTC"
    assert remarks(seen, AT) == {"n1": "ejected by 2 gateways"}


def test_past_its_time_it_is_on_trial() -> None:
    seen = gateways(gw_1={"n1": out(for_s=9, left_s=-4, because="failed_trial")})
    (line,) = notices(ejected(seen, AT), AT, UTC_ZONE)
    assert line.word == "on trial"
    assert line.text == "Node n1 is on trial at gw-1: it failed again on trial"
    assert of_node("n1", seen, AT, UTC_ZONE) != []
    assert of_node("n2", seen, AT, UTC_ZONE) == []


def test_a_gateway_that_is_not_heard_says_nothing_about_nodes() -> None:
    lost = [replace(gateway("unreachable"), nodes_out={"n1": out(for_s=3, left_s=20)})]
    assert ejected(lost, AT) == []


def test_a_node_that_is_drained_or_dead_meanwhile_is_not_called_ejected() -> None:
    (seen,) = gateways(gw_1={"n1": out(for_s=9, left_s=-4)})
    assert ejected([replace(seen, nodes_apart={"n1": "refused"})], AT) == []


def test_nodes_that_are_out_come_before_those_on_trial() -> None:
    seen = gateways(gw_1={"a": out(for_s=9, left_s=-4), "b": out(for_s=1, left_s=4)})
    assert [one.node for one in ejected(seen, AT)] == ["b", "a"]
