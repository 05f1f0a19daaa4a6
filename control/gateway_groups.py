"""Gateways that are several processes of one (`rhodeck gateway --processes`), in a word. Pure.

Prevents: sixteen lines of processes where a person thinks of four gateways, and a group that looks well
because its first process does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from control.queries_policy import GatewayState


def grouped(states: Sequence[GatewayState]) -> list[tuple[str | None, list[GatewayState]]]:
    """Return gateways by group, as `gateway_states` has them in order; those of no group one by one."""
    made: list[tuple[str | None, list[GatewayState]]] = []
    for group, members in groupby(states, key=lambda state: state.group):
        kept = list(members)
        if group is None:
            made += [(None, [one]) for one in kept]
        else:
            made.append((group, kept))
    return made


def process_words(states: Sequence[GatewayState]) -> str:
    """Say how the processes of one gateway stand: '3 processes: 2 converged, 1 unreachable'."""
    counts = Counter(str(state.condition) for state in states)
    order = sorted(counts, key=lambda condition: (condition == "converged", -counts[condition], condition))
    if len(order) == 1:
        return f"{len(states)} processes, all {order[0]}"
    said = ", ".join(f"{counts[condition]} {condition}" for condition in order)
    return f"{len(states)} processes: {said}"
