"""What was seen of a control plane and its gateways, as one list of facts in the order they happened.

Simulators, tests over a real Postgres and tests over processes write the same facts, so that one set of
oracles (`tests.oracles.invariants`) judges them all. Times are seconds of the world's own clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Running(NamedTuple):
    """What one gateway runs at a moment. `digest` None: nothing."""

    boot_id: str
    epoch: int
    generation: int
    digest: str | None
    revision: int | None = None


class Arrived(NamedTuple):
    """An assignment reached a gateway, and what it did with it."""

    gateway: str
    sender: str  # a controller, or "by hand"
    epoch: int
    generation: int
    digest: str | None  # None: it could not be read
    answer: str  # "taken", "same", "stale", "invalid"
    before: Running
    after: Running
    has_reason: bool = True  # a refusal was recorded with the field it is about
    is_foreign: bool = False  # it has a field, or a schema, this release does not know


class Levels(NamedTuple):
    """What a gateway holds around a push or a jump of the wall clock: nothing of it may move."""

    gateway: str
    cause: str  # "push", "wall clock"
    tokens_before: Mapping[str, int]  # left in each tenant's bucket
    tokens_after: Mapping[str, int]
    held_before: tuple[object, ...]  # leases and places in the queue
    held_after: tuple[object, ...]


class Booted(NamedTuple):
    """A gateway process began."""

    gateway: str
    kept: Running  # what its disk held, sound; digest None: nothing
    running: Running


class Asked(NamedTuple):
    """A client's request was decided at a gateway."""

    gateway: str
    running: Running
    is_admitted: bool
    rules: frozenset[int]  # revisions by whose rules it was reserved, settled, refunded


class Wrote(NamedTuple):
    """A controller's write was committed."""

    controller: str
    epoch: int  # under which it wrote
    leading_epoch: int  # that led at that moment


class Published(NamedTuple):
    """Somebody asked for a revision after `parent`."""

    parent: int
    number: int | None  # None: refused
    digest: str
    is_explained: bool = True  # a refusal lists what changed meanwhile


class Heard(NamedTuple):
    """A controller got an answer of a gateway, or none."""

    gateway: str
    running: Running | None  # None: silence


class Told(NamedTuple):
    """What operators are shown of a gateway."""

    gateway: str
    is_applied: bool
    digest: str | None
    boot_id: str | None
    has_age: bool = True


class Moved(NamedTuple):
    """A rollout went to another state by itself."""

    revision: int
    before: str
    after: str
    finding: str  # "healthy", "breached", "no_data"
    sample_age_s: float = 0.0
    scrape_s: float = 10.0


class Spread(NamedTuple):
    """Who runs a revision that has not baked."""

    revision: int
    runs: frozenset[str]
    chosen: frozenset[str]  # gateways that were its first stage so far
    given: int  # gateways that are to run it now
    gateways: int


class Shared(NamedTuple):
    """What gateways may use of one quota together, by the clock of who gave it."""

    tenant: str
    quota: int
    parts: tuple[int, ...]
    is_split: bool = False  # the parts are one split of the whole


class Called(NamedTuple):
    """The control plane was asked something, or asked it."""

    at_s: float
    of: str  # who made the call


class Returned(NamedTuple):
    """The control plane is back after an absence."""

    at_s: float
    steady_calls_per_s: float


class Calm(NamedTuple):
    """Faults have ended: from now on everything is reachable."""


class Passed(NamedTuple):
    """A leader finished a pass: what each reachable gateway was to run, and runs."""

    desired: Mapping[str, str | None]
    running: Mapping[str, str | None]


class Reserved(NamedTuple):
    """A reservation began."""

    request_id: str


class Settled(NamedTuple):
    """A reservation ended."""

    request_id: str


class Left(NamedTuple):
    """What a gateway holds when nothing runs any more."""

    in_flight_requests: int
    in_flight_tokens: int


class Recorded(NamedTuple):
    """A change and its line in the record."""

    change: str
    is_changed: bool
    is_recorded: bool


class Bounded(NamedTuple):
    """A document of a size was offered somewhere."""

    bound: str  # "bytes", "tenants", "nodes", ...
    place: str  # "commands", "database", "gateway"
    is_above: bool  # one more than is allowed
    is_accepted: bool


class RolledBack(NamedTuple):
    """Somebody asked for the last good revision, in one call."""

    state: str  # the rollout's before
    wanted: str
    running: Mapping[str, str | None]  # digests at reachable gateways at the end
    seconds: float


class Served(NamedTuple):
    """Traffic of a gateway while all is well (`is_alone` False), or with the control plane gone."""

    gateway: str
    is_alone: bool
    requests: int
    errors: int
    decisions: tuple[Any, ...]


@dataclass
class History:
    """Facts in the order they happened, and how to make them again."""

    name: str = ""  # a seed, a test
    facts: list[object] = field(default_factory=list[object])

    def add(self, fact: object) -> None:
        self.facts.append(fact)

    def of(self, kind: type[T]) -> Iterator[T]:
        """Yield the facts of a kind."""
        return (fact for fact in self.facts if type(fact) is kind)
