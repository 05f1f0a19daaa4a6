"""Fleets in trouble: one maker for each cause that a diagnosis can name, different for every seed.

Loads are multiples of what the fleet can finish at the incident's own mix with every slot in use; rates are
requests/s, times seconds, lengths tokens. Prevents: a diagnosis that is right about one overload, the one
its author drew.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

from fleet.diagnosis_evidence import Cause
from fleet.engine_profile import H100_70B_FP8, EngineProfile, throughput_at_batch
from simfleet.incidents import BATCH_PRIORITY, Incident, Lengths, Stream
from simfleet.virtual_fleet import Front, Trouble


def fleet_rate(profile: EngineProfile, nodes: int, prompt: Lengths, output: Lengths) -> float:
    """Return what `nodes` engines finish, requests/s: at full slots, or as many as the KV cache holds."""
    held = prompt.overall_mean + output.overall_mean * (1 + output.cv**2) / 2
    batch = min(profile.max_num_seqs, 0.9 * profile.kv_capacity_tokens / held)
    return nodes * throughput_at_batch(profile, batch, prompt.overall_mean, output.overall_mean)


def profile_of(rng: random.Random, **changes: object) -> EngineProfile:
    """Return an engine that differs from the reference by up to a third in what steps cost."""
    base = H100_70B_FP8
    drawn = replace(
        base,
        alpha_s=base.alpha_s * rng.uniform(0.75, 1.3),
        beta_s=base.beta_s * rng.uniform(0.75, 1.2),
        beta_past_knee_s=(base.beta_past_knee_s or 0.0) * rng.uniform(0.75, 1.15),
        gamma_s=base.gamma_s * rng.uniform(0.75, 1.3),
        num_gpu_blocks=rng.choice([8_193, 12_289, 16_385]),
    )
    return replace(drawn, **changes)  # pyright: ignore[reportArgumentType]


def chat(rng: random.Random) -> tuple[Lengths, Lengths]:
    """Return prompt and output lengths of ordinary chat."""
    return Lengths(rng.uniform(300, 800), 0.6), Lengths(rng.uniform(150, 320), 0.7)


def even(
    tenants: int,
    rate: float,
    prompt: Lengths,
    output: Lengths,
    phases: tuple[tuple[float, float], ...] = (),
) -> tuple[Stream, ...]:
    """Return `tenants` equal streams that add up to `rate`, times each phase's factor."""
    shape = phases or ((math.inf, 1.0),)
    return tuple(
        Stream(
            f"team-{number + 1}",
            prompt,
            output,
            tuple((until_s, factor * rate / tenants) for until_s, factor in shape),
        )
        for number in range(tenants)
    )


def _incident(rng: random.Random, causes: set[Cause], profile: EngineProfile, **rest: object) -> Incident:
    name = "+".join(sorted(cause.value for cause in causes)) or "healthy"
    return Incident(name, frozenset(causes), profile=profile, seed=rng.randrange(2**31), **rest)  # type: ignore[arg-type]


def healthy(rng: random.Random) -> Incident:
    """Any ordinary fleet: 10 to 75 % load, several tenants, a burst now and then."""
    profile, (prompt, output), nodes = profile_of(rng), chat(rng), rng.randint(3, 6)
    load = rng.uniform(0.1, 0.75)
    rate = load * fleet_rate(profile, nodes, prompt, output)
    burst = ((240.0, 1.0), (300.0, min(1.3, 0.85 / load)), (math.inf, 1.0)) if rng.random() < 0.4 else ()
    routing = rng.choice(["least_loaded", "least_loaded", "round_robin"])
    front = Front(routing=routing)  # type: ignore[arg-type]
    streams = even(rng.randint(2, 5), rate, prompt, output, burst)
    return _incident(rng, set(), profile, nodes=nodes, streams=streams, front=front)


def capacity(rng: random.Random) -> Incident:
    """Truly too much work, on every node."""
    profile, (prompt, output), nodes = profile_of(rng), chat(rng), rng.randint(3, 5)
    load = rng.uniform(1.05, 1.35)
    streams = even(rng.randint(2, 4), load * fleet_rate(profile, nodes, prompt, output), prompt, output)
    front = (
        Front(timeout_s=30.0, max_queued=500, node_cap=profile.max_num_seqs)
        if rng.random() < 0.4
        else Front()
    )
    return _incident(rng, {Cause.CAPACITY}, profile, nodes=nodes, streams=streams, front=front)


