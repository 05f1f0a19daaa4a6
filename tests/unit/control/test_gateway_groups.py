"""Several processes of one gateway are one thing to a person, and never look better than their worst."""

from __future__ import annotations

from dataclasses import replace

from control.gateway_groups import grouped, process_words
from control.queries_policy import Condition, GatewayState
from dashboard.viewmodels_rollout import group_words

ONE = GatewayState(
    name="gw-1-1",
    url="http://gw",
    condition="converged",
    age_s=1.0,
    observed_generation=1,
    desired_generation=1,
    revision_observed=2,
    revision_desired=2,
    boot_id="b",
    message="",
    pointer=None,
    in_flight=0,
    in_flight_tokens=0,
    queues={},
    nodes_usable=1,
    nodes_total=1,
    unsupported=(),
    acked_at=None,
    draining=False,
    group="gw-1",
)


def processes(*conditions: Condition) -> list[GatewayState]:
    return [replace(ONE, name=f"gw-1-{n}", condition=one) for n, one in enumerate(conditions, 1)]


def test_what_is_not_converged_is_said_first() -> None:
    mixed = processes("converged", "converged", "unreachable", "behind", "behind")
    assert process_words(mixed) == "5 processes: 2 behind, 1 unreachable, 2 converged"
    assert process_words(processes("converged", "converged")) == "2 processes, all converged"


def test_gateways_of_no_group_stay_alone_and_in_order() -> None:
    alone = [replace(ONE, name=name, group=None) for name in ("gw-0", "gw-2")]
    made = grouped([alone[0], *processes("converged", "rejected"), alone[1]])
    assert [(group, [one.name for one in kept]) for group, kept in made] == [
        (None, ["gw-0"]),
        ("gw-1", ["gw-1-1", "gw-1-2"]),
        (None, ["gw-2"]),
    ]


def test_the_page_names_groups_only_where_there_are_any() -> None:
    assert group_words([replace(ONE, group=None)]) is None
    said = group_words(processes("converged", "rejected"))
    assert said is not None
    assert said.replace("\\", "") == "gw-1: 2 processes: 1 rejected, 1 converged."
