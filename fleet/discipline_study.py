"""Disciplines and engines compared on the same traffic by the same simulator.

Every case is the real gate before simulated engines (`fleet.gate_replay`); only one thing differs inside a
comparison. Nothing is refused but where full queues are compared: what a discipline does shows as waiting.
Times seconds, rates per second. Prevents: a discipline recommended from another system's benchmark, and a
gain quoted without who pays it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fleet.discipline_results import CaseResult, ComparisonResult, notices
from fleet.engine_profile import EngineProfile
from fleet.errors import InvalidInput
from fleet.gate_replay import Arrival, Progress, ReplayResult, replay
from fleet.outcomes import Tier
from fleet.policy import Policy, parse
from fleet.replay_outcomes import Objectives, groups, overall, weighted_quantile
from fleet.replay_servers import ReplayNode

#: A node of the usual planning example: 12 ms a step, 0.1 ms a sequence, 12 us a prompt token.
STUDY_ENGINE = EngineProfile(
    name="study",
    alpha_s=0.012,
    beta_s=0.0001,
    gamma_s=12e-6,
    max_num_seqs=128,
    max_num_batched_tokens=8192,
    num_gpu_blocks=20_001,
    max_model_len=131_072,
)
#: Tokens of advantage a second of waiting gives. Higher protects the large, lower the small.
STUDY_AGING = 500.0
#: Sequences of a static batch, and of the engine it is compared with.
STATIC_BATCH = 64
SMALL_STEP_TOKENS = 2048
#: Enough that filling and emptying the batches hardly counts, few enough to be served within ten minutes.
SATURATING_REQUESTS = 4_000
#: Requests that may wait for each node where full queues are compared: some seconds of its work.
QUEUED_A_NODE = 24
_EVERYONE = "everyone"
_WEIGHTS = (70, 25, 5)
NO_LIMIT = 10**12


@dataclass(frozen=True, slots=True)
class Case:
    """One way to serve the traffic."""

    name: str
    what: str  # one sentence
    policy: Policy
    nodes: tuple[ReplayNode, ...]
    is_one_flow: bool = False  # all tenants and tiers wait in one line
    is_saturated: bool = False  # the first 4,000 arrive at once: what is compared is throughput


@dataclass(frozen=True, slots=True)
class Comparison:
    """Cases that differ in one thing. The first is what the others are compared with."""

    key: str
    question: str
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class StudySettings:
    """What all comparisons share."""

    engine: EngineProfile = STUDY_ENGINE
    nodes: int = 4
    aging_rate: float = STUDY_AGING
    seed: int = 1
    objectives: Objectives = field(default_factory=Objectives)

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= 64:
            raise InvalidInput(f"{self.nodes} nodes", field="nodes", hint="1 to 64")


def study_policy(
    tenants: Sequence[str],
    *,
    order: str = "fifo",
    aging_rate: float = STUDY_AGING,
    long_share: float | None = None,
    long_tokens: int = 8_000,
    kv_target_ratio: float = 0.85,
    quantile: float = 0.95,
    engine_priorities: tuple[int, int, int] = (0, 0, 0),
    timeout_s: float = 600.0,
    tokens_per_minute: int = NO_LIMIT,
    most_waiting: int | None = None,
    has_own_parts: bool = False,
) -> Policy:
    """Return a policy whose queues wait up to `timeout_s`, without quotas but
    `tokens_per_minute`, of which ten seconds' worth may come at once.

    `long_share` bounds what requests above `long_tokens` may hold of each node's KV budget. `most_waiting`
    bounds all queues together; with `has_own_parts` each tier's instead, divided by weight.
    """
    parts = [
        most_waiting * weight // 100 if most_waiting and has_own_parts else 100_000 for weight in _WEIGHTS
    ]
    limits = {
        "tokens_per_minute": tokens_per_minute,
        "burst_tokens": max(1, tokens_per_minute // 6),
        "max_in_flight_tokens": NO_LIMIT,
        "max_concurrent_requests": 1_000_000,
    }
    quota = {"tier": Tier.BATCH.value, "allowed_tiers": [tier.value for tier in Tier]} | limits
    classes = (
        []
        if long_share is None
        else [
            {"name": "usual", "max_tokens": long_tokens, "kv_share_ratio": 1.0},
            {"name": "long", "max_tokens": 10**8, "kv_share_ratio": long_share},
        ]
    )
    return parse(
        {
            "tiers": {
                tier.value: {
                    "weight": weight,
                    "queue_timeout_s": timeout_s,
                    "max_queued_requests": max(1, part),
                    "engine_priority": priority,
                }
                for tier, weight, part, priority in zip(
                    Tier, _WEIGHTS, parts, engine_priorities, strict=True
                )
            },
            "tenants": dict.fromkeys((*tenants, _EVERYONE), quota),
            "admission": {
                "order": order,
                "aging_rate": aging_rate,
                "size_classes": classes,
                "kv_target_ratio": kv_target_ratio,
                "output_reservation_quantile": quantile,
                "max_waiting_requests": None if has_own_parts else most_waiting,
            },
        }
    )


def _nodes(engine: EngineProfile, count: int, **bounds: int | None) -> tuple[ReplayNode, ...]:
    seats = bounds.get("max_num_seqs", engine.max_num_seqs)
    capacity = bounds.get("kv_capacity_tokens")
    return tuple(
        ReplayNode(f"n{n}", engine, max_num_seqs=seats, kv_capacity_tokens=capacity)
        for n in range(1, count + 1)
    )


def orders(settings: StudySettings, tenants: Sequence[str]) -> Comparison:
    """Return the queue disciplines: one line, shortest first, fair, both, with a cap on long contexts."""
    nodes = _nodes(settings.engine, settings.nodes)
    aging = settings.aging_rate
    plain = study_policy(tenants)
    short_first = study_policy(tenants, order="sjf_aging", aging_rate=aging)
    capped = study_policy(tenants, order="sjf_aging", aging_rate=aging, long_share=0.35)
    return Comparison(
        "order",
        "Who goes first?",
        (
            Case("FIFO", "one line, in order of arrival", plain, nodes, is_one_flow=True),
            Case(
                "SJF + aging",
                f"one line, fewest tokens first; a second of waiting is worth {aging:g} tokens",
                short_first,
                nodes,
                is_one_flow=True,
            ),
            Case("fair", "tiers 70/25/5, tenants by weight, each in order of arrival", plain, nodes),
            Case("fair + SJF", "tiers, tenants, then fewest tokens first: the default", short_first, nodes),
            Case("fair + SJF + cap", "and over 8,000 tokens at most 35 % of a node", capped, nodes),
        ),
    )  # fmt: skip


def padded(engine: EngineProfile) -> EngineProfile:
    """Return the engine with static batches: an ended sequence is padded until the last one ends."""
    whole_s = engine.step_time_s(engine.max_num_seqs)
    return replace(
        engine, batching="static", alpha_s=whole_s, beta_s=0.0, knee_seqs=None, beta_past_knee_s=None
    )


def batching(settings: StudySettings, tenants: Sequence[str]) -> Comparison:
    """Return static against continuous batching, everything waiting from the start."""
    engine = replace(settings.engine, max_num_seqs=STATIC_BATCH)
    policy = study_policy(tenants)
    static = _nodes(padded(engine), settings.nodes, max_num_seqs=2 * STATIC_BATCH)
    return Comparison(
        "batching",
        "When does the next request enter the batch?",
        (
            Case("static", "when the whole batch has ended", policy, static, True, True),
            Case(
                "continuous",
                "as soon as one sequence has ended",
                policy,
                _nodes(engine, settings.nodes),
                True,
                True,
            ),
        ),
    )


def chunking(settings: StudySettings, tenants: Sequence[str]) -> Comparison:
    """Return prompts computed whole against in chunks of two sizes."""
    policy = study_policy(tenants, order="sjf_aging", aging_rate=settings.aging_rate)

    def case(name: str, what: str, **changes: object) -> Case:
        return Case(name, what, policy, _nodes(replace(settings.engine, **changes), settings.nodes))  # pyright: ignore[reportArgumentType]

    return Comparison(
        "chunking",
        "How much of a prompt goes into one step?",
        (
            case("whole prompts", "all of it: whoever decodes waits", chunked_prefill=False),
            case("chunks of 8192", "up to max-num-batched-tokens 8192"),
            case(
                f"chunks of {SMALL_STEP_TOKENS}",
                f"up to max-num-batched-tokens {SMALL_STEP_TOKENS}",
                max_num_batched_tokens=max(SMALL_STEP_TOKENS, settings.engine.max_num_seqs),
            ),
        ),
    )


def pools(settings: StudySettings, tenants: Sequence[str]) -> Comparison:
    """Return one pool against prefill and decode pools on as many nodes, at least two."""
    count = max(2, settings.nodes)
    policy = study_policy(tenants, order="sjf_aging", aging_rate=settings.aging_rate)
    together = _nodes(settings.engine, count)
    cases = [Case("one pool", f"{count} nodes compute prompts and decode", policy, together)]
    for prefill in range(1, min(count, 3)):
        apart = tuple(replace(node, is_prefill_only=place < prefill) for place, node in enumerate(together))
        words = f"{prefill} of {count} nodes compute prompts, {count - prefill} decode"
        cases.append(Case(f"{prefill} prefill + {count - prefill} decode", words, policy, apart))
    return Comparison("pools", "Do prompts have nodes of their own?", tuple(cases))


def preemption(settings: StudySettings, tenants: Sequence[str]) -> Comparison:
    """Return KV kept within its budget against oversubscribed, without and with priorities."""
    small = replace(settings.engine, num_gpu_blocks=max(2, settings.engine.num_gpu_blocks * 2 // 5))
    ranked = replace(small, scheduling_policy="priority")
    aging = settings.aging_rate
    careful = study_policy(tenants, order="sjf_aging", aging_rate=aging)
    pushed = study_policy(tenants, order="sjf_aging", aging_rate=aging, kv_target_ratio=0.98, quantile=0.5)
    tiered = study_policy(
        tenants,
        order="sjf_aging",
        aging_rate=aging,
        kv_target_ratio=0.98,
        quantile=0.5,
        engine_priorities=(0, 1, 2),
    )
    more = round(1.6 * small.kv_capacity_tokens)
    many = {"max_num_seqs": None, "kv_capacity_tokens": more}
    return Comparison(
        "preemption",
        "What if more is admitted than the KV cache holds? (40 % of the cache)",
        (
            Case("within budget", "the gate reserves p95 of the answer, 85 % of the cache", careful,
                 _nodes(small, settings.nodes)),
            Case("oversubscribed", "half as much again is admitted; the engine preempts the newest", pushed,
                 _nodes(small, settings.nodes, **many)),
            Case("oversubscribed, by priority", "and the engine preempts the lowest tier first", tiered,
                 _nodes(ranked, settings.nodes, **many)),
        ),
    )  # fmt: skip


def displacement(settings: StudySettings, tenants: Sequence[str]) -> Comparison:
    """Return who gives way when as many wait as may: whoever comes, the full tier, or the lowest one."""
    nodes = _nodes(settings.engine, settings.nodes)
    most = QUEUED_A_NODE * settings.nodes
    shared = study_policy(tenants, order="sjf_aging", aging_rate=settings.aging_rate, most_waiting=most)
    apart = study_policy(
        tenants, order="sjf_aging", aging_rate=settings.aging_rate, most_waiting=most, has_own_parts=True
    )
    return Comparison(
        "displacement",
        f"Who gives way when {most} requests wait and no more may?",
        (
            Case("whoever comes", "one line: the newcomer is refused, whatever its tier", shared, nodes,
                 is_one_flow=True),
            Case("a part each", "each tier has its part of the queue, by weight; a full one refuses", apart,
                 nodes),
            Case("interactive displaces", "one bound: an interactive request takes the place of the newest "
                 "queued of the lowest tier", shared, nodes),
        ),
    )  # fmt: skip


#: Every comparison, by the name that the command line takes.
COMPARISONS: dict[str, Callable[[StudySettings, Sequence[str]], Comparison]] = {
    "order": orders,
    "batching": batching,
    "chunking": chunking,
    "pools": pools,
    "preemption": preemption,
    "displacement": displacement,
}


def run_comparison(
    comparison: Comparison,
    arrivals: Sequence[Arrival],
    settings: StudySettings,
    on_progress: Progress | None = None,
) -> ComparisonResult | None:
    """Return what every case does to `arrivals`; None when `on_progress` (cases done, of all) said stop.

    Raises InvalidInput without arrivals.
    """
    if not arrivals:
        raise InvalidInput("there is no traffic to compare on", field="arrivals")
    found: list[CaseResult] = []
    for case in comparison.cases:
        if on_progress is not None and not on_progress(len(found), len(comparison.cases)):
            return None
        found.append(_run(case, arrivals, settings))
    if on_progress is not None:
        on_progress(len(found), len(comparison.cases))
    return ComparisonResult(comparison.key, comparison.question, tuple(found), notices(found))


def _run(case: Case, arrivals: Sequence[Arrival], settings: StudySettings) -> CaseResult:
    arrivals = arrivals[:SATURATING_REQUESTS] if case.is_saturated else arrivals
    result = replay(case.policy, [_as_sent(case, one) for one in arrivals], case.nodes, seed=settings.seed)
    shown = replace(result, arrivals=arrivals, tiers=[one.request.tier for one in arrivals])
    return _summary(case, shown, settings.objectives)


def _as_sent(case: Case, arrival: Arrival) -> Arrival:
    request = arrival.request
    if case.is_one_flow:
        request = request.asked_as(request.request_id, _EVERYONE, Tier.BATCH)
    return replace(arrival, at_s=0.0 if case.is_saturated else arrival.at_s, request=request)


def _summary(case: Case, result: ReplayResult, objectives: Objectives) -> CaseResult:
    arrivals = result.arrivals
    began_s = 0.0 if case.is_saturated else arrivals[0].at_s
    ran_s = result.ended_at_s - began_s
    return CaseResult(
        name=case.name,
        what=case.what,
        all=overall(result, objectives),
        by_class=groups(result, lambda place: arrivals[place].request.endpoint, objectives),
        by_tenant=groups(result, lambda place: arrivals[place].request.tenant, objectives),
        by_tier=groups(result, lambda place: str(arrivals[place].request.tier), objectives),
        tokens_per_s=result.output_tokens / ran_s if ran_s > 0 else 0.0,
        gap_p50_s=weighted_quantile(result.gaps_s, 0.5),
        gap_p99_s=weighted_quantile(result.gaps_s, 0.99),
        gap_p999_s=weighted_quantile(result.gaps_s, 0.999),
        gap_max_s=max((gap for gap, _ in result.gaps_s), default=None),
        preemptions=result.preemptions,
        is_saturated=case.is_saturated,
    )
