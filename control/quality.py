"""Which findings stand, since when: each round's findings made into intervals with a beginning and an end.

Pure but for the memory of what stands. Times are those of rounds (UTC). A source that gave no page is
judged for that alone: what was wrong with its pages before stays as it was, unseen. A finding ends when
rounds that could have shown it did not, for as long as its kind takes to be sure. Prevents: a fault that
opens and closes every round, one that vanishes because its node fell silent, and a hostile page that
fills the record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from control.assess import Verdict
from control.fleet_facts import FleetFacts
from control.rounds import GatewayResult, NodeResult, Round
from control.sample_store import plain_text
from fleet.health_reading import Health
from fleet.quality_kinds import Finding, Kind
from fleet.readings import Reason

#: (scope, source, engine, metric, kind): what makes two findings the same.
Key = tuple[str, str, str, str, Kind]

NODE, GATEWAY, CONTROLLER = "node", "gateway", "controller"
#: Rounds without it before a finding ends. Events are over when they are not repeated.
HOLD_ROUNDS = 3.0
_HOLD = {
    Kind.NO_PAGE: 1.5,
    Kind.RESTART: 0.5,
    Kind.RESET_HIDDEN: 0.5,
    Kind.GAP: 0.5,
    Kind.ROUNDS_MISSED: 0.5,
    Kind.ROUNDS_DROPPED: 0.5,
}
#: Beginnings kept of one source in an hour; more are an attack or a broken exporter.
OPENINGS_MAX = 120
LATE_ROUND_MIN_S = 2.0
NAME_CHARS = 120
DETAIL_CHARS = 400
#: Rounds over which gateways are held against engines, and the share they must have counted of them.
BYPASS_ROUNDS = 6
BYPASS_SHARE = 0.9
BYPASS_MIN = 20


@dataclass(frozen=True, slots=True)
class Standing:
    """One finding that stands, or stood until `seen`."""

    scope: str
    source: str
    finding: Finding
    since: datetime
    seen: datetime  # the last round that showed it

    @property
    def key(self) -> Key:
        f = self.finding
        return self.scope, self.source, f.engine, f.metric, f.kind


@dataclass(frozen=True, slots=True)
class RoundQuality:
    """What one round leaves in the record: everything that stands, and the ends of what does not."""

    at: datetime
    standing: tuple[Standing, ...]
    ended: tuple[Standing, ...] = ()


@dataclass(slots=True)
class _Source:
    """What stands about one source, and when its findings began, so that there cannot be too many."""

    scope: str
    name: str
    standing: dict[Key, Standing] = field(default_factory=dict[Key, Standing])
    openings: deque[datetime] = field(default_factory=lambda: deque(maxlen=OPENINGS_MAX + 1))

    def update(
        self, findings: Iterable[Finding], round_: Round, judges: Callable[[Kind], bool]
    ) -> list[Standing]:
        """Bring the findings up to date; return those that ended. `judges`: kinds looked at."""
        at, left_out = round_.at, 0
        for finding in map(_fit, findings):
            seen = Standing(self.scope, self.name, finding, at, at)
            if seen.key not in self.standing and not self._may_open(at):
                left_out += 1
            else:
                self._note(seen)
        if left_out:
            said = f"{left_out} findings began in this round beyond {OPENINGS_MAX} an hour"
            self._note(Standing(self.scope, self.name, Finding(Kind.TOO_MANY, detail=said), at, at))
        ended: list[Standing] = []
        for key, standing in list(self.standing.items()):
            hold_s = _HOLD.get(key[4], HOLD_ROUNDS) * round_.period_s
            if judges(key[4]) and (at - standing.seen).total_seconds() > hold_s:
                ended.append(self.standing.pop(key))
        return ended

    def _note(self, seen: Standing) -> None:
        before = self.standing.get(seen.key, seen)
        self.standing[seen.key] = replace(seen, since=before.since)

    def _may_open(self, at: datetime) -> bool:
        while self.openings and self.openings[0] <= at - timedelta(hours=1):
            self.openings.popleft()
        if len(self.openings) >= OPENINGS_MAX:
            return False
        self.openings.append(at)
        return True


class QualityBook:
    """What stands now. Owned by whoever assesses rounds, one call at a time."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, str], _Source] = {}
        self._last_at: datetime | None = None
        self._dropped: float = 0.0
        self._counted: deque[tuple[int, int] | None] = deque(maxlen=BYPASS_ROUNDS)

    def refill(self, standing: Iterable[Standing], now: datetime) -> None:
        """Go on with what another process left open: it counts as seen now."""
        for each in standing:
            self._source(each.scope, each.source).standing.setdefault(each.key, replace(each, seen=now))

    def _source(self, scope: str, name: str) -> _Source:
        return self._sources.setdefault((scope, name), _Source(scope, name))

    def take(
        self, round_: Round, facts: FleetFacts, *, verdicts: Sequence[Verdict] = (), dropped: float = 0.0
    ) -> RoundQuality:
        """Take a round; return what stands after it.

        `verdicts` are those of the round, `dropped` the rounds lost so far, a count that rises.
        """
        ended: list[Standing] = []
        nodes = {node.name for node in facts.nodes}
        gateways = {gateway.name for gateway in facts.gateways}
        known = {NODE: nodes, GATEWAY: gateways, CONTROLLER: {""}}
        for key in [key for key in self._sources if key[1] not in known[key[0]]]:
            ended += self._sources.pop(key).standing.values()
        healths = {verdict.name: verdict.health for verdict in verdicts if verdict.scope == "node"}
        for result in round_.nodes:
            if result.node in nodes:
                unknown = _unknown(healths.get(result.node))
                ended += self._judge(NODE, result.node, result, round_, unknown)
        for result in round_.gateways:
            if result.gateway in gateways:
                ended += self._judge(GATEWAY, result.gateway, result, round_, [])
        bypass = self._bypass(round_, facts)
        own = [*self._own(round_, dropped), *(bypass or ())]
        is_counted = bypass is not None
        ended += self._source(CONTROLLER, "").update(
            own, round_, lambda kind: is_counted or kind is not Kind.GATEWAY_BYPASSED
        )
        self._last_at = round_.at
        standing = tuple(each for source in self._sources.values() for each in source.standing.values())
        return RoundQuality(round_.at, standing, tuple(ended))

    def _judge(
        self,
        scope: str,
        source: str,
        result: NodeResult | GatewayResult,
        round_: Round,
        unknown: Sequence[Finding],
    ) -> list[Standing]:
        if result.reason is None:
            if isinstance(result, NodeResult) and not (result.samples or result.findings or result.pages):
                return []  # its source has no newer page: nothing to judge
            found = (*result.findings, *_lost_parts(result), *unknown)
            return self._source(scope, source).update(found, round_, lambda _: True)
        no_page = Finding(Kind.NO_PAGE, metric=result.reason.value, detail=no_page_said(result))
        return self._source(scope, source).update([no_page], round_, lambda kind: kind is Kind.NO_PAGE)

    def _own(self, round_: Round, dropped: float) -> Iterable[Finding]:
        """Return what is wrong with our own rounds."""
        late_s = max(round_.lag_s, round_.duration_s - round_.period_s)
        if late_s > max(LATE_ROUND_MIN_S, round_.period_s / 4):
            said = f"started {round_.lag_s:.1f} s late and took {round_.duration_s:.1f} s"
            yield Finding(Kind.ROUND_LATE, detail=said)
        if self._last_at is not None:
            missed = (round_.at - self._last_at).total_seconds() / round_.period_s - 1
            if missed >= 0.5:
                said = f"{missed:.0f} rounds after {self._last_at:%H:%M:%S} UTC did not run"
                yield Finding(Kind.ROUNDS_MISSED, detail=said)
        if dropped > self._dropped:
            yield Finding(Kind.ROUNDS_DROPPED, detail=f"{dropped - self._dropped:.0f} rounds were lost")
        self._dropped = dropped

    def _bypass(self, round_: Round, facts: FleetFacts) -> list[Finding] | None:
        """Hold what the gateways sent against what the engines received; None where nobody can tell."""
        if not facts.gateways:
            return []
        flows = [result.flows for result in round_.gateways]
        first_sights = [f.covered_s is None for each in flows for f in each or ()]
        is_whole = len(flows) == len(facts.gateways) and not any(first_sights)
        arrivals = [s.window.arrivals for node in round_.nodes for s in node.samples]
        if not is_whole or any(each is None for each in flows):
            self._counted.append(None)
            return None
        sent = sum(f.offered or 0 for each in flows for f in each or ())
        self._counted.append((sent, sum(n for n in arrivals if n is not None)))
        counted = [each for each in self._counted if each is not None]
        if len(counted) < BYPASS_ROUNDS:
            return None
        sent, reached = (sum(column) for column in zip(*counted, strict=True))
        if reached >= BYPASS_MIN and sent < BYPASS_SHARE * reached - 3.0 * reached**0.5:
            said = f"engines received {reached} requests while the gateways counted {sent}"
            return [Finding(Kind.GATEWAY_BYPASSED, detail=said)]
        return []


