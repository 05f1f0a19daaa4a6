"""Nodes that stopped giving metrics while the rounds went on: dead, unreachable or never there.

Times are Unix seconds and seconds. Only nodes that should take work are here; a round that was not made
blames nobody. Prevents: a dead node that a diagnosis over a quarter of an hour never mentions, and the
capacity of a dead node counted as if it still served.
"""

from __future__ import annotations

from fleet.diagnosis_evidence import Cause, Evidence, Finding, Number, QuietNode, Series
from fleet.diagnosis_facts import Facts

#: Missed for this long, a node is silent beyond doubt; below, it may only be late.
SURE_S = 300.0
NAMES_SHOWN = 3


def node_silent(facts: Facts) -> Finding | None:
    """Return the finding on nodes that gave no metrics up to the end of the interval, None without any."""
    quiet = facts.evidence.quiet
    if not quiet:
        return None
    worst = max(quiet, key=lambda n: _age_s(facts.evidence, n))
    age_s = _age_s(facts.evidence, worst)
    known = [n for n in quiet if n.seen_s is not None]
    why = worst.reason or "nobody asked it"
    return Finding(
        Cause.NODE_SILENT,
        0.97 if age_s >= SURE_S else 0.9,
        _title(facts.evidence, quiet),
        f"{worst.node} {_since(worst, age_s)}; the last try: {why}. Whether it serves is not known, and "
        "what gateways still send there may fail. Its capacity counts for as long as it was seen.",
        (
            Number("without metrics", age_s if worst.seen_s is not None else None, "s"),
            Number("rounds without an answer", float(worst.missed), "rounds"),
            Number("last try", why),
            Number("silent nodes", float(len(quiet)), "nodes"),
            Number("silent, seen in the last two days", float(len(known)), "nodes"),
        ),
        "Look whether the host and its server run; until they do, drain it or put it in maintenance",
        f"node:{worst.node}",
        "A drained node gets no new requests, and one in maintenance is in no sum and raises no alarm.",
        tuple(n.node for n in quiet),
        _series(facts, worst),
    )


def _age_s(evidence: Evidence, node: QuietNode) -> float:
    """Return for how long a node has given nothing; one never seen for longer than any other."""
    return float("inf") if node.seen_s is None else max(0.0, evidence.until_s - node.seen_s)


def _since(node: QuietNode, age_s: float) -> str:
    return "never gave metrics" if node.seen_s is None else f"last gave metrics {in_words(age_s)} ago"


def _title(evidence: Evidence, quiet: tuple[QuietNode, ...]) -> str:
    names = ", ".join(n.node for n in quiet[:NAMES_SHOWN])
    more = f" and {len(quiet) - NAMES_SHOWN} more" if len(quiet) > NAMES_SHOWN else ""
    verb = "gives" if len(quiet) == 1 else "give"
    ages = [_age_s(evidence, n) for n in quiet if n.seen_s is not None]
    long = f", for {in_words(max(ages))}" if ages else ", and never did"
    return f"{names}{more} {verb} no metrics{long}"


def in_words(seconds: float) -> str:
    """Return a length of time as people say it: "40 s", "12 min", "3 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _series(facts: Facts, node: QuietNode) -> tuple[Series, ...]:
    """Return what ran on the node until it fell silent, where the interval still saw it."""
    engine = next((e for e in facts.engines if e.evidence.node == node.node), None)
    if engine is None or len(engine.windows) < 2:
        return ()
    return (engine.series("running, until it fell silent", "requests", lambda w: w.running),)
