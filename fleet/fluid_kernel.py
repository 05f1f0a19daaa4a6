"""The inner loop of the fluid simulation: one pass over the bins of a month.

Owns: the order of steps in a bin: nodes become ready and burst nodes are taken away; the controllers act
on demand already seen; the bin is served, the excess refused, the nodes billed. Rates are requests/s,
`_bins` are counts of bins, a node serves `node_rps`. Compiled by numba; with NUMBA_DISABLE_JIT=1 the same
functions run as plain Python, their oracle. Prevents: a controller that acts on demand it cannot have seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fleet.kernels import compiled

NO_AUTOSCALER, REACTIVE, PREDICTIVE, SCHEDULED = 0, 1, 2, 3
#: States of a burst node.
OFF, WARMING, RUNNING = 0, 1, 2
#: Places in `counts`, the whole numbers a run carries from bin to bin.
READY, PENDING, LOW_SINCE, CONTROL_STEPS, LOST, COUNTS = 0, 1, 2, 3, 4, 5


@compiled
def demand_seen(rates: Any, k: int, window_bins: int) -> Any:
    """Return the mean rate of the last `window_bins` bins before bin `k`; of bin 0 at the start."""
    if k == 0:
        return rates[0]
    first = max(0, k - window_bins)
    total = 0.0
    for i in range(first, k):
        total += rates[i]
    return total / (k - first)


@compiled
def expected_ahead(rates: Any, k: int, day_bins: int, ahead_bins: int, demand: float) -> Any:
    """Return the largest of `demand` and yesterday's rates up to `ahead_bins` on. On day one: today's."""
    start = k - day_bins if k >= day_bins else k
    for i in range(start, min(start + ahead_bins + 1, rates.size)):
        demand = max(demand, rates[i])
    return demand


@compiled
def follow_wish(k: int, wish: int, held: int, cold_bins: int, pending: Any, counts: Any) -> None:
    """Launch what is missing for `wish`; drop what is above `held`, nodes not yet ready first.

    Nodes become ready before controllers act: what is launched in a bin serves from the next one at best.
    """
    have = counts[READY] + counts[PENDING]
    ready_at = k + max(cold_bins, 1)
    if wish > have:
        pending[ready_at] += wish - have
        counts[PENDING] += wish - have
    elif held < have:
        drop, at = have - held, ready_at
        while drop > 0 and counts[PENDING] > 0:
            taken = min(drop, pending[at])
            pending[at] -= taken
            counts[PENDING] -= taken
            drop -= taken
            at -= 1
        counts[READY] -= drop


@compiled
def remembered(wishes: Any, step: int, control_bins: int, hold_bins: float) -> Any:
    """Return the largest wish of the last `hold_bins`, the newest included."""
    held, back = wishes[step], 1
    while back <= step and back * control_bins <= hold_bins:
        held = max(held, wishes[step - back])
        back += 1
    return held


@compiled
def turn_burst(
    k: int, demand: float, base_rps: float, queue: float, pool: Any, state: Any, since: Any, counts: Any
) -> None:
    """Start every missing burst node, or stop all after a long enough calm.

    `pool`: warm-up in bins, up, down, cooldown in bins. Without a warm-up they serve from the next bin on.
    """
    if demand > pool[1] * base_rps or queue > 0:
        counts[LOW_SINCE] = -1
        for i in range(state.size):
            if state[i] == OFF:
                state[i], since[i] = WARMING, k + int(pool[0])
    elif demand < pool[2] * base_rps and queue == 0:
        if counts[LOW_SINCE] < 0:
            counts[LOW_SINCE] = k
        if k - counts[LOW_SINCE] >= pool[3]:
            state[:] = OFF
    else:
        counts[LOW_SINCE] = -1


@compiled
def age_burst(
    k: int, warm_bins: int, life_bins: float, lost_each: int, state: Any, since: Any, counts: Any
) -> None:
    """Warm nodes become ready; nodes that ran `life_bins` are taken away and a replacement warms up."""
    for i in range(state.size):
        if state[i] == WARMING and since[i] <= k:
            state[i], since[i] = RUNNING, k
        elif state[i] == RUNNING and life_bins > 0 and k - since[i] >= life_bins:
            state[i], since[i] = WARMING, k + warm_bins
            counts[LOST] += lost_each


@compiled
def autoscale(
    k: int,
    demand: float,
    history_rps: Any,
    node_rps: float,
    periods: Any,
    scaler: Any,
    plan: Any,
    pending: Any,
    wishes: Any,
    counts: Any,
) -> None:
    """Let the autoscaler wish for nodes at bin `k`, and follow it. `history_rps` is of the past days."""
    control_bins, day_bins, mode = periods[0], periods[2], int(scaler[0])
    if mode == SCHEDULED:
        wish = plan[k % day_bins]
    else:
        if mode == PREDICTIVE:
            demand = expected_ahead(history_rps, k, day_bins, int(scaler[6]), demand)
        wish = int(np.ceil(demand / (node_rps * scaler[1]) - 1e-9))
    wish = min(max(wish, int(scaler[2])), int(scaler[3]))
    step = counts[CONTROL_STEPS]
    wishes[step] = wish
    counts[CONTROL_STEPS] += 1
    held = remembered(wishes, step, control_bins, scaler[4])
    follow_wish(k, wish, held, int(scaler[5]), pending, counts)


@compiled
def serve(work: float, capacity_rps: float, bin_s: float, max_wait_s: float) -> Any:
    """Return what of `work` (requests) one bin serves, leaves queued and refuses."""
    done = min(work, capacity_rps * bin_s)
    queue = work - done
    if 0 <= max_wait_s * capacity_rps < queue:
        return done, max_wait_s * capacity_rps, queue - max_wait_s * capacity_rps
    return done, queue, 0.0


@compiled
def run_bins(
    rates: Any,
    bin_s: float,
    node_rps: float,
    nodes: int,
    max_wait_s: float,  # negative: nobody is refused
    periods: Any,  # bins: control, demand window, day
    scaler: Any,  # mode, target rho, least, most, hold in bins, cold start in bins, bins ahead
    plan: Any,  # nodes by bin of the day
    pool: Any,  # warm-up in bins, up, down, cooldown in bins, life in bins (0: for ever), lost each
    burst_nodes: int,
    waits_s: Any,
    refused: Any,
    billed: Any,
    billed_burst: Any,
) -> Any:
    """Fill wait (s), refused requests, billed nodes and burst nodes of each bin.

    Returns (requests served by the model, lost with interrupted nodes, still queued at the end).
    """
    control_bins, window_bins = periods[0], periods[1]
    counts = np.zeros(COUNTS, dtype=np.int64)
    counts[READY], counts[LOW_SINCE] = nodes, -1
    pending = np.zeros(rates.size + int(scaler[5]) + 1, dtype=np.int64)
    wishes = np.zeros(rates.size // control_bins + 1, dtype=np.int64)
    state, since = np.zeros(burst_nodes, dtype=np.int64), np.zeros(burst_nodes, dtype=np.int64)
    queue = served = 0.0
    for k in range(rates.size):
        counts[READY] += pending[k]
        counts[PENDING] -= pending[k]
        age_burst(k, int(pool[0]), pool[4], int(pool[5]), state, since, counts)
        if k % control_bins == 0:
            demand = demand_seen(rates, k, window_bins)
            if int(scaler[0]) != NO_AUTOSCALER:
                autoscale(k, demand, rates, node_rps, periods, scaler, plan, pending, wishes, counts)
            if burst_nodes > 0:
                turn_burst(k, demand, node_rps * counts[READY], queue, pool, state, since, counts)
        capacity = node_rps * (counts[READY] + np.sum(state == RUNNING))
        before = queue
        done, queue, refused[k] = serve(queue + rates[k] * bin_s, capacity, bin_s, max_wait_s)
        served += done
        waits_s[k] = (before + queue) / (2 * capacity)
        billed[k] = counts[READY] + counts[PENDING]
        billed_burst[k] = np.sum(state != OFF)
    return served, counts[LOST], queue
