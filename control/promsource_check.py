"""What a source knows: its targets beside our nodes, how old their pages are, how often it scrapes.

Times are seconds. Targets come from `/api/v1/targets` where the server scrapes by itself, else from its
series. Prevents: a node moved to a source under a name the source does not use, and rounds shorter than
the source's own interval, which turn every node stale in turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from urllib.parse import urlsplit

from control.freshness import stale_after_s
from control.promsource import PromClient, PromTarget
from control.promsource_round import LOOKBACK_MIN_S
from control.queries_promsource import NodeSource
from fleet.clock import Clock
from fleet.errors import InvalidInput
from fleet.promql import PULSE, BadAnswer, Pulse, QueryRefused, best, matcher, pulses, selector

_UNFIT = re.compile(r"[^a-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class TargetView:
    """One target of a source and the node it is, if any."""

    instance: str
    node: str | None
    origin: str  # scheme://host:port; "" where the source does not say
    path: str
    health: str  # "up" | "down" | "unknown"
    detail: str
    proposed: str  # a name for a new node

    def named(self, node: str) -> TargetView:
        """Return it as the target of `node`."""
        return replace(self, node=node)

    def as_dict(self) -> dict[str, str | None]:
        """Return it for JSON."""
        return asdict(self)

    def line(self) -> str:
        """Return it as a line of text."""
        node = f"node {self.node}" if self.node is not None else f"no node yet ({self.proposed})"
        return "  ".join(part for part in (self.instance, node, self.health, self.detail) if part)


@dataclass(frozen=True, slots=True)
class Report:
    """What `check` found. Without problems, every node of the source has a page young enough to use."""

    source: str
    targets: tuple[TargetView, ...]
    problems: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return it for JSON."""
        return asdict(self)


async def check_source(
    client: PromClient, wanted: Sequence[NodeSource], clock: Clock, period_s: float
) -> Report:
    """Ask for everything the source scraped lately and compare it with the nodes read from it.

    Raises Unavailable, QueryRefused, BadAnswer, InvalidInput where the source cannot be asked.
    """
    seen = await _seen(client)
    now_s, by_instance = clock.now().timestamp(), {one.instance: one.node for one in wanted}
    targets: list[TargetView] = []
    problems: list[str] = []
    for instance in sorted(seen.keys() | by_instance.keys()):
        found, node = seen.get(instance), by_instance.get(instance)
        pulse = None if found is None else best(found)
        view, problem = _judged(instance, node, pulse, now_s, period_s)
        targets.append(view)
        if node is not None and problem:
            problems.append(f"node {node}: {problem}")
    slowest = max((p.interval_s or 0.0 for found in seen.values() for p in found), default=0.0)
    if slowest >= stale_after_s(period_s):
        problems.append(
            f"it scrapes every {slowest:g} s and rounds are {period_s:g} s: nodes turn stale in between; "
            f"set RHODECK_SCRAPE_PERIOD_S to {slowest:g}"
        )
    return Report(client.settings.name, tuple(targets), tuple(problems))


async def _seen(client: PromClient) -> dict[str, list[Pulse]]:
    names = matcher("__name__", PULSE)
    query = selector([names, *client.settings.matchers], seconds=2.5 * LOOKBACK_MIN_S)
    return pulses(await client.query(query, deadline_s=15.0), client.settings.instance_label)


def _judged(
    instance: str, node: str | None, pulse: Pulse | None, now_s: float, period_s: float
) -> tuple[TargetView, str]:
    """Return a target's view, and what is wrong with it for a node ("" if nothing)."""
    if pulse is None:
        problem = f"the source has no series with instance {instance}"
        return TargetView(instance, node, "", "", "unknown", "not there", proposed_name(instance)), problem
    newest_ms, interval = pulse.newest_ms, pulse.interval_s
    health = "down" if pulse.is_down else "up"
    parts = [] if interval is None else [f"every {interval:g} s"]
    problem = "the source cannot scrape it: up is 0" if pulse.is_down else ""
    if newest_ms is not None:
        age_s = now_s - newest_ms / 1000
        parts.append(f"last page {age_s:.0f} s ago")
        if age_s > stale_after_s(max(period_s, interval or 0.0)):
            problem = problem or f"its newest page is {age_s:.0f} s old"
        if age_s < -5:
            problem = problem or f"its newest page is {-age_s:.0f} s in our future: look at the clocks"
    view = TargetView(instance, node, "", "", health, ", ".join(parts), proposed_name(instance))
    return view, problem


async def list_targets(
    client: PromClient, wanted: Mapping[str, NodeSource], *, name_label: str | None = None
) -> list[TargetView]:
    """Return the source's targets by instance, those of its matchers' job only where it names one.

    Raises as `check_source`. A server that does not scrape lists the instances of its series.
    """
    label = client.settings.instance_label
    nodes = {one.instance: one.node for one in wanted.values() if one.source == client.settings.name}
    try:
        found = await client.targets()
    except (BadAnswer, QueryRefused):
        found = []
    named = [target for target in found if target.labels.get(label)]
    kept = await fitting(client, named, client.settings.matchers)
    if kept:
        return sorted((_view(t, label, nodes, name_label) for t in kept), key=lambda t: t.instance)
    return [
        TargetView(i, nodes.get(i), "", "", "unknown", "from its series", proposed_name(i))
        for i in sorted(await _seen(client))
    ]


def _view(target: PromTarget, label: str, nodes: Mapping[str, str], name_label: str | None) -> TargetView:
    instance = target.labels[label]
    parts = urlsplit(target.scrape_url)
    name = instance
    if name_label is not None:
        name = target.labels.get(name_label) or target.discovered.get(name_label) or ""
        if not name:
            raise InvalidInput(
                f"target {instance} has no label {name_label}",
                hint=f"It has {', '.join(sorted(target.labels))[:300]}",
                field="name_label",
            )
    return TargetView(
        instance=instance,
        node=nodes.get(instance),
        origin=f"{parts.scheme}://{parts.netloc}",
        path=parts.path or "/metrics",
        health=target.health,
        detail=target.last_error,
        proposed=proposed_name(name),
    )


async def fitting(
    client: PromClient, targets: Sequence[PromTarget], matchers: Sequence[str]
) -> list[PromTarget]:
    """Return the targets that finished matchers select, in the order given.

    Where a regular expression is among them the server decides, by the labels of its `up` series: its
    engine needs linear time, Python's may never come back. Raises as `check_source`.
    """
    parsed = [re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', text, re.DOTALL) for text in matchers]
    if any(found is None or found[2].endswith("~") for found in parsed):
        answer = await client.query(selector([matcher("__name__", ["up"]), *matchers]))
        known = {_identity({k: v for k, v in s.labels.items() if k != "__name__"}) for s in answer.series}
        return [target for target in targets if _identity(target.labels) in known]
    exact = [(found[1], found[2] == "!=", _unquoted(found[3])) for found in parsed if found is not None]
    return [
        target
        for target in targets
        if all((target.labels.get(name, "") == value) is not is_not for name, is_not, value in exact)
    ]


def _identity(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)


def proposed_name(text: str) -> str:
    """Return a node name made from a label: lower case, what does not fit becomes '-', at most 63 long."""
    return _UNFIT.sub("-", text.lower()).strip("-._")[:63] or "node"