def concurrency_cap(rng: random.Random) -> Incident:
    """A fixed number of places, in front of the engines or inside, far below what they could hold."""
    prompt, output, nodes = *chat(rng), rng.randint(3, 5)
    if rng.random() < 0.5:
        profile = profile_of(rng)
        cap = nodes * rng.randint(4, 8)
        held = cap / nodes
        rate = nodes * throughput_at_batch(profile, held, prompt.overall_mean, output.overall_mean)
        streams = even(3, rng.uniform(1.0, 1.15) * rate, prompt, output)
        front, order = Front(cap=cap), "sjf_aging"
    else:
        profile = profile_of(rng, max_num_seqs=rng.choice([6, 8, 10, 12]), max_num_batched_tokens=8192)
        streams = even(
            3, rng.uniform(1.0, 1.15) * fleet_rate(profile, nodes, prompt, output), prompt, output
        )
        front, order = Front(), None
    return _incident(
        rng, {Cause.CONCURRENCY_CAP}, profile, nodes=nodes, streams=streams, front=front, order=order
    )


def head_of_line(rng: random.Random) -> Incident:
    """Few long contexts that hold the engines' memory or places; short requests wait behind them."""
    nodes = rng.randint(3, 4)
    profile = profile_of(rng)
    tall = rng.uniform(10_000, 14_000)
    prompt = Lengths(rng.uniform(250, 450), 0.5, tall_share=rng.uniform(0.08, 0.14), tall_mean=tall)
    output = Lengths(rng.uniform(150, 250), 0.6)
    shape = ((120.0, 0.7), (240.0, 1.25), (360.0, 0.7), (480.0, 1.25), (math.inf, 0.7))
    streams = even(
        3, rng.uniform(0.85, 0.95) * fleet_rate(profile, nodes, prompt, output), prompt, output, shape
    )
    return _incident(
        rng,
        {Cause.HEAD_OF_LINE},
        profile,
        nodes=nodes,
        streams=streams,
        also=frozenset({Cause.KV_OVERSUBSCRIPTION, Cause.PREFILL_INTERFERENCE, Cause.TOKEN_BUDGET}),
    )


def fifo_mixed_sizes(rng: random.Random) -> Incident:
    """Bursts that fill every place while one answer in ten is twenty times as long as the others."""
    nodes = rng.randint(3, 4)
    profile = profile_of(rng, scheduling_policy="fcfs", num_gpu_blocks=32_769)
    prompt = Lengths(rng.uniform(150, 300), 0.5)
    output = Lengths(
        rng.uniform(40, 70), 0.5, tall_share=rng.uniform(0.08, 0.14), tall_mean=rng.uniform(900, 1500)
    )
    shape = ((120.0, 0.75), (240.0, 1.35), (360.0, 0.65), (480.0, 1.35), (math.inf, 0.6))
    rate = rng.uniform(0.92, 1.0) * fleet_rate(profile, nodes, prompt, output)
    front = Front(node_cap=profile.max_num_seqs) if rng.random() < 0.5 else Front()
    order = "fifo" if front.node_cap else None
    streams = even(3, rate, prompt, output, shape)
    return _incident(
        rng, {Cause.FIFO_MIXED_SIZES}, profile, nodes=nodes, streams=streams, front=front, order=order
    )


def static_batching(rng: random.Random) -> Incident:
    """Engines that let nobody in until the whole batch has ended."""
    prompt, output, nodes = *chat(rng), rng.randint(3, 4)
    profile = profile_of(rng, batching="static", num_gpu_blocks=16_385)
    output = replace(output, cv=rng.uniform(0.7, 1.0))
    streams = even(3, rng.uniform(0.3, 0.55) * fleet_rate(profile, nodes, prompt, output), prompt, output)
    return _incident(rng, {Cause.STATIC_BATCHING}, profile, nodes=nodes, streams=streams)


