"""Nodes that gateways took out because requests to them failed: which, why, since and until when.

Pure; instants are the gateways' own. Prevents: a node that answers its metrics page and no request, shown
as fresh and idle, and a node that is out at one gateway of ten called gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from control.queries_policy import GatewayState
from dashboard import words
from dashboard.times import Zone, age
from dashboard.viewmodels import NODE_PAGE, NOT_HEARD, Notice
from fleet.messages import NodeOut

#: Why, in words; the names are those of `fleet.ejection.Because`.
BECAUSE: dict[str, str] = {
    "consecutive_failures": "requests in a row failed",
    "success_rate": "more of its requests failed than the others'",
    "failed_trial": "it failed again on trial",
}

#: What a gateway's status calls them. A node apart for another reason is not shown as ejected.
APART = ("ejected", "on trial")


@dataclass(frozen=True, slots=True)
class Ejected:
    """One node and the gateways that keep it out; those where it is only on trial are `trying`."""

    node: str
    out_at: tuple[str, ...]
    trying: tuple[str, ...]
    first: NodeOut  # the one that is out longest, or on trial longest
    until_s: float  # when the first of them tries it again

    @property
    def is_out(self) -> bool:
        """Whether any gateway sends it nothing now."""
        return bool(self.out_at)


def ejected(gateways: Sequence[GatewayState], at: datetime) -> list[Ejected]:
    """Return the nodes that are out or on trial at a gateway that was heard, those out first."""
    by_node: dict[str, list[tuple[str, NodeOut]]] = {}
    for g in gateways:
        for node, out in g.nodes_out.items() if g.condition not in NOT_HEARD else ():
            if g.nodes_apart.get(node) in APART:  # else it is drained, or does not answer: that is said
                by_node.setdefault(node, []).append((g.name, out))
    now_s = at.timestamp()
    found = [_one(node, outs, now_s) for node, outs in by_node.items()]
    return sorted(found, key=lambda e: (not e.is_out, e.node))


def _one(node: str, outs: Sequence[tuple[str, NodeOut]], now_s: float) -> Ejected:
    still = [(name, out) for name, out in outs if out.until_s > now_s]
    kept = still or list(outs)
    return Ejected(
        node,
        tuple(sorted(name for name, _ in still)),
        tuple(sorted(name for name, out in outs if out.until_s <= now_s)),
        min((out for _, out in kept), key=lambda out: out.since_s),
        min(out.until_s for _, out in kept),
    )


def remarks(gateways: Sequence[GatewayState], at: datetime) -> dict[str, str]:
    """Return a cell's words by node: "ejected by gw-1", "on trial"."""
    return {
        one.node: f"ejected by {_briefly(one.out_at)}" if one.is_out else "on trial"
        for one in ejected(gateways, at)
    }


def sentence(found: Ejected, at: datetime, zone: Zone) -> tuple[str, str]:
    """Return what is so and why; and since when, and when it is tried again."""
    why = BECAUSE.get(found.first.because, found.first.because.replace("_", " "))
    since = f"since {zone.since(datetime.fromtimestamp(found.first.since_s, UTC), at)}"
    if not found.is_out:
        return f"Node {found.node} is on trial at {_named(found.trying)}: {why}", f"out {since}"
    back = datetime.fromtimestamp(found.until_s, UTC)
    left = age((back - at).total_seconds())
    return (
        f"Node {found.node} gets no requests from {_named(found.out_at)}: {why}",
        f"{since}; tried again in {left}, {zone.clock(back)}",
    )


def notices(found: Sequence[Ejected], at: datetime, zone: Zone) -> list[Notice]:
    """Return one line a node for what needs attention."""
    lines: list[Notice] = []
    for one in found:
        said, since = sentence(one, at, zone)
        word = "ejected" if one.is_out else "on trial"
        lines.append(Notice("watch", word, said, since, NODE_PAGE, one.node, {"node": one.node}))
    return lines


def of_node(node: str, gateways: Sequence[GatewayState], at: datetime, zone: Zone) -> list[str]:
    """Return what to say on a node's own page; nothing where it is in."""
    told = [sentence(one, at, zone) for one in ejected(gateways, at) if one.node == node]
    return [words.plain(f"{said}, {since}.") for said, since in told]


def _briefly(gateways: Sequence[str]) -> str:
    return gateways[0] if len(gateways) == 1 else words.plural(len(gateways), "gateway")


def _named(gateways: Sequence[str]) -> str:
    if len(gateways) <= 2:
        return " and ".join(gateways)
    return words.plural(len(gateways), "gateway")
