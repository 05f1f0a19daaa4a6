"""The calls of the API about estimates: compare, measured inputs, simulations in the background.

The same documents and bounds as pages and command line; traffic is bundled or kept, never a file of the
server. Prevents: a script whose comparison differs from the page's.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from control.api_calls import Asked, Body, Call, Later
from control.comparison_documents import read_comparison
from control.comparison_report import as_json
from control.estimate_inputs import Measured, measured_inputs
from control.estimate_runs import Precision, RunView, cancel, enqueue, run_of, runs
from control.estimate_traces import stored_traffic, traces
from control.tokens import Scope
from fleet.errors import InvalidInput


class CompareBody(Body):
    """A comparison document, as the pages' addresses hold it."""

    document: dict[str, Any]


class StartBody(Body):
    """A comparison document, the strategy of it to simulate, and how precisely."""

    document: dict[str, Any]
    strategy: str
    replications: int = 3
    seed: int = 1
    slots: int | None = None  # 36, or the engine's
    squared_cv: float = 0.6
    gate_days: int | None = None  # so many days through the real gate instead
    kv_tokens: int | None = None  # of a node behind the gate
    engine: str | None = None  # profile of the engines behind the gate; none: service times are drawn


def _compare(asked: Asked) -> Later:
    ready = read_comparison(asked.body.document, lambda name: stored_traffic(asked.session, name))
    return Later(lambda: as_json(ready, ready.run()))


def _inputs(asked: Asked) -> dict[str, Any]:
    found = measured_inputs(asked.session, asked.now)
    return {
        "inputs": [asdict(one) for one in found if isinstance(one, Measured)],
        "not_measured": [asdict(one) for one in found if not isinstance(one, Measured)],
    }


def _traces(asked: Asked) -> dict[str, Any]:
    return {"traces": [asdict(one) for one in traces(asked.session)]}


def _runs(asked: Asked) -> dict[str, Any]:
    return {"runs": [_run_json(one) for one in runs(asked.session)]}


def _run_json(run: RunView) -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in asdict(run).items()
    }


def _number(asked: Asked) -> int:
    text = asked.path["run"]
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidInput(f"the run is {text[:20]!r}", field="run", hint="Give its number")
    return int(text)


def _run(asked: Asked) -> dict[str, Any]:
    return _run_json(run_of(asked.session, _number(asked)))


def _start(asked: Asked) -> dict[str, Any]:
    body: StartBody = asked.body
    ready = read_comparison(body.document, lambda name: stored_traffic(asked.session, name))
    precision = Precision(
        body.replications,
        body.seed,
        body.slots,
        body.squared_cv,
        body.gate_days,
        body.kv_tokens,
        body.engine,
    )
    run = enqueue(asked.session, ready, body.strategy, precision, actor=asked.actor, now=asked.now)
    return _run_json(run_of(asked.session, run))


def _cancel(asked: Asked) -> dict[str, Any]:
    run = _number(asked)
    cancel(asked.session, run, actor=asked.actor, now=asked.now)
    return _run_json(run_of(asked.session, run))


_READ, _WRITE = Scope.STATUS_READ, Scope.FLEET_WRITE
_RUN = "/api/v1/estimates/runs/{run}"

CALLS: tuple[Call, ...] = (
    Call(
        "POST",
        "/api/v1/estimates/compare",
        "Compare up to six strategies on one traffic",
        _compare,
        CompareBody,
        reads=_READ,
        writes=_READ,
    ),
    Call("GET", "/api/v1/estimates/inputs", "Inputs as the fleet measured them", _inputs, reads=_READ),
    Call("GET", "/api/v1/estimates/traces", "Kept traffic, newest first", _traces, reads=_READ),
    Call("GET", "/api/v1/estimates/runs", "Simulations, newest first", _runs, reads=_READ),
    Call("GET", _RUN, "One simulation with the months it has finished", _run, reads=_READ),
    Call(
        "POST",
        "/api/v1/estimates/runs",
        "Ask for the simulation of every request of a strategy's months",
        _start,
        StartBody,
        201,
        writes=_WRITE,
    ),
    Call(
        "POST",
        f"{_RUN}/cancel",
        "End a simulation",
        _cancel,
        writes=_WRITE,
    ),
)
