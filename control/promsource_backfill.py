"""History read in from a source: samples of rounds nobody ran, page by page, from where it stopped.

Each step reads `PAGE` of time for all nodes, writes what is missing and moves `done_until` in the last
transaction of the step, so a killed run resumes and a repeated one writes nothing. A stretch of time in
which a node has a sample already, raw or rolled up, is left alone. Times are seconds. Prevents: history
counted twice, direct samples overwritten, and a month read into memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import Session

from control import rollup_due
from control.database import session_scope
from control.page_book import PageBook
from control.partitions import make_partition
from control.promsource import PromClient
from control.promsource_round import sourced_page
from control.queries_promsource import Backfill, NodeSource
from control.rounds import NodeResult, Round
from control.sample_store import EdgeIds, edges_of, write_past
from control.tables import PromBackfillRow, SampleRow
from fleet.clock import Clock
from fleet.errors import Conflict, InvalidInput
from fleet.promql import (
    PULSE,
    UNWANTED,
    Answer,
    PageParts,
    Pulse,
    best,
    matcher,
    pulses,
    selector,
    wanted_names,
)
from fleet.readings import PageState

PAGE = timedelta(minutes=10)
#: Samples wanted in one answer, and series a node may have: they decide how many nodes go in a query.
ANSWER_SAMPLES, NODE_SERIES = 500_000, 600
PULSE_NODES = 100
#: Leave the present to the rounds that are being run and to samples still on their way.
MARGIN = timedelta(minutes=2)
DEADLINE_S = 60.0
#: Overlap of a new sample's time with an old one's that is no overlap, as a share of the new one's.
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Taken:
    """What is there of one node, Unix seconds: (start, end) of samples, (start, width) of rollups."""

    spans: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    buckets: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def covers(self, stamp: float, length: float) -> bool:
        """True if a sample stamped `stamp` over `length` seconds would count any time again.

        A rollup tells which stamps went into it, a sample which seconds it covers.
        """
        if any(start <= stamp < start + width for start, width in self.buckets):
            return True
        begin_s, slack = stamp - length, max(TOLERANCE * length, 0.001)
        return any(
            abs(end - stamp) < 0.001 or (start < stamp - slack and end > begin_s + slack)
            for start, end in self.spans
        )


def begin(
    session: Session,
    source: str,
    *,
    since: datetime,
    until: datetime,
    period_s: float,
    keep_days: int,
    now: datetime,
) -> Backfill:
    """Return the back-fill of this range, begun before and unfinished or new. [since, until) on the grid.

    Raises InvalidInput for a range that is empty, in the future or older than anything is kept.
    """
    if since >= until:
        raise InvalidInput(f"{since} is not before {until}", field="from", hint="--from, then --to")
    if until > now - MARGIN:
        raise InvalidInput(
            f"the end lies within {MARGIN.total_seconds():.0f} s of now or in the future",
            field="to",
            hint="The present is read by the rounds themselves",
        )
    oldest = now - timedelta(days=keep_days)
    if since < oldest:
        raise InvalidInput(
            f"history is kept for {keep_days} days, since {oldest:%Y-%m-%d}",
            field="from",
            hint="Begin later, or raise RHODECK_RETENTION_HOUR_DAYS",
        )
    since, until = _on_grid(since, period_s), _on_grid(until, period_s)
    b = PromBackfillRow
    row = session.scalar(
        select(b).where(b.source == source, b.since == since, b.until == until, b.period_s == period_s)
    )
    if row is None:
        row = b(
            source=source,
            since=since,
            until=until,
            done_until=since,
            period_s=period_s,
            samples=0,
            created_at=now,
            updated_at=now,
        )
        session.add(row)
        session.flush()
    return Backfill(row.id, source, row.since, row.until, row.done_until, row.period_s, row.samples)


def _on_grid(at: datetime, period_s: float) -> datetime:
    return datetime.fromtimestamp(at.timestamp() // period_s * period_s, UTC)


@dataclass(slots=True)
class Backfiller:
    """Reads one back-fill's range. `nodes` are those read from the source, `pools` by node."""

    engine: Engine
    client: PromClient
    clock: Clock
    nodes: Sequence[NodeSource]
    pools: Mapping[str, str]
    _books: dict[str, PageBook] = field(default_factory=dict[str, PageBook])
    _ids: EdgeIds = field(default_factory=EdgeIds)

    async def run(self, job: Backfill, report: Callable[[Backfill], None]) -> Backfill:
        """Read to the end; `report` is told after each page. Raises what the source or database say."""
        while job.done_until < job.until:
            job = await self.step(job)
            report(job)
        return job

    async def step(self, job: Backfill) -> Backfill:
        """Read one page of time and return the back-fill as it then stands.

        Raises Unavailable, QueryRefused, BadAnswer (nothing is marked as done), and Conflict if another
        process moves the same back-fill.
        """
        since = job.done_until
        until = min(since + PAGE, job.until)
        seen = await self._pulses(since, until, job.period_s)
        written = 0
        for chunk in self._chunks(seen, (until - since).total_seconds(), job.period_s):
            answer = await self._series(chunk, since, until, job.period_s)
            results = await asyncio.to_thread(self._cut, chunk, answer, since, until, job.period_s)
            written += await asyncio.to_thread(self._write, results, since, until, job)
        return await asyncio.to_thread(self._advance, job, until, written)

    async def _pulses(self, since: datetime, until: datetime, period_s: float) -> dict[str, Pulse]:
        """Return when each node was scraped in the page and somewhat before it."""
        settings, found = self.client.settings, dict[str, Pulse]()
        seconds = (until - since).total_seconds() + _lead_s(period_s)
        for at in range(0, len(self.nodes), PULSE_NODES):
            instances = [one.instance for one in self.nodes[at : at + PULSE_NODES]]
            query = selector(
                [
                    matcher("__name__", PULSE),
                    *settings.matchers,
                    matcher(settings.instance_label, instances),
                ],
                seconds=seconds,
            )
            answer = await self.client.query(query, at_s=until.timestamp(), deadline_s=DEADLINE_S)
            for instance, replicas in pulses(answer, settings.instance_label).items():
                found[instance] = best(replicas)
        return found

    def _chunks(
        self, seen: Mapping[str, Pulse], length_s: float, period_s: float
    ) -> list[list[tuple[NodeSource, Pulse]]]:
        """Return the nodes that were scraped, as many together as an answer may hold samples of."""
        alive = [
            (one, seen[one.instance])
            for one in self.nodes
            if one.instance in seen and seen[one.instance].scrapes_ms
        ]
        scrapes = max((len(pulse.scrapes_ms) for _, pulse in alive), default=1)
        size = max(1, ANSWER_SAMPLES // (NODE_SERIES * scrapes))
        return [alive[at : at + size] for at in range(0, len(alive), size)]

    async def _series(
        self, chunk: Sequence[tuple[NodeSource, Pulse]], since: datetime, until: datetime, period_s: float
    ) -> Answer:
        settings = self.client.settings
        instances = matcher(settings.instance_label, [one.instance for one, _ in chunk])
        query = selector(
            [wanted_names(), UNWANTED, *settings.matchers, instances],
            seconds=(until - since).total_seconds() + _lead_s(period_s),
        )
        return await self.client.query(query, at_s=until.timestamp(), deadline_s=DEADLINE_S)

    def _cut(
        self,
        chunk: Sequence[tuple[NodeSource, Pulse]],
        answer: Answer,
        since: datetime,
        until: datetime,
        period_s: float,
    ) -> dict[datetime, list[NodeResult]]:
        """Return each round's results: the newest page of the period that ends with its stamp."""
        label = self.client.settings.instance_label
        by_instance: dict[str, PageParts] = {one.instance: PageParts() for one, _ in chunk}
        labels = {one.instance: pulse.labels for one, pulse in chunk}
        for series in answer.series:
            instance = series.labels.get(label, "")
            if instance in by_instance:
                by_instance[instance].add(series, labels[instance])
        rounds: dict[datetime, list[NodeResult]] = {}
        for one, pulse in chunk:
            for at, at_ms in _newest_in_rounds(pulse.scrapes_ms, period_s):
                result = self._page(one, by_instance[one.instance], at_ms, pulse, answer, period_s)
                if result is not None and since < at <= until:
                    rounds.setdefault(at, []).append(result)
        return rounds

    def _page(
        self,
        one: NodeSource,
        parts: PageParts,
        at_ms: int,
        pulse: Pulse,
        answer: Answer,
        period_s: float,
    ) -> NodeResult | None:
        """Take the page of one scrape; None where it was taken before or says nothing."""
        period_s = max(period_s, pulse.interval_s or 0.0)
        book = self._books.setdefault(one.node, PageBook(period_s=period_s))
        last_s, at_s = book.asked_s(one.node), at_ms / 1000
        if last_s is not None and at_s <= last_s:
            return None
        url = f"{one.source}:{one.instance}"
        page = sourced_page(one.source, one.instance, parts, at_ms, answer.warnings)
        if page.state is PageState.NO_ENGINE_SERIES:
            book.remember(one.node, url, page, at_s)
        if page.state is not PageState.OK:
            return None
        taken = book.take(one.node, url, page, at_s, unix_s=at_s)
        return NodeResult(one.node, self.pools.get(one.node, ""), None, taken.samples)

    def _write(
        self,
        rounds: Mapping[datetime, Sequence[NodeResult]],
        since: datetime,
        until: datetime,
        job: Backfill,
    ) -> int:
        """Write what no sample covers yet; return how many rows."""
        names = sorted({result.node for results in rounds.values() for result in results})
        if not names:
            return 0
        whole = [_round(at, results, job.period_s) for at, results in sorted(rounds.items())]
        self._ids.learn(self.engine, {edges for round_ in whole for edges in edges_of(round_)})
        with session_scope(self.engine) as session:
            _locked(session, job)
            taken = occupied(session, names, since, until + timedelta(seconds=job.period_s))
            kept = [
                _round(round_.at, [r for r in round_.nodes if _is_free(r, round_.at, taken)], job.period_s)
                for round_ in whole
            ]
            kept = [round_ for round_ in kept if round_.nodes]
            make_partition(session, "sample", since, until + timedelta(seconds=job.period_s))
            return write_past(session, kept, self._ids)

    def _advance(self, job: Backfill, until: datetime, written: int) -> Backfill:
        with session_scope(self.engine) as session:
            row = _locked(session, job)
            row.done_until, row.updated_at = until, self.clock.now()
            row.samples += written
            return Backfill(row.id, row.source, row.since, row.until, until, row.period_s, row.samples)


def _locked(session: Session, job: Backfill) -> PromBackfillRow:
    """Return the row of a back-fill, locked. Raises Conflict if it is gone or moved by somebody else."""
    row = session.get(PromBackfillRow, job.id, with_for_update=True)
    if row is None or row.done_until != job.done_until:
        raise Conflict(
            f"back-fill {job.id} is being run by another process",
            hint="Let it finish; see `rhodeck prom list`",
        )
    return row


def _lead_s(period_s: float) -> float:
    """Seconds before a page of time in which the page before its first one lies."""
    return 3.0 * max(period_s, 60.0)


def _newest_in_rounds(scrapes_ms: Sequence[int], period_s: float) -> list[tuple[datetime, int]]:
    """Return for each round (stamped with the end of its period) the newest scrape in it."""
    newest: dict[float, int] = {}
    for at_ms in scrapes_ms:
        newest[-(-at_ms // round(period_s * 1000)) * period_s] = at_ms
    return [(datetime.fromtimestamp(at_s, UTC), at_ms) for at_s, at_ms in newest.items()]


def _round(at: datetime, results: Sequence[NodeResult], period_s: float) -> Round:
    return Round(at, period_s, 0.0, 0.0, tuple(results))


def _is_free(result: NodeResult, at: datetime, taken: Mapping[str, Taken]) -> bool:
    length = max((sample.covered_s or 0.0 for sample in result.samples), default=0.0)
    known = taken.get(result.node)
    return known is None or not known.covers(at.timestamp(), length)


def occupied(session: Session, nodes: Sequence[str], since: datetime, until: datetime) -> dict[str, Taken]:
    """Return what is there of each node about [since, until): samples, or rollups of dropped ones."""
    s, found = SampleRow, dict[str, Taken]()
    margin = timedelta(minutes=10)
    rows = session.execute(
        select(s.node, s.at, func.max(s.covered_s))
        .where(s.node.in_(nodes), s.at > since - margin, s.at < until + margin)
        .group_by(s.node, s.at)
    )
    for node, at, covered_s in rows:
        span = (at.timestamp() - (covered_s or 0.0), at.timestamp())
        found.setdefault(node, Taken()).spans.append(span)
    for table, below, width_s in (
        ("engine_minute", "sample", 60.0),
        ("engine_hour", "engine_minute", 3600.0),
    ):
        horizon = rollup_due.kept_since(session, below)
        if horizon is None or horizon <= since:
            continue
        query = text(
            "SELECT name, at, max(last_at), sum(covered_s) "  # noqa: S608 # constants
            f"FROM {table} WHERE scope = 'engine' AND name = ANY(:nodes) "
            "AND at >= :since AND at < :until AND covered_s > 0 GROUP BY name, engine, at"
        )
        span = {
            "nodes": list(nodes),
            "since": since - timedelta(seconds=width_s),
            "until": min(until + margin, horizon),
        }
        for node, at, last_at, covered_s in session.execute(query, span):
            there = found.setdefault(node, Taken())
            there.buckets.append((at.timestamp(), width_s))
            # its first sample may reach back before the bucket, by minutes where one was late
            there.spans.append((last_at.timestamp() - covered_s, last_at.timestamp()))
    return found
