"""Simulations of every request of a month, as jobs: queued, running, done, cancelled, failed.

Asked for by pages, API and command line; done by `control.estimate_worker`, one at a time. The inputs of a
run are complete and named by their hash, so that the same question is simulated once and its answer found
again. Prevents: a page that waits for minutes, and a month that has to begin anew after each restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from control import audit
from control.comparison_documents import Comparable, as_params, canonical, read_comparison
from control.roles import Actor, Permission, require
from control.tables import EstimateRunRow, EstimateSnapshotRow
from fleet.comparison import Candidate
from fleet.engine_profile import EngineProfile, profile_named
from fleet.errors import Conflict, InvalidInput, NotFound
from fleet.fluid import BIN_S, DAY_BINS, MONTH_BINS
from fleet.gate_month import GateRun
from fleet.gate_rules import GateRules
from fleet.rate_profiles import RateProfile
from fleet.simulate import EventRun, ServiceModel

DAYS = MONTH_BINS // DAY_BINS
MAX_WAITING = 24
MAX_REPLICATIONS = 20
#: A month of more requests takes a day's arrays past a gigabyte, and minutes each.
MAX_REQUESTS = 300_000_000
#: The real gate decides on some 40,000 a second: a month of the guide's traffic is 31 million.
MAX_GATE_REQUESTS = 100_000_000
#: What of a comparison a run depends on.
_INPUTS = (
    "traffic", "mean_rps", "mu", "price", "reserved_price", "tokens_in", "tokens_out", "slo_wait_s", "tiers"
)  # fmt: skip
#: What of it only the gate heeds.
_GATE_INPUTS = ("weights", "tenants")
#: Slots of a node whose engine is not given: the guide's, at 3 requests/s of 12 s.
USUAL_SLOTS = 36


@dataclass(frozen=True, slots=True)
class Precision:
    """How a month is simulated: seeds from `seed` on, slots of a node, spread of service times.

    With `gate_days` so many days go through the real gate, whose nodes hold `kv_tokens` (None: plenty, or
    the engine's). With an `engine`, nodes are engines of that profile; None of `slots` means its own.
    """

    replications: int = 3
    seed: int = 1
    slots: int | None = None
    squared_cv: float = 0.6
    gate_days: int | None = None
    kv_tokens: int | None = None
    engine: str | None = None

    def __post_init__(self) -> None:
        bounds: list[tuple[str, float, float, float]] = [
            ("replications", self.replications, 1, MAX_REPLICATIONS),
            ("seed", self.seed, 0, 2**31),
            ("squared_cv", self.squared_cv, 0, 100),
        ]
        if self.slots is not None:
            bounds.append(("slots", self.slots, 1, 100_000))
        if self.gate_days is not None:
            bounds.append(("gate_days", self.gate_days, 1, DAYS))
        if self.kv_tokens is not None:
            bounds.append(("kv_tokens", self.kv_tokens, 1, 10**12))
        for name, value, low, high in bounds:
            if isinstance(value, bool) or not low <= value <= high:
                raise InvalidInput(
                    f"{name} is {value!r}"[:200], field=name, hint=f"Give {low:g} to {high:g}"
                )
        if self.engine is not None and self.gate_days is None:
            raise InvalidInput(
                "engines serve only behind the real gate", field="engine", hint="Give gate_days too"
            )
        self.profile()

    def profile(self) -> EngineProfile | None:
        """Return the engine that serves; None: service times are drawn. Raises NotFound."""
        return None if self.engine is None else profile_named(self.engine)

    def node_slots(self) -> int:
        """Return a node's slots: as asked for, or the engine's, or the usual ones."""
        profile = self.profile()
        return self.slots or (USUAL_SLOTS if profile is None else profile.max_num_seqs)


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as people see it. `months` holds the finished ones by seed."""

    id: int
    sha256: str
    strategy: str
    state: str
    days_done: int
    days: int
    months: dict[str, dict[str, Any]]
    error: str
    cancel_requested: bool
    spec: dict[str, Any]
    created_at: datetime
    created_by: str
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def is_open(self) -> bool:
        """Say whether it waits or runs."""
        return self.state in ("queued", "running")

    def left_s(self, now: datetime) -> float | None:
        """Return about how long it still takes at the pace so far; None before a day is done."""
        if self.state != "running" or self.started_at is None or not self.days_done:
            return None
        return (now - self.started_at).total_seconds() / self.days_done * (self.days - self.days_done)


def run_spec(ready: Comparable, candidate: Candidate, precision: Precision) -> dict[str, Any]:
    """Return everything a run depends on."""
    spec = {
        **{key: ready.document[key] for key in _INPUTS},
        "strategy": as_params(candidate),
        "replications": precision.replications,
        "seed": precision.seed,
        "slots": precision.node_slots(),
        "cv2": precision.squared_cv,
    }
    if precision.gate_days is not None:
        profile = precision.profile()
        gate: dict[str, Any] = {"days": precision.gate_days, "kv_tokens": precision.kv_tokens}
        if profile is not None:  # every cost of it, so that another release's profile is another question
            gate["engine"] = asdict(profile)
        spec |= {"gate": gate, **{key: ready.document[key] for key in _GATE_INPUTS}}
    return spec


def days_of(spec: Mapping[str, Any]) -> int:
    """Return the days of one replication."""
    return int(spec["gate"]["days"]) if "gate" in spec else DAYS


def spec_hash(spec: Mapping[str, Any]) -> str:
    """Return the name of a run's inputs. What somebody calls the strategy is none of them."""
    nameless = {key: value for key, value in spec["strategy"].items() if key != "name"}
    return hashlib.sha256(canonical({**spec, "strategy": nameless})).hexdigest()


def enqueue(
    session: Session,
    ready: Comparable,
    name: str,
    precision: Precision,
    *,
    actor: Actor,
    now: datetime,
) -> int:
    """Ask for the simulation of the strategy called `name`; return its run's number.

    A run of the same inputs that waits, runs or is done is returned instead. Raises Forbidden, InvalidInput
    for a month that is too large, Conflict when too many wait.
    """
    require(actor, Permission.RUN_ESTIMATES)
    candidate = next((one for one in ready.candidates if one.name == name), None)
    if candidate is None:
        raise InvalidInput(f"no strategy is called {name[:60]!r}", field="strategy")
    month = ready.profile.month()
    requests = float(month.sum()) * 10
    if requests > MAX_REQUESTS:
        raise InvalidInput(
            f"the month has {requests:,.0f} requests",
            field="/mean_rps",
            hint=f"At most {MAX_REQUESTS:,}: scale the traffic and the nodes' mu down by the same factor",
        )
    spec = run_spec(ready, candidate, precision)
    _check_gate(spec, month)
    simulation(spec, month, ready, precision.seed)  # what cannot run is refused now
    r, sha256 = EstimateRunRow, spec_hash(spec)
    live = select(r.id).where(r.sha256 == sha256, r.state.in_(("queued", "running", "done")))
    found = session.scalars(live).one_or_none()
    if found is not None:
        return found
    waiting = select(func.count()).select_from(r).where(r.state.in_(("queued", "running")))
    if session.scalars(waiting).one() >= MAX_WAITING:
        raise Conflict(f"{MAX_WAITING} simulations wait already", hint="Cancel some, or wait")
    row = EstimateRunRow(
        sha256=sha256,
        strategy=candidate.name,
        spec=spec,
        state="queued",
        days=days_of(spec) * precision.replications,
        created_at=now,
        created_by=actor.name,
    )
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:  # somebody asked for the same at the same moment
        return session.scalars(live).one()
    audit.append(session, actor, "estimate.run", f"run {row.id}", "", {"sha256": sha256}, now)
    return row.id


def _check_gate(spec: Mapping[str, Any], month: NDArray[np.float64]) -> None:
    if "gate" not in spec:
        return
    requests = float(month[: days_of(spec) * DAY_BINS].sum()) * BIN_S * spec["replications"]
    if requests > MAX_GATE_REQUESTS:
        raise InvalidInput(
            f"{requests:,.0f} requests would go through the real gate",
            field="gate_days",
            hint=f"At most {MAX_GATE_REQUESTS:,}: fewer days or replications, or a smaller traffic",
        )


def simulation(
    spec: Mapping[str, Any], month: NDArray[np.float64], ready: Comparable, seed: int
) -> EventRun | GateRun:
    """Return the simulation of one month of a run. Raises InvalidInput for what cannot be simulated."""
    name = spec["strategy"]["name"]
    events = EventRun(
        month[: days_of(spec) * DAY_BINS],
        next(one.strategy for one in ready.candidates if one.name == name),
        ready.node,
        ServiceModel(spec["slots"], spec["cv2"]),
        seed,
        spec["slo_wait_s"],
        keeps_waits=False,
    )
    if "gate" not in spec:
        return events
    engine = spec["gate"].get("engine")
    rules = GateRules(
        ready.flows,
        ready.tier_weights,
        spec["gate"]["kv_tokens"],
        None if engine is None else EngineProfile(**engine),
    )
    return GateRun(events, rules)


def comparable(spec: Mapping[str, Any], traffic: Callable[[str], RateProfile]) -> Comparable:
    """Return a run's inputs as a comparison of its one strategy."""
    known = {key: spec[key] for key in (*_INPUTS, *_GATE_INPUTS) if key in spec}
    document = known | {"strategies": [spec["strategy"]]}
    return read_comparison(document, traffic)


def cancel(session: Session, run: int, *, actor: Actor, now: datetime) -> None:
    """End a run: one that waits at once, one that runs at the end of its slice. NotFound, Conflict."""
    require(actor, Permission.RUN_ESTIMATES)
    row = session.get(EstimateRunRow, run, with_for_update=True)
    if row is None:
        raise NotFound(f"there is no run {run}", hint="`rhodeck estimate runs`")
    if row.state == "queued":
        row.state, row.finished_at = "cancelled", now
        session.execute(delete(EstimateSnapshotRow).where(EstimateSnapshotRow.run == run))
    elif row.state == "running":
        row.cancel_requested = True
    else:
        raise Conflict(f"run {run} is {row.state} already", hint="Nothing is left to cancel")
    audit.append(session, actor, "estimate.cancel", f"run {run}", "", {}, now)


def runs(session: Session, *, limit: int = 50) -> list[RunView]:
    """Return the newest runs, newest first."""
    rows = session.scalars(select(EstimateRunRow).order_by(EstimateRunRow.id.desc()).limit(limit))
    return [_view(row) for row in rows]


def run_of(session: Session, run: int) -> RunView:
    """Return one run. Raises NotFound."""
    row = session.get(EstimateRunRow, run)
    if row is None:
        raise NotFound(f"there is no run {run}", hint="`rhodeck estimate runs`")
    return _view(row)


def newest_by_hash(session: Session, hashes: list[str]) -> dict[str, RunView]:
    """Return the newest run of each of these inputs; those nobody asked for are absent."""
    r = EstimateRunRow
    rows = session.scalars(select(r).where(r.sha256.in_(hashes)).order_by(r.id))
    return {row.sha256: _view(row) for row in rows}


def _view(row: EstimateRunRow) -> RunView:
    return RunView(
        row.id,
        row.sha256,
        row.strategy,
        row.state,
        row.days_done,
        row.days,
        dict(row.months),
        row.error,
        row.cancel_requested,
        row.spec,
        row.created_at,
        row.created_by,
        row.started_at,
        row.finished_at,
    )


def has_work(session: Session, stale_before: datetime) -> bool:
    """Say whether a run waits, or one runs whose worker has not been heard since `stale_before`."""
    r = EstimateRunRow
    waits = (r.state == "queued") | ((r.state == "running") & (r.beat_at < stale_before))
    return session.scalars(select(r.id).where(waits).limit(1)).first() is not None


def forget_old(session: Session, keep: int = 1_000) -> int:
    """Remove all but the newest ended runs; return how many went."""
    r = EstimateRunRow
    ended = r.state.in_(("done", "cancelled", "failed"))
    last = session.scalars(select(r.id).where(ended).order_by(r.id.desc()).offset(keep).limit(1)).first()
    if last is None:
        return 0
    gone = session.scalars(delete(r).where(ended, r.id <= last).returning(r.id)).all()
    return len(gone)