def no_page_said(result: NodeResult | GatewayResult) -> str:
    """Return why there is no page, in words."""
    reason = (result.reason or Reason.UNREACHABLE).value.replace("_", " ")
    return f"{reason}: {result.detail}" if result.detail else reason


def _unknown(health: Health | None) -> list[Finding]:
    """Return why a node with fresh samples has no rho, where its pages are not the reason."""
    if health is None or health.is_stale or health.rho.value is not None:
        return []
    said = health.explanation[0] if health.explanation else ""
    kind = Kind.ARRIVALS_UNKNOWN if health.arrival_rate is None else Kind.CAPACITY_UNKNOWN
    return [Finding(kind, detail=said)]


def _lost_parts(result: NodeResult | GatewayResult) -> Iterable[Finding]:
    """Return the pages of a node that gave nothing while another one did."""
    if isinstance(result, NodeResult):
        for page in result.pages:
            if page.reason is not None:
                said = f"{page.url.partition('?')[0]}: {page.reason.value.replace('_', ' ')}, {page.detail}"
                yield Finding(Kind.PART_MISSING, metric=page.kind, detail=said)


def _fit(finding: Finding) -> Finding:
    """Return a finding whose texts the database can hold."""
    return replace(
        finding,
        engine=plain_text(finding.engine, NAME_CHARS) or "",
        metric=plain_text(finding.metric, NAME_CHARS) or "",
        detail=plain_text(finding.detail, DETAIL_CHARS) or "",
    )