def token_budget(rng: random.Random) -> Incident:
    """Whole prompts in a step, a budget far too large for the goal, or one far too small."""
    nodes, choice = rng.randint(3, 4), rng.randrange(3)
    if choice < 2:
        profile = profile_of(rng, chunked_prefill=choice == 1, max_num_batched_tokens=16_384)
        prompt, output = Lengths(rng.uniform(8000, 10_000), 0.3), Lengths(rng.uniform(220, 320), 0.6)
        load = rng.uniform(0.5, 0.65)
    else:
        profile = profile_of(rng, max_num_batched_tokens=rng.choice([128, 192]))
        prompt, output = Lengths(rng.uniform(1200, 1800), 0.4), Lengths(rng.uniform(60, 100), 0.5)
        batch = profile.max_num_batched_tokens * output.mean / (prompt.mean + output.mean)
        prefill = profile.max_num_batched_tokens - batch  # tokens a step that is always full
        rate = nodes * prefill / prompt.mean / profile.step_time_s(round(batch), round(prefill))
        load = rng.uniform(1.0, 1.15) * rate / fleet_rate(profile, nodes, prompt, output)
    streams = even(3, load * fleet_rate(profile, nodes, prompt, output), prompt, output)
    return _incident(rng, {Cause.TOKEN_BUDGET}, profile, nodes=nodes, streams=streams)


def kv_oversubscription(rng: random.Random) -> Incident:
    """More sequences than the KV cache holds: preemption and recomputation."""
    nodes = rng.randint(3, 4)
    profile = profile_of(rng)
    profile = replace(profile, num_gpu_blocks=rng.choice([1025, 1281, 1537]), max_num_seqs=128)
    prompt, output = Lengths(rng.uniform(250, 400), 0.5), Lengths(rng.uniform(350, 500), 0.8)
    streams = even(3, rng.uniform(0.9, 1.0) * fleet_rate(profile, nodes, prompt, output), prompt, output)
    return _incident(
        rng, {Cause.KV_OVERSUBSCRIPTION}, profile, nodes=nodes, streams=streams,
        also=frozenset({Cause.CAPACITY}),
    )  # fmt: skip


def hot_node(rng: random.Random) -> Incident:
    """Sticky sessions: one or two nodes get several times their share."""
    profile, (prompt, output), nodes = profile_of(rng), chat(rng), rng.randint(5, 8)
    hot = rng.randint(1, 2)
    heat, calm = rng.uniform(1.1, 1.4), rng.uniform(0.2, 0.5)  # load of the hot nodes and of the others
    total = hot * heat + (nodes - hot) * calm
    rate = total / nodes * fleet_rate(profile, nodes, prompt, output)
    even_share = hot / nodes  # of the small sessions, which spread over all nodes
    share = (hot * heat / total - even_share) / (1 - even_share)
    streams = tuple(
        replace(stream, heavy_share=share, heavy_sessions=hot) for stream in even(3, rate, prompt, output)
    )
    return _incident(
        rng, {Cause.HOT_NODE}, profile, nodes=nodes, streams=streams, front=Front(routing="sticky")
    )


def tenant_crowding(rng: random.Random) -> Incident:
    """One tenant's evaluation batches push everybody else aside."""
    profile, (prompt, output), nodes = profile_of(rng), chat(rng), rng.randint(3, 4)
    rate = fleet_rate(profile, nodes, prompt, output)
    calm = even(rng.randint(2, 4), rng.uniform(0.3, 0.45) * rate, prompt, output)
    big, long_ = Lengths(prompt.mean * 1.5, 0.4), Lengths(output.mean * 1.5, 0.4)
    burst = rng.uniform(0.85, 1.2) * fleet_rate(profile, nodes, big, long_)
    crowd = Stream(
        "evals", big, long_, ((150.0, 0.0), (210.0, burst), (390.0, 0.0), (450.0, burst), (math.inf, 0.0))
    )
    return _incident(rng, {Cause.TENANT_CROWDING}, profile, nodes=nodes, streams=(*calm, crowd))


def retry_storm(rng: random.Random) -> Incident:
    """A short burst is refused, and the refused come back so fast that the queue never empties."""
    profile, (prompt, output), nodes = profile_of(rng), chat(rng), rng.randint(3, 4)
    rate = rng.uniform(0.55, 0.68) * fleet_rate(profile, nodes, prompt, output)
    bursts = ((90.0, 1.0), (150.0, 2.4), (300.0, 1.0), (360.0, 2.4), (math.inf, 1.0))
    streams = even(3, rate, prompt, output, bursts)
    front = Front(
        node_cap=profile.max_num_seqs,
        max_queued=nodes * 8,
        timeout_s=2.0,
        retry_probability=rng.uniform(0.9, 0.97),
        retry_after_s=rng.uniform(0.5, 1.5),
    )
    return _incident(rng, {Cause.RETRY_STORM}, profile, nodes=nodes, streams=streams, front=front)


