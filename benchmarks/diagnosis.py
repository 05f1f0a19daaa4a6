"""How often the diagnosis is right: a confusion table, precision and recall over seeded incidents.

Each incident runs engines in virtual time; the diagnosis sees their pages alone. A cause that must be found
and is counts as right; one that is named and neither must be found nor is present by construction counts
as wrong. Thresholds were set on seeds below 10,000; report on seeds from there on. Prevents: a diagnosis
that is only as good as the five cases it was drawn on.

    python -m benchmarks.diagnosis [--first-seed 10000] [--each 8] [--pairs 24] [--processes 2]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.incident_evidence import evidence_of
from fleet.clock import SystemClock
from fleet.diagnosis import diagnose
from fleet.diagnosis_evidence import Cause, Kind
from simfleet.incident_makers import MAKERS, make, with_frozen, with_lies
from simfleet.incidents import Incident

#: Causes that a second trouble can be laid over.
BASES = ("concurrency_cap", "token_budget", "kv_oversubscription", "tenant_crowding", "priority_ignored")
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one incident was, and what was said of it."""

    kind: str
    seed: int
    truth: frozenset[Cause]
    also: frozenset[Cause]
    named: tuple[Cause, ...]
    verdict: Kind

    @property
    def wrong(self) -> set[Cause]:
        """Causes named that are not there."""
        return set(self.named) - self.truth - self.also

    @property
    def missed(self) -> set[Cause]:
        return set(self.truth) - set(self.named)


def pair(number: int, seed: int) -> Incident:
    """Return an incident with two causes."""
    rng = random.Random(f"pair/{number}/{seed}")
    base = make(BASES[number % len(BASES)], seed)
    return (with_frozen if number % 2 else with_lies)(rng, base)


def judge(job: tuple[str, int]) -> Outcome:
    """Run and diagnose one incident: (kind or "pair:N", seed)."""
    kind, seed = job
    incident = pair(int(kind.removeprefix("pair:")), seed) if kind.startswith("pair:") else make(kind, seed)
    verdict = diagnose(evidence_of(incident))
    named = tuple(dict.fromkeys(finding.cause for finding in verdict.findings))
    return Outcome(incident.name, seed, incident.causes, incident.also, named, verdict.kind)


def jobs(first_seed: int, each: int, pairs: int, kinds: Sequence[str] = ()) -> list[tuple[str, int]]:
    """Return `each` incidents of every kind and `pairs` with two causes; healthy ones twice as often."""
    found: list[tuple[str, int]] = []
    for kind in kinds or tuple(MAKERS):
        many = 2 * each if kind == "healthy" else each
        found += [(kind, first_seed + n) for n in range(many)]
    return found + [(f"pair:{n}", first_seed + n) for n in range(pairs)]


@dataclass(frozen=True, slots=True)
class Score:
    """Counts of one cause, or of all."""

    right: int
    wrong: int
    missed: int

    @property
    def precision(self) -> float | None:
        return self.right / (self.right + self.wrong) if self.right + self.wrong else None

    @property
    def recall(self) -> float | None:
        return self.right / (self.right + self.missed) if self.right + self.missed else None


def scores(outcomes: Sequence[Outcome]) -> dict[str, Score]:
    """Return the score of each cause, and of all together as "all"."""
    right: Counter[Cause] = Counter()
    wrong: Counter[Cause] = Counter()
    missed: Counter[Cause] = Counter()
    for o in outcomes:
        right.update(o.truth & set(o.named))
        wrong.update(o.wrong)
        missed.update(o.missed)
    found = {cause.value: Score(right[cause], wrong[cause], missed[cause]) for cause in Cause}
    return {"all": Score(right.total(), wrong.total(), missed.total())} | found


def healthy_alarms(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Return (healthy fleets of which something was named, healthy fleets)."""
    calm = [o for o in outcomes if not o.truth]
    return sum(bool(o.named) for o in calm), len(calm)


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the confusion table: a row for each kind of incident, how often each cause was named."""
    kinds = sorted({o.kind for o in outcomes}, key=lambda k: (k.count("+"), k))
    lines = ["incident                                   runs  named (x times)"]
    for kind in kinds:
        chosen = [o for o in outcomes if o.kind == kind]
        named = Counter(cause.value for o in chosen for cause in o.named)
        verdicts = Counter(o.verdict.value for o in chosen)
        words = ", ".join(f"{cause} x {n}" for cause, n in named.most_common()) or "nothing"
        said = "/".join(f"{n} {v}" for v, n in verdicts.most_common())
        lines.append(f"{kind:42} {len(chosen):4}  {words}  [{said}]")
    return "\n".join(lines)


def words_of(outcome: Outcome) -> str:
    """Return what was missed and what was wrongly named."""
    missed, wrong = sorted(outcome.missed), sorted(outcome.wrong)
    return f"missed {', '.join(missed) or 'nothing'}; wrong {', '.join(wrong) or 'nothing'}"


def main() -> None:
    """Run, print the tables, and write results/diagnosis.json when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first-seed", type=int, default=10_000)
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--kinds", nargs="*", default=[])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--at-most-s", type=float, default=float("inf"))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    clock = SystemClock()
    begun_s = clock.monotonic_s()
    work = jobs(args.first_seed, args.each, args.pairs, args.kinds)
    random.Random(args.first_seed).shuffle(work)  # a run that is cut short has some of every kind
    with multiprocessing.Pool(args.processes) as pool:
        outcomes: list[Outcome] = []
        for outcome in pool.imap_unordered(judge, work):
            outcomes.append(outcome)
            if clock.monotonic_s() - begun_s > args.at_most_s:
                break
            if outcome.wrong or outcome.missed:
                print(
                    f"{outcome.kind} seed {outcome.seed}: {words_of(outcome)}", file=sys.stderr, flush=True
                )
    outcomes.sort(key=lambda o: (o.kind, o.seed))
    print(table(outcomes))
    found = scores(outcomes)
    print("\ncause                  right wrong missed  precision  recall")
    for name, s in found.items():
        precision = "-" if s.precision is None else f"{s.precision:.3f}"
        recall = "-" if s.recall is None else f"{s.recall:.3f}"
        print(f"{name:22} {s.right:5} {s.wrong:5} {s.missed:6}  {precision:>9}  {recall:>6}")
    alarms, calm = healthy_alarms(outcomes)
    print(f"\nhealthy fleets with a finding: {alarms} of {calm}")
    for o in outcomes:
        if o.wrong or o.missed:
            print(f"  {o.kind} seed {o.seed}: {words_of(o)}")
    print(f"{len(outcomes)} incidents in {clock.monotonic_s() - begun_s:.0f} s")
    if args.write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "diagnosis.json").write_text(
            json.dumps(_as_json(outcomes, args.first_seed), indent=1) + "\n"
        )


def _as_json(outcomes: Sequence[Outcome], first_seed: int) -> dict[str, object]:
    alarms, calm = healthy_alarms(outcomes)
    return {
        "machine": {"python": platform.python_version(), "processor": platform.machine()},
        "first_seed": first_seed,
        "incidents": len(outcomes),
        "healthy": {"runs": calm, "with_a_finding": alarms},
        "scores": {
            name: {
                "right": s.right,
                "wrong": s.wrong,
                "missed": s.missed,
                "precision": s.precision,
                "recall": s.recall,
            }
            for name, s in scores(outcomes).items()
        },
    }


if __name__ == "__main__":
    main()
