"""Five fleets that everybody who runs one has met, as incidents: the cases a diagnosis is checked on.

Rates are requests/s, times seconds, lengths tokens. Numbers are chosen so that the symptoms are those
people report: 28 % use with a p99 of 11 s, 400 ms that become 12 s, a true 105 %. Prevents: a diagnosis
that is good on average and wrong about the one case everybody asks for.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fleet.diagnosis_evidence import Cause
from fleet.engine_profile import H100_70B_FP8, throughput_at_batch
from simfleet.incident_makers import even, fleet_rate
from simfleet.incidents import Incident, Lengths, Stream
from simfleet.virtual_fleet import Front

LENGTH_S = 420.0
_ROOMY = replace(H100_70B_FP8, num_gpu_blocks=16_385)
_CHAT = (Lengths(500, 0.6), Lengths(300, 0.7))
_WITH_LONG = (Lengths(400, 0.5, tall_share=0.08, tall_mean=12_000), Lengths(200, 0.6))


def capped_front(seed: int = 1, *, nodes: int = 12) -> Incident:
    """12 nodes behind a FIFO that lets 64 requests in at once; 8 % long contexts hold the places.

    With fewer nodes the same story in proportion: 21 places for 4.
    """
    prompt, output = _WITH_LONG
    cap = 64 * nodes // 12
    profile = replace(_ROOMY, alpha_s=0.011)
    rate = nodes * throughput_at_batch(profile, cap / nodes, prompt.overall_mean, output.overall_mean)
    return Incident(
        "capped_front",
        frozenset({Cause.CONCURRENCY_CAP, Cause.HEAD_OF_LINE}),
        nodes,
        profile,
        even(4, 1.035 * rate, prompt, output),
        front=Front(cap=cap),
        order="fifo",
        seed=seed,
        length_s=LENGTH_S,
    )


def capped_engines(seed: int = 1) -> Incident:
    """Six nodes with the cap of 64 inside each engine, on hardware that would carry far more."""
    prompt, output = Lengths(400, 0.5, tall_share=0.06, tall_mean=12_000), Lengths(260, 0.6)
    profile = replace(
        _ROOMY, alpha_s=0.030, beta_s=0.00008, beta_past_knee_s=0.00010, gamma_s=3e-6,
        num_gpu_blocks=65_537, scheduling_policy="fcfs",
    )  # fmt: skip
    return Incident(
        "capped_engines",
        frozenset({Cause.CONCURRENCY_CAP, Cause.HEAD_OF_LINE}),
        6,
        profile,
        even(4, 1.02 * fleet_rate(profile, 6, prompt, output), prompt, output),
        order=None,
        seed=seed,
        length_s=LENGTH_S,
    )


def evaluation_batches(seed: int = 1) -> Incident:
    """One tenant's evaluation batches push everybody else from 400 ms to 12 s."""
    prompt, output, nodes = Lengths(2500, 0.8), Lengths(250, 0.6), 6
    rate = fleet_rate(_ROOMY, nodes, prompt, output)
    shape = ((180.0, 0.0), (240.0, 1.0), (420.0, 0.0), (480.0, 1.0), (math.inf, 0.0))
    big, long_ = Lengths(3000, 0.3), Lengths(400, 0.3)
    burst = 0.95 * fleet_rate(_ROOMY, nodes, big, long_)
    evals = Stream("evals", big, long_, tuple((until_s, f * burst) for until_s, f in shape))
    return Incident(
        "evaluation_batches",
        frozenset({Cause.TENANT_CROWDING}),
        nodes,
        _ROOMY,
        (*even(3, 0.4 * rate, prompt, output), evals),
        seed=seed,
        length_s=LENGTH_S,
    )


def true_overload(seed: int = 1) -> Incident:
    """24 nodes at 105 %."""
    prompt, output = _CHAT
    return Incident(
        "true_overload",
        frozenset({Cause.CAPACITY}),
        24,
        _ROOMY,
        even(5, 1.05 * fleet_rate(_ROOMY, 24, prompt, output), prompt, output),
        seed=seed,
        length_s=LENGTH_S,
    )


def sticky_sessions(seed: int = 1) -> Incident:
    """Two of 12 nodes hot by sticky routing, the others at a third."""
    prompt, output = _CHAT
    nodes, hot, heat, calm = 12, 2, 1.25, 0.33
    total = hot * heat + (nodes - hot) * calm
    share = (hot * heat / total - hot / nodes) / (1 - hot / nodes)
    rate = total / nodes * fleet_rate(_ROOMY, nodes, prompt, output)
    streams = tuple(
        replace(stream, heavy_share=share, heavy_sessions=hot) for stream in even(4, rate, prompt, output)
    )
    return Incident(
        "sticky_sessions",
        frozenset({Cause.HOT_NODE}),
        nodes,
        _ROOMY,
        streams,
        front=Front(routing="sticky"),
        seed=seed,
        length_s=LENGTH_S,
    )


def healthy_fleet(seed: int = 1) -> Incident:
    """12 nodes at 70 %."""
    prompt, output = _CHAT
    streams = even(4, 0.7 * fleet_rate(_ROOMY, 12, prompt, output), prompt, output)
    return Incident("healthy_fleet", frozenset(), 12, _ROOMY, streams, seed=seed, length_s=LENGTH_S)
