"""The Rollout page names the nodes a gateway keeps out by its own judgement."""

from __future__ import annotations

from dataclasses import replace

from test_viewmodels import gateway

from dashboard.viewmodels_rollout import why_lines


def why(apart: dict[str, str]) -> str:
    said = why_lines([replace(gateway("converged"), nodes_apart=apart)])
    return said[0].partition(": ")[2] if said else ""


def test_ejected_nodes_and_those_on_trial_are_named_and_others_are_not() -> None:
    # what closes a node for everybody (drained, unhealthy, silent) is said on the Fleet page
    assert why({"n1": "ejected", "n2": "draining", "n3": "on trial"}) == "node n1 ejected; node n3 on trial"
    assert why({"n2": "unhealthy"}) == ""


def test_many_are_counted() -> None:
    said = why({f"n{n}": "ejected" for n in range(9)})
    assert said == "node n0 ejected; node n1 ejected; node n2 ejected; 6 more nodes out"
