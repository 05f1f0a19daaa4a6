"""How nodes stand with this gateway, as metric families.

Times are seconds, counts requests. Labels are names of the assignment's nodes only. Prevents: a node that
was taken out silently, and a slow one that nobody can name.
"""

from __future__ import annotations

from collections.abc import Iterator

from admission.metrics import Family
from fleet.ejection import Stage
from fleet.outliers import Outliers

_PREFIX = "rhodeck_gateway_"


def node_families(outliers: Outliers, now_s: float) -> Iterator[Family]:
    """Yield the families of all nodes; a node whose pace is not known has none."""
    records = list(outliers)
    yield Family(
        _PREFIX + "node_failures_total",
        "Requests a node failed.",
        ("node",),
        {(name,): outliers.failures[name] for name, _ in records},
        "counter",
    )
    yield Family(
        _PREFIX + "node_failures_excused_total",
        "Requests a node failed by no fault of its own: other nodes fail or refuse the same.",
        ("node",),
        {(name,): outliers.excused[name] for name, _ in records},
        "counter",
    )
    yield Family(
        _PREFIX + "node_ejections_total",
        "Times a node was taken out, by reason.",
        ("node", "because"),
        dict(outliers.ejections),
        "counter",
    )
    yield Family(
        _PREFIX + "ejections_withheld_total",
        "Times a node was not taken out because too many were out.",
        (),
        {(): outliers.withheld},
        "counter",
    )
    yield Family(
        _PREFIX + "node_panics_total",
        "Times an ejected node was tried before its time because too few others served.",
        ("node",),
        {(name,): count for name, count in outliers.panics.items()},
        "counter",
    )
    yield Family(
        _PREFIX + "panicking_groups",
        "Groups of nodes that serve the same requests, below the panic threshold.",
        (),
        {(): outliers.panicking(now_s)},
    )
    left = {
        (name,): record.out_until_s - now_s for name, record in records if record.stage(now_s) is Stage.OUT
    }
    yield Family(_PREFIX + "node_ejected_seconds_left", "Until a node is tried again.", ("node",), left)
    trial = {(name,): int(record.stage(now_s) is Stage.TRIAL) for name, record in records}
    yield Family(_PREFIX + "node_trial", "1 while a node takes a few trial requests.", ("node",), trial)
    pace = {(name,): record.pace_s for name, record in records if record.answers}
    yield Family(_PREFIX + "node_seconds_per_token", "Mean pace of a node's answers.", ("node",), pace)
    slow = {(name,): int(record.is_slow) for name, record in records}
    yield Family(_PREFIX + "node_slow", "1 while a node's pace is an outlier; only shown.", ("node",), slow)
