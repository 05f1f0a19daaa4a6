"""The controller's step that looks nodes up: which sources are due, asking them, carrying answers out.

Intervals are seconds on the monotonic clock. Sources are asked beside each other, outside transactions;
each answer is applied in a transaction of its own, under the lease. Prevents: one source that hangs
holding up the others, and two controllers that both act on an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from sqlalchemy import select

from control import lease
from control.database import session_scope
from control.deps import Deps
from control.discovery_apply import apply_answer, note_failure
from control.discovery_kubernetes import EndpointWatch
from control.discovery_lookups import (
    DEADLINE_S,
    FileMark,
    file_mark,
    look_at_address,
    look_in_dns,
    look_in_file,
)
from control.discovery_settings import (
    AnySettings,
    DnsSettings,
    FileSettings,
    HttpSettings,
    KubernetesSettings,
    PrometheusSettings,
    checked_settings,
)
from control.discovery_targets import Answer
from control.promsource_discovery import look_at_targets
from control.tables import DiscoverySourceRow
from fleet.clock import Clock
from fleet.errors import FleetError, Unavailable

#: How often sources are looked through for due ones; a changed file is read within this time.
TICK_S = 2.0
_TOGETHER = 16


@dataclass(frozen=True, slots=True)
class Source:
    """A source as registered: what to ask, and how often."""

    name: str
    kind: str
    settings: dict[str, Any]
    interval_s: float


@dataclass(slots=True)
class _Looked:
    """When a source was asked last, and what its file was then."""

    settings: dict[str, Any]
    at_s: float
    mark: FileMark | None


@dataclass(slots=True)
class Lookups:
    """Asks sources. Owned by one event loop; close it to end the watches."""

    http: aiohttp.ClientSession
    clock: Clock
    _watches: dict[str, EndpointWatch] = field(default_factory=dict[str, EndpointWatch])

    async def look(self, source: Source) -> Answer:
        """Return the source's answer. Raises FleetError with what is wrong, for people."""
        settings = checked_settings(source.kind, source.settings)
        try:
            async with asyncio.timeout(2 * DEADLINE_S):
                return await self._look(source, settings)
        except TimeoutError:
            raise Unavailable(f"no answer within {2 * DEADLINE_S:g} s") from None

    async def _look(self, source: Source, settings: AnySettings) -> Answer:
        match settings:
            case FileSettings():
                return await look_in_file(settings)
            case HttpSettings():
                return await look_at_address(self.http, self.clock, settings, interval_s=source.interval_s)
            case DnsSettings():
                return await look_in_dns(settings)
            case PrometheusSettings():
                return await look_at_targets(self.http, self.clock, settings)
            case KubernetesSettings():
                return await (await self._watch(source.name, settings)).answer()

    async def _watch(self, name: str, settings: KubernetesSettings) -> EndpointWatch:
        known = self._watches.get(name)
        if known is not None and known.settings == settings:
            return known
        if known is not None:
            await known.close()
        self._watches[name] = EndpointWatch(settings, self.http, self.clock)
        return self._watches[name]

    async def keep_only(self, names: Collection[str]) -> None:
        """End the watches of sources that are gone."""
        for name in [name for name in self._watches if name not in names]:
            await self._watches.pop(name).close()

    async def close(self) -> None:
        """End all watches."""
        await self.keep_only(())


class Discovery:
    """The step. Remembers when each source was asked, so that its interval holds."""

    def __init__(self, deps: Deps, http: aiohttp.ClientSession, *, patience_s: float = TICK_S) -> None:
        self._deps = deps
        self.lookups = Lookups(http, deps.clock)
        self._patience_s = patience_s
        self._looked: dict[str, _Looked] = {}
        self._running: dict[str, asyncio.Task[str]] = {}
        self._said: dict[str, str] = {}
        self._slots = asyncio.Semaphore(_TOGETHER)

    async def tick(self) -> str:
        """Ask the sources that are due; return what is new at those that have answered, for the log.

        A source that takes longer than the patience goes on by itself and holds no other up.
        """
        epoch = self._deps.leadership.current(self._deps.clock)
        if epoch is None:
            return ""
        sources = await asyncio.to_thread(self._sources)
        names = {source.name for source in sources}
        self._looked = {name: looked for name, looked in self._looked.items() if name in names}
        self._said = {name: said for name, said in self._said.items() if name in names}
        await self.lookups.keep_only(names | self._running.keys())
        for source in sources:
            if source.name not in self._running and await self._is_due(source):
                self._running[source.name] = asyncio.create_task(self._one(source, epoch))
        if not self._running:
            return ""
        done, _ = await asyncio.wait(self._running.values(), timeout=self._patience_s)
        news: list[str] = []
        for name in [name for name, task in self._running.items() if task in done]:
            said = self._running.pop(name).result()
            if said != self._said.get(name):
                news.append(f"{name}: {said}")
            self._said[name] = said
        return "; ".join(news)

    async def close(self) -> None:
        """Stop what still runs."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()
        await self.lookups.close()

    def _sources(self) -> list[Source]:
        d = DiscoverySourceRow
        with session_scope(self._deps.engine) as session:
            rows = session.execute(
                select(d.name, d.kind, d.settings, d.interval_s).where(d.state == "active").order_by(d.name)
            )
            return [Source(*row) for row in rows]

    async def _is_due(self, source: Source) -> bool:
        now_s, known = self._deps.clock.monotonic_s(), self._looked.get(source.name)
        mark = None
        if source.kind == "file":
            mark = await asyncio.to_thread(file_mark, str(source.settings.get("path", "")))
        is_due = (
            known is None
            or known.settings != source.settings
            or now_s - known.at_s >= source.interval_s
            or mark != known.mark
        )
        if is_due:
            self._looked[source.name] = _Looked(source.settings, now_s, mark)
        return is_due

    async def _one(self, source: Source, epoch: int) -> str:
        async with self._slots:
            try:
                answer: Answer | FleetError = await self.lookups.look(source)
            except FleetError as problem:
                answer = problem
        return await asyncio.to_thread(self._record, source, answer, epoch)

    def _record(self, source: Source, answer: Answer | FleetError, epoch: int) -> str:
        now = self._deps.clock.now()
        with session_scope(self._deps.engine) as session:
            lease.require(session, epoch, role=self._deps.leadership.role)
            row = session.get(DiscoverySourceRow, source.name, with_for_update=True)
            if row is None or row.state != "active" or row.settings != source.settings:
                return "changed meanwhile"
            if isinstance(answer, FleetError):
                note_failure(row, answer, now)
                return f"failed: {answer.message}"
            return str(apply_answer(session, row, answer, now))
