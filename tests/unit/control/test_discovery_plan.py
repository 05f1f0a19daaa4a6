"""Answers of discovery sources, hostile ones included, and what follows from them for the fleet."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.commands_fleet import NAME
from control.discovery_plan import Present, plan
from control.discovery_targets import (
    BYTES_MAX,
    PAGES_MAX,
    TARGETS_MAX,
    Answer,
    Found,
    Naming,
    Wanted,
    check_rule,
    node_name,
    read_lines,
    read_target_groups,
    split_address,
    wanted_nodes,
)
from fleet.errors import InvalidInput

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
GRACE = timedelta(minutes=10)


def groups(*groups: object) -> bytes:
    return json.dumps(groups).encode()


def names(naming: Naming, *found: Found) -> tuple[list[str], tuple[str, ...]]:
    wanted, remarks = wanted_nodes(naming, Answer(found))
    return [node.name for node in wanted], remarks


def test_a_target_that_is_not_ready_adds_no_node_and_removes_none():
    wanted, _ = wanted_nodes(
        Naming(), Answer((Found("10.0.0.1:8000", is_ready=False), Found("10.0.0.2:8000")))
    )
    new = plan("s", wanted, {}, grace=GRACE, now=NOW)
    assert [node.name for node in new.add] == ["10.0.0.2"]
    assert new.remarks == ("10.0.0.1: not ready yet",)
    sick = Present("10.0.0.1", "http://10.0.0.1:8000/metrics", "active", "s")
    again = plan("s", wanted, {"10.0.0.1": sick}, grace=GRACE, now=NOW)
    assert (again.missing, again.remove) == ((), ())
    assert "10.0.0.1" in again.seen


def test_prometheus_target_groups_become_nodes():
    answer = read_target_groups(
        groups(
            {"targets": ["10.0.0.2:8000", "10.0.0.1:8000"], "labels": {"rack": "a"}},
            {"targets": ["gpu-3.example.org:8000"]},
        )
    )
    wanted, remarks = wanted_nodes(Naming(), answer)
    assert remarks == ()
    assert [(w.name, w.url, w.metrics_path) for w in wanted] == [
        ("10.0.0.1", "http://10.0.0.1:8000", "/metrics"),
        ("10.0.0.2", "http://10.0.0.2:8000", "/metrics"),
        ("gpu-3.example.org", "http://gpu-3.example.org:8000", "/metrics"),
    ]
    assert wanted[0].labels == {"rack": "a"}


def test_ports_of_one_host_are_engines_of_one_node_and_its_exporter_a_page():
    answer = Answer(tuple(Found(f"gpu-1:{port}") for port in (8001, 8000, 8002)))
    (node,), _ = wanted_nodes(Naming(rule="{host}", gpu_port=9400), answer)
    assert node.url == "http://gpu-1:8000"
    assert node.pages == ("http://gpu-1:8001/metrics", "http://gpu-1:8002/metrics")
    assert node.gpu_url == "http://gpu-1:9400/metrics"


def test_labels_name_nodes_and_prometheus_own_labels_set_scheme_and_path():
    labels = {"pod": "vLLM_0", "__scheme__": "https", "__metrics_path__": "/prometheus/metrics"}
    (node,), _ = wanted_nodes(Naming(rule="prod-{label_pod}"), Answer((Found("10.0.0.1:8000", labels),)))
    assert (node.name, node.url, node.metrics_path) == (
        "prod-vllm_0",
        "https://10.0.0.1:8000",
        "/prometheus/metrics",
    )
    assert node.labels == {"pod": "vLLM_0"}
    found, remarks = names(Naming(rule="{label_pod}"), Found("10.0.0.1:8000"))
    assert found == []
    assert "no 'pod'" in remarks[0]


def test_a_plain_list_names_nodes_itself():
    answer = read_lines(b"# ours\n10.0.0.1:8000 gpu-a\n\n10.0.0.2:8000  # no name\nx y z\n")
    wanted, remarks = wanted_nodes(Naming(), answer)
    assert [(w.name, w.url) for w in wanted] == [
        ("10.0.0.2", "http://10.0.0.2:8000"),
        ("gpu-a", "http://10.0.0.1:8000"),
    ]
    assert "line 5 has 3 words" in remarks[0]


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("a:80", "a", "80"),
        ("a", "a", "9"),
        ("[::1]:80", "[::1]", "80"),
        ("[::1]", "[::1]", "9"),
        ("fe::1", "[fe::1]", "9"),
    ],
)
def test_addresses(address: str, host: str, port: str):
    assert split_address(address, 9) == (host, port)


@pytest.mark.parametrize(
    "address",
    ["", "a:0", "a:65536", "a:b", "http://a:80", "u@a:80", "a:80/x", "a:80?x", "a:99999999999999999999"],
)
def test_what_is_no_address_is_refused(address: str):
    with pytest.raises(InvalidInput):
        split_address(address, None)


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254:80", "0.0.0.0:80", "224.0.0.1:80", "[fe80::1]:80", "0x7f000001:80", "a b:80", "é:80"],
)
def test_forbidden_addresses_are_left_out_by_name(address: str):
    found, remarks = names(Naming(), Found(address), Found("10.0.0.1:8000"))
    assert found == ["10.0.0.1"]
    assert len(remarks) == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b'"x"', b"[", b"null", b"\xff\xfe", b"[" * 10_000, b" " * (BYTES_MAX + 1)],
)
def test_what_is_no_list_of_groups_is_refused_as_a_whole(body: bytes):
    with pytest.raises(InvalidInput):
        read_target_groups(body)


def test_broken_groups_cost_themselves_only():
    body = groups(
        {"targets": "10.0.0.1:8000"},
        7,
        {"targets": ["10.0.0.2:8000", 5, None], "labels": {"a": 1, "b\n": "x", "c": "y" * 500, "d": "z"}},
    )
    answer = read_target_groups(body)
    assert [(f.address, dict(f.labels)) for f in answer.found] == [("10.0.0.2:8000", {"d": "z"})]
    assert len(answer.remarks) == 4


def test_a_million_targets_are_refused_and_remarks_are_bounded():
    with pytest.raises(InvalidInput, match=str(TARGETS_MAX)):
        read_target_groups(groups({"targets": [f"h{i}:1" for i in range(TARGETS_MAX + 1)]}))
    _, remarks = names(Naming(), *(Found(f"169.254.0.{i % 250}:{i + 1}") for i in range(500)))
    assert remarks[-1].startswith("and ")
    assert len(remarks) <= 21
    crowd, remarks = wanted_nodes(Naming(), Answer(tuple(Found(f"h:{i}") for i in range(1, PAGES_MAX + 9))))
    assert len(crowd[0].pages) == PAGES_MAX - 1


@given(st.text(max_size=100), st.text(max_size=100))
def test_any_label_gives_a_name_that_can_be_one_or_none(host: str, pod: str):
    try:
        name = node_name("{host}-{label_pod}", host, "", {"pod": pod})
    except InvalidInput:
        return
    assert NAME.fullmatch(name)


def test_long_names_stay_apart():
    one, other = (node_name("{host}", "h" * 80 + end, "", {}) for end in ("a", "b"))
    assert one != other
    assert len(one) == len(other) == 63


BAD_RULES = ["", "x", "{", "{host!r}", "{host:>9}", "{0}", "{password}", "{host.x}", "{}"]


@pytest.mark.parametrize("rule", BAD_RULES)
def test_rules_that_cannot_be_used(rule: str):
    with pytest.raises(InvalidInput):
        check_rule(rule)


@pytest.mark.parametrize("rule", ["{host}", "a-{host}-{port}", "{address}", "{label_pod}"])
def test_rules_that_can(rule: str):
    check_rule(rule)


# plans


def wanted(name: str, *, host: str | None = None, pages: tuple[str, ...] = ()) -> Wanted:
    return Wanted(name, f"http://{host or name}:8000", "/metrics", {}, pages)


def present(name: str, state: str = "active", **more: object) -> Present:
    return Present(name, f"http://{name}:8000/metrics", state, **more)  # type: ignore[arg-type]


def planned(nodes: list[Wanted], there: list[Present]):
    return plan("s", nodes, {node.name: node for node in there}, grace=GRACE, now=NOW)


def test_new_nodes_are_added_and_moved_ones_follow():
    todo = planned([wanted("a"), wanted("b", host="b2")], [present("b", source="s")])
    assert [n.name for n in todo.add] == ["a"]
    assert [n.name for n in todo.move] == ["b"]
    assert set(todo.seen) == {"a", "b"}


def test_an_empty_answer_changes_nothing_and_says_so():
    todo = planned([], [present("a", source="s"), present("b", source="s", missing_since=NOW - 2 * GRACE)])
    assert (todo.missing, todo.remove, todo.forget) == ((), (), ())
    assert "2 nodes stay" in todo.problem


def test_a_node_is_missing_for_the_grace_and_then_removed():
    there = [
        present("a", source="s"),
        present("b", source="s", missing_since=NOW - GRACE + timedelta(seconds=1)),
        present("c", source="s", missing_since=NOW - GRACE),
        present("kept", source="s", missing_since=NOW - 2 * GRACE),
    ]
    todo = planned([wanted("kept")], there)
    assert (todo.missing, todo.remove, todo.seen) == (("a",), ("c",), ("kept",))


def test_a_node_added_by_hand_wins_over_discovery():
    todo = planned(
        [wanted("a", host="elsewhere"), wanted("other", host="a"), wanted("c")],
        [present("a"), present("c", source="another")],
    )
    assert (todo.add, todo.move, todo.seen, todo.remove) == ((), (), (), ())
    assert "a: was added by hand and stays" in todo.remarks
    assert "other: its page is node a's already" in todo.remarks
    assert "c: belongs to another" in todo.remarks


def test_a_node_that_was_removed_by_hand_stays_out_until_its_source_forgets_it():
    held = planned([wanted("a"), wanted("b")], [present("a", "removed", source="s")])
    assert [n.name for n in held.add] == ["b"]
    assert "removed by hand" in held.remarks[0]
    forgotten = planned([wanted("b")], [present("a", "removed", source="s")])
    assert forgotten.forget == ("a",)
    back = planned([wanted("a")], [present("a", "removed")])
    assert [n.name for n in back.add] == ["a"]


def test_a_node_that_vanished_and_came_back_is_added_again():
    gone = present("a", "removed", source="s", missing_since=NOW - timedelta(days=1))
    assert [n.name for n in planned([wanted("a")], [gone]).add] == ["a"]


def test_further_pages_follow_the_source():
    page = "http://a:8001/metrics"
    todo = planned([wanted("a", pages=(page,))], [present("a", source="s")])
    assert ([n.name for n in todo.repage], todo.move) == (["a"], ())
    same = planned([wanted("a", pages=(page,))], [present("a", source="s", pages=frozenset({page}))])
    assert same.repage == ()


def test_an_engine_page_of_another_node_is_not_read_twice():
    hand = Present("hand", "http://a:8001/metrics", "active")
    pages = ("http://a:8001/metrics", "http://a:8002/metrics", "http://a:8003/metrics")
    other = present("b", source="t", pages=frozenset({"http://a:8003/metrics"}))
    todo = planned([wanted("a", pages=pages)], [hand, other])
    assert [n.pages for n in todo.add] == [("http://a:8002/metrics",)]
    assert [n.pages for n in todo.repage] == [("http://a:8002/metrics",)]
    assert [r.partition(" is ")[2] for r in todo.remarks] == [
        "a page of node hand already",
        "a page of node b already",
    ]


def at(name: str, port: int, *pages: str) -> Wanted:
    return Wanted(name, f"http://10.0.0.1:{port}", "/metrics", {}, pages=pages)


def here(name: str, port: int, source: str | None = "s", *pages: str) -> Present:
    return Present(name, f"http://10.0.0.1:{port}/metrics", "active", source, pages=frozenset(pages))


def test_nodes_that_swap_addresses_in_one_answer_all_move() -> None:
    present = {n.name: n for n in (here("a", 1), here("b", 2), here("c", 3))}
    found = plan("s", [at("a", 2), at("b", 3), at("c", 1)], present, grace=GRACE, now=NOW)
    assert [node.name for node in found.move] == ["a", "b", "c"]
    assert found.remarks == ()
    # whoever comes may have what is left free by one that moves
    found = plan("s", [at("a", 9), at("new", 1)], {"a": here("a", 1)}, grace=GRACE, now=NOW)
    assert ([n.name for n in found.move], [n.name for n in found.add]) == (["a"], ["new"])


def test_one_that_cannot_move_keeps_its_page_and_whoever_wants_it_waits_too() -> None:
    present = {n.name: n for n in (here("a", 1), here("b", 2), here("hand", 3, None))}
    found = plan("s", [at("a", 2), at("b", 3)], present, grace=GRACE, now=NOW)
    assert found.move == ()
    assert found.remarks == ("a: its page is node b's already", "b: its page is node hand's already")
    twins = plan("s", [at("a", 7), at("b", 7)], present, grace=GRACE, now=NOW)
    assert [node.name for node in twins.move] == ["a"]
    assert twins.remarks == ("b: its page is node a's already",)


def test_a_page_that_changes_nodes_is_read_once() -> None:
    page = "http://10.0.0.1:5/metrics"
    present = {n.name: n for n in (here("a", 1, "s", page), here("b", 2))}
    found = plan("s", [at("a", 1), at("b", 5)], present, grace=GRACE, now=NOW)
    assert [node.name for node in found.move] == ["b"]
    assert [node.name for node in found.repage] == ["a"]
    kept = plan("s", [at("a", 1, page), at("b", 5)], present, grace=GRACE, now=NOW)
    assert kept.move == ()
    assert kept.remarks == ("b: its page is node a's already",)
