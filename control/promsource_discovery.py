"""Nodes found among the targets of a Prometheus-compatible server, and read from it where that is wished.

Owns the lookup of the discovery kind `prometheus`, and which source its nodes are read from afterwards.
Prevents: a second list of nodes beside the one Prometheus scrapes, and a node moved off a source that a
person chose for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from sqlalchemy.orm import Session

from control import commands_promsource
from control.discovery_settings import PrometheusSettings
from control.discovery_targets import Answer, Found, Remarks, Wanted, read_labels, shown
from control.promsource import PromClient, SourceSettings
from control.promsource_check import fitting
from control.roles import Actor
from control.tables import NodeSourceRow, PromSourceRow
from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.promql import parsed_matchers

DEADLINE_S = 10.0


async def look_at_targets(
    session: aiohttp.ClientSession, clock: Clock, settings: PrometheusSettings
) -> Answer:
    """Return the active targets that fit the matchers, also those that are down: they are nodes too.

    Raises Unavailable, QueryRefused, BadAnswer (a server that does not scrape has no targets).
    """
    source = SourceSettings(
        name="prometheus",
        url=settings.url.rstrip("/").removesuffix("/api/v1"),
        token_file=None if settings.token_file is None else Path(settings.token_file),
        basic_file=None if settings.basic_file is None else Path(settings.basic_file),
        ca_file=None if settings.ca_file is None else Path(settings.ca_file),
    )
    matchers = parsed_matchers(settings.match)
    found: list[Found] = []
    remarks = Remarks()
    client = PromClient(session, clock, source)
    targets = await client.targets(deadline_s=DEADLINE_S)
    for target in await fitting(client, targets, matchers):
        try:
            address = urlsplit(target.scrape_url).netloc
        except ValueError:
            address = ""
        if address:
            found.append(Found(address, read_labels(target.labels)))
        else:
            remarks.add(f"target {shown(target.labels.get('instance', '?'))} has no address")
    return Answer(tuple(found), remarks.all())


def read_from_source(
    session: Session, actor: Actor, settings: dict[str, object], nodes: Iterable[Wanted], now: datetime
) -> list[str]:
    """Read new nodes from the source that `read_from` names; return what could not be done, for people.

    A node that has a source already keeps it, and one that a person scrapes directly again is not asked
    twice: only nodes just added come here.
    """
    source, label = settings.get("read_from"), str(settings.get("instance_label") or "instance")
    if not isinstance(source, str) or not source:
        return []
    if session.get(PromSourceRow, source) is None:
        return [f"no source is called {shown(source)}: new nodes are scraped directly"]
    problems: list[str] = []
    for node in nodes:
        if session.get(NodeSourceRow, node.name) is not None:
            continue
        try:
            with session.begin_nested():
                commands_promsource.read_from(
                    session, actor, node=node.name, source=source, instance=node.labels.get(label), now=now
                )
        except FleetError as problem:
            problems.append(f"{node.name}: {problem.message}")
    return problems