def prefill_interference(rng: random.Random) -> Incident:
    """Prompts so many and so long that most of each step goes to them."""
    nodes = rng.randint(3, 4)
    profile = profile_of(rng, max_num_batched_tokens=rng.choice([3072, 4096]), num_gpu_blocks=24_577)
    prompt, output = Lengths(rng.uniform(6000, 8000), 0.3), Lengths(rng.uniform(60, 90), 0.5)
    rate = rng.uniform(0.75, 0.88) * fleet_rate(profile, nodes, prompt, output)
    streams = even(3, rate, prompt, output)
    return _incident(rng, {Cause.PREFILL_INTERFERENCE}, profile, nodes=nodes, streams=streams)


def priority_ignored(rng: random.Random) -> Incident:
    """Interactive and batch tiers in one queue of engines that serve in order of arrival."""
    profile = profile_of(rng, scheduling_policy="fcfs")
    (prompt, output), nodes = chat(rng), rng.randint(3, 4)
    rate = fleet_rate(profile, nodes, prompt, output)
    quick = even(2, rng.uniform(0.24, 0.32) * rate, prompt, output)
    burst = rng.uniform(0.82, 0.95) * rate
    shape = (
        (60.0, 0.3 * burst),
        (180.0, burst),
        (330.0, 0.3 * burst),
        (450.0, burst),
        (math.inf, 0.3 * burst),
    )
    slow = tuple(
        Stream(f"night-{n}", prompt, output, tuple((t, r / 3) for t, r in shape), "batch", BATCH_PRIORITY)
        for n in range(3)
    )
    return _incident(rng, {Cause.PRIORITY_IGNORED}, profile, nodes=nodes, streams=(*quick, *slow))


def engine_frozen(rng: random.Random) -> Incident:
    """A worker stands still while its page answers."""
    calm = healthy(rng)
    begin_s = rng.uniform(150, 400)
    end_s = begin_s + rng.choice([60.0, 120.0, 1e6])
    return replace(
        calm,
        name="engine_frozen",
        causes=frozenset({Cause.ENGINE_FROZEN}),
        front=Front(routing="round_robin"),
        troubles=(Trouble(rng.randrange(calm.nodes), freeze=(begin_s, end_s)),),
    )


def metrics_inconsistent(rng: random.Random) -> Incident:
    """An engine whose gauges contradict its counters."""
    profile, (prompt, output), nodes = profile_of(rng), chat(rng), rng.randint(3, 5)
    rate = rng.uniform(0.45, 0.75) * fleet_rate(profile, nodes, prompt, output)
    lie = rng.choice(["running_low", "running_high", "kv_zero", "kv_negative"])
    return _incident(
        rng, {Cause.METRICS_INCONSISTENT}, profile, nodes=nodes, streams=even(3, rate, prompt, output),
        troubles=(Trouble(rng.randrange(nodes), lie=lie),),  # type: ignore[arg-type]
    )  # fmt: skip


def with_frozen(rng: random.Random, base: Incident) -> Incident:
    """Return `base` with a worker of its last node standing still for a minute and a half."""
    return replace(
        base,
        name=f"{base.name}+engine_frozen",
        causes=base.causes | {Cause.ENGINE_FROZEN},
        troubles=(*base.troubles, Trouble(base.nodes - 1, freeze=(300.0, 390.0))),
    )


def with_lies(rng: random.Random, base: Incident) -> Incident:
    """Return `base` with the KV gauge of its last node stuck at 0."""
    return replace(
        base,
        name=f"{base.name}+metrics_inconsistent",
        causes=base.causes | {Cause.METRICS_INCONSISTENT},
        troubles=(*base.troubles, Trouble(base.nodes - 1, lie="kv_zero")),
    )


Maker = Callable[[random.Random], Incident]
MAKERS: dict[str, Maker] = {
    "healthy": healthy,
    "capacity": capacity,
    "concurrency_cap": concurrency_cap,
    "head_of_line": head_of_line,
    "fifo_mixed_sizes": fifo_mixed_sizes,
    "static_batching": static_batching,
    "token_budget": token_budget,
    "kv_oversubscription": kv_oversubscription,
    "hot_node": hot_node,
    "tenant_crowding": tenant_crowding,
    "retry_storm": retry_storm,
    "prefill_interference": prefill_interference,
    "priority_ignored": priority_ignored,
    "engine_frozen": engine_frozen,
    "metrics_inconsistent": metrics_inconsistent,
}


def make(name: str, seed: int) -> Incident:
    """Return one incident of a kind, different for each seed."""
    return MAKERS[name](random.Random(f"{name}/{seed}"))
