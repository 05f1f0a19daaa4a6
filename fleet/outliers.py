"""Which nodes are taken out because requests to them fail, for how long, and how they come back.

Owns the counts per node; the rules are `fleet.ejection`'s. Times are monotonic seconds, ratios 0..1, counts
requests. A request fails when the node refuses it, breaks off, answers 5xx or not in time. Prevents: a node
that fails every request at once looking idle and drawing all traffic, a fault in front of all nodes
emptying the fleet, and a node that is still broken getting its full share back at once.
Source: Envoy, "Outlier detection" (consecutive gateway failures, success rate, ejection times) and "Panic
threshold".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Final

from fleet.ejection import Because, Ejection, Stage

#: A node this close to the others' mean success rate is no outlier, however equal the others are.
LEAST_GAP_RATIO: Final = 0.05
#: A node is called slow above this times the median of the nodes; it is shown and nothing more.
SLOW_RATIO: Final = 2.0
_PACE_WEIGHT: Final = 0.1  # of the newest answer in a node's mean pace
_PACE_ANSWERS: Final = 20  # from that many on a pace says something


@dataclass(slots=True)
class Record:
    """What requests to one node came to."""

    failures_in_row: int = 0
    worked: int = 0  # in this interval
    failed: int = 0
    answered_s: float = float("-inf")  # when it last answered a request
    out_since_s: float = float("-inf")
    out_until_s: float = float("-inf")
    because: Because | None = None  # why it was taken out last
    times_out: int = 0  # doubles the next time out; falls by one with each interval in service
    trials_left: int = 0  # answers until it is let in wholly
    pace_s: float = 0.0  # mean seconds a token, exponentially weighted
    answers: int = 0
    is_slow: bool = False

    def stage(self, now_s: float) -> Stage:
        """Return whether it takes requests at `now_s`."""
        if now_s < self.out_until_s:
            return Stage.OUT
        return Stage.TRIAL if self.trials_left else Stage.IN


class Outliers:
    """The records of all nodes of one gateway."""

    def __init__(self, rules: Ejection | None = None) -> None:
        self._rules = rules or Ejection()
        self._records: dict[str, Record] = {}
        self._groups: tuple[frozenset[str], ...] = ()
        self._pools: tuple[frozenset[str], ...] = ()  # without the one of all nodes
        #: Says whether a node takes no work for a reason that is not known here.
        self.is_closed: Callable[[str], bool] = lambda _: False
        self._due_s: float | None = None
        self.ejections: Counter[tuple[str, str]] = Counter()  # by node and `Because`
        self.failures: Counter[str] = Counter()  # by node
        self.excused: Counter[str] = Counter()  # by node: failures that are the body's fault
        self.withheld = 0  # not taken out because too many were out
        self.panics: Counter[str] = Counter()  # by node: tried before its time

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        return iter(self._records.items())

    @property
    def rules(self) -> Ejection:
        """Return the rules in force."""
        return self._rules

    def apply(
        self,
        rules: Ejection,
        names: Iterable[str],
        groups: Iterable[Collection[str]] = (),
        *,
        now_s: float,
    ) -> None:
        """Take in the rules and the nodes there are. Who is out stays out as long as was said.

        But where all others of a group left, the one that would come back first is on trial at once.
        `groups`: nodes that can stand in for each other, such as those of one model; each keeps the bounds.
        """
        self._rules = rules
        wanted = set(names)
        pools = {frozenset(group) & wanted for group in groups}
        self._groups = tuple({frozenset(wanted), *pools})
        self._pools = tuple(pools) or self._groups
        for name in self._records.keys() - wanted:
            self.forget(name)
        for name in wanted - self._records.keys():
            self._records[name] = Record()
        for group in self._groups:
            records = [self._records[name] for name in sorted(group)]
            if records and all(one.stage(now_s) is Stage.OUT for one in records):
                min(records, key=lambda one: one.out_until_s).out_until_s = now_s

    def forget(self, name: str) -> None:
        """Drop a node: it left, or another process stands at its place."""
        self._records.pop(name, None)
        self.failures.pop(name, None)
        self.excused.pop(name, None)
        self.panics.pop(name, None)
        for key in [key for key in self.ejections if key[0] == name]:
            del self.ejections[key]

    def stage(self, name: str, now_s: float) -> Stage:
        """Return whether a node takes requests; one that is not known does."""
        record = self._records.get(name)
        return Stage.IN if record is None else record.stage(now_s)

    def is_in_panic(self, group: Collection[str], now_s: float) -> bool:
        """Say whether so few nodes of a group take requests that ejection is passed over in it."""
        serving = sum(
            self._records[one].stage(now_s) is not Stage.OUT and not self.is_closed(one) for one in group
        )
        return serving < self._rules.panic_threshold_ratio * len(group)

    def panicking(self, now_s: float) -> int:
        """Return how many groups of nodes that serve the same requests are in panic."""
        return sum(self.is_in_panic(pool, now_s) for pool in self._pools)

    def tried_early(self, name: str, now_s: float) -> bool:
        """Put a node that is out on trial if a group of its is in panic; say whether that was done."""
        record = self._records.get(name)
        if record is None or record.stage(now_s) is not Stage.OUT:
            return False
        if not any(name in pool and self.is_in_panic(pool, now_s) for pool in self._pools):
            return False
        record.out_until_s = now_s
        self.panics[name] += 1
        return True

    def most_requests(self, name: str, now_s: float) -> int | None:
        """Return how many requests a node may have at once: on trial a few; None: as many as fit."""
        return self._rules.trial_requests if self.stage(name, now_s) is Stage.TRIAL else None

    def worked(self, name: str, now_s: float, seconds_per_token: float | None = None) -> list[str]:
        """Count an answer. Return who is taken out by it: the interval may have ended."""
        record = self._records.get(name)
        if record is None:
            return []
        record.failures_in_row = 0
        record.answered_s = now_s
        record.worked += 1
        if record.trials_left and now_s >= record.out_until_s:
            record.trials_left -= 1
        if seconds_per_token is not None:
            record.answers += 1
            weight = max(_PACE_WEIGHT, 1 / record.answers)
            record.pace_s += weight * (seconds_per_token - record.pace_s)
        return self._judge(now_s)

    def has_answered_lately(self, name: str, now_s: float) -> bool:
        """Say whether a node answered a request within the last interval."""
        record = self._records.get(name)
        return record is not None and now_s - record.answered_s <= self._rules.interval_s

    def excuse(self, names: Iterable[str]) -> None:
        """Note that nodes failed a request by no fault of theirs."""
        self.excused.update(name for name in names if name in self._records)

    def failed(self, name: str, now_s: float) -> list[str]:
        """Count a failure. Return who is taken out by it."""
        record = self._records.get(name)
        if record is None:
            return []
        self.failures[name] += 1
        record.failed += 1
        record.failures_in_row += 1
        out: list[str] = []
        stage = record.stage(now_s)
        if stage is Stage.TRIAL:
            out = self._take_out(name, record, Because.TRIAL, now_s)
        elif stage is Stage.IN and record.failures_in_row >= self._rules.consecutive_failures:
            out = self._take_out(name, record, Because.CONSECUTIVE, now_s)
        return out + self._judge(now_s)

    def _take_out(self, name: str, record: Record, because: Because, now_s: float) -> list[str]:
        if not all(self._can_spare(name, group, now_s) for group in self._groups if name in group):
            self.withheld += 1
            return []
        rules = self._rules
        doublings = min(record.times_out, 40)
        record.out_since_s, record.because = now_s, because
        record.out_until_s = now_s + min(rules.base_s * 2**doublings, max(rules.max_s, rules.base_s))
        record.times_out += 1
        record.failures_in_row = 0
        record.trials_left = rules.trial_requests
        self.ejections[name, because.value] += 1
        return [name]

    def _can_spare(self, name: str, group: frozenset[str], now_s: float) -> bool:
        """Say whether the others of a group may do without a node: few are out, and one takes requests.

        Without others there is no doing without it, whatever it fails.
        """
        out = {one for one in group if self._records[one].stage(now_s) is Stage.OUT}
        most = max(int(self._rules.max_ejected_ratio * len(group)), 1)
        return len(out) < most and any(not self.is_closed(one) for one in group - out - {name})

    def _judge(self, now_s: float) -> list[str]:
        """At the end of an interval compare success rates, then begin anew."""
        if self._due_s is None:
            self._due_s = now_s + self._rules.interval_s
        if now_s < self._due_s:
            return []
        self._due_s = now_s + self._rules.interval_s
        out: list[str] = []
        for name in self._below_the_others(now_s):
            out += self._take_out(name, self._records[name], Because.SUCCESS_RATE, now_s)
        self._mark_slow()
        for record in self._records.values():
            record.worked = record.failed = 0
            if record.times_out and now_s - record.out_until_s >= self._rules.interval_s:
                record.times_out -= 1
        return out

    def _below_the_others(self, now_s: float) -> list[str]:
        """Return the nodes whose success rate is an outlier, worst first."""
        rules = self._rules
        rates = {
            name: record.worked / (record.worked + record.failed)
            for name, record in self._records.items()
            if record.worked + record.failed >= rules.min_requests and record.stage(now_s) is Stage.IN
        }
        if len(rates) < rules.min_nodes:
            return []
        mean = sum(rates.values()) / len(rates)
        deviation = sqrt(sum((rate - mean) ** 2 for rate in rates.values()) / len(rates))
        bound = mean - max(rules.stdev_factor * deviation, LEAST_GAP_RATIO)
        return sorted((name for name, rate in rates.items() if rate < bound), key=rates.__getitem__)

    def _mark_slow(self) -> None:
        paces = sorted(one.pace_s for one in self._records.values() if one.answers >= _PACE_ANSWERS)
        median = paces[len(paces) // 2] if len(paces) >= 3 else None
        for record in self._records.values():
            record.is_slow = (
                median is not None
                and record.answers >= _PACE_ANSWERS
                and record.pace_s > SLOW_RATIO * median
            )
