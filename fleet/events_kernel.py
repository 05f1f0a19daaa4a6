"""The inner loop of the event simulation: requests, slots and a FIFO queue with a longest wait.

Owns: what happens to each request. Every ready node has the same number of slots; a request takes one for
its service time, waits in one FIFO queue while none is free, and is refused when its wait reaches the
longest. Times are seconds from the start. Controllers are the fluid simulation's, acting each control
period on arrivals counted so far. Nodes that are dropped finish what they hold. Compiled by numba; plain
Python with NUMBA_DISABLE_JIT=1. Prevents: a forecast whose scaling rules differ from the fluid's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fleet.fluid_kernel import (
    NO_AUTOSCALER,
    OFF,
    PENDING,
    READY,
    RUNNING,
    WARMING,
    autoscale,
    demand_seen,
    turn_burst,
)
from fleet.kernels import compiled

#: Places in `sizes`, the whole numbers of the queueing model.
BUSY, HEAD, QUEUED, REFUSED, LOST, SIZES = 0, 1, 2, 3, 4, 5


@compiled
def push(heap: Any, size: int, value: float) -> None:
    """Put `value` into a binary heap of `size` values."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if heap[above] <= value:
            break
        heap[at] = heap[above]
        at = above
    heap[at] = value


@compiled
def pop(heap: Any, size: int) -> Any:
    """Take the least of `size` values out of a binary heap."""
    least, value = heap[0], heap[size - 1]
    at, last = 0, size - 1
    while True:
        below = 2 * at + 1
        if below >= last:
            break
        if below + 1 < last and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= value:
            break
        heap[at] = heap[below]
        at = below
    heap[at] = value
    return least


@compiled
def expire(now_s: float, max_wait_s: float, arrivals_s: Any, waits_s: Any, sizes: Any) -> None:
    """Refuse the head of the queue while it has waited too long. A refused request has wait NaN."""
    while sizes[QUEUED] > 0 and max_wait_s >= 0 and now_s - arrivals_s[sizes[HEAD]] > max_wait_s:
        waits_s[sizes[HEAD]] = np.nan
        sizes[HEAD] += 1
        sizes[QUEUED] -= 1
        sizes[REFUSED] += 1


@compiled
def start_waiting(
    now_s: float,
    slots: int,
    max_wait_s: float,
    arrivals_s: Any,
    services_s: Any,
    waits_s: Any,
    heap: Any,
    sizes: Any,
) -> None:
    """Start queued requests while slots are free."""
    expire(now_s, max_wait_s, arrivals_s, waits_s, sizes)
    while sizes[BUSY] < slots and sizes[QUEUED] > 0:
        head = sizes[HEAD]
        waits_s[head] = now_s - arrivals_s[head]
        push(heap, sizes[BUSY], now_s + services_s[head])
        sizes[BUSY] += 1
        sizes[HEAD] += 1
        sizes[QUEUED] -= 1
        expire(now_s, max_wait_s, arrivals_s, waits_s, sizes)


@compiled
def finish_until(
    until_s: float,
    slots: int,
    max_wait_s: float,
    arrivals_s: Any,
    services_s: Any,
    waits_s: Any,
    heap: Any,
    sizes: Any,
) -> None:
    """Let every request that ends by `until_s` end, and queued ones take the slots."""
    while sizes[BUSY] > 0 and heap[0] <= until_s:
        now_s = pop(heap, sizes[BUSY])
        sizes[BUSY] -= 1
        start_waiting(now_s, slots, max_wait_s, arrivals_s, services_s, waits_s, heap, sizes)


@compiled
def arrive(
    i: int,
    slots: int,
    max_wait_s: float,
    arrivals_s: Any,
    services_s: Any,
    waits_s: Any,
    heap: Any,
    sizes: Any,
) -> None:
    """Let time pass to arrival `i`, which takes a free slot or the end of the queue."""
    finish_until(arrivals_s[i], slots, max_wait_s, arrivals_s, services_s, waits_s, heap, sizes)
    expire(arrivals_s[i], max_wait_s, arrivals_s, waits_s, sizes)
    if sizes[BUSY] < slots and sizes[QUEUED] == 0:
        waits_s[i] = 0.0
        push(heap, sizes[BUSY], arrivals_s[i] + services_s[i])
        sizes[BUSY] += 1
        sizes[HEAD] = i + 1
    else:
        sizes[QUEUED] += 1


@compiled
def interrupt_burst(
    k: int,
    warm_bins: int,
    life_bins: float,
    node_slots: int,
    slots: int,
    state: Any,
    since: Any,
    heap: Any,
    sizes: Any,
) -> int:
    """Warm nodes become ready; a node that ran `life_bins` leaves with its share of the busy slots.

    Returns how many left.
    """
    left = 0
    for i in range(state.size):
        if state[i] == WARMING and since[i] <= k:
            state[i], since[i] = RUNNING, k
        elif state[i] == RUNNING and life_bins > 0 and k - since[i] >= life_bins:
            state[i], since[i] = WARMING, k + warm_bins
            gone = min(node_slots, (sizes[BUSY] * node_slots) // max(slots, 1))
            sizes[BUSY] -= gone  # leaves of the heap: which node holds which request is not modelled
            sizes[LOST] += gone
            slots -= node_slots
            left += 1
    return left


@compiled
def run_events(
    first_bin: int,
    last_bin: int,
    bin_s: float,
    node_rps: float,
    node_slots: int,
    max_wait_s: float,
    periods: Any,
    scaler: Any,
    plan: Any,
    pool: Any,
    arrivals_s: Any,
    services_s: Any,
    offsets: Any,
    rates_rps: Any,
    seen_rps: Any,
    waits_s: Any,
    counts: Any,
    pending: Any,
    wishes: Any,
    state: Any,
    since: Any,
    heap: Any,
    sizes: Any,
    billed: Any,
    billed_burst: Any,
    queued: Any,
    ready: Any,
    running_burst: Any,
    interrupted: Any,
) -> None:
    """Run bins [first_bin, last_bin). Everything a run remembers is in the arrays, so that it can go on.

    The last three say which nodes serve in a bin, and how many burst nodes were taken away at its start.

    `offsets[j]` is the place in `arrivals_s` of the first arrival of bin first_bin + j; `seen_rps[k]` is
    filled with what was counted in bin k. On day one a predictive autoscaler knows `rates_rps`.
    """
    for k in range(first_bin, last_bin):
        now_s = k * bin_s
        counts[READY] += pending[k]
        counts[PENDING] -= pending[k]
        before = node_slots * (counts[READY] + np.sum(state == RUNNING))
        interrupted[k] = interrupt_burst(
            k, int(pool[0]), pool[4], node_slots, before, state, since, heap, sizes
        )
        first, last = offsets[k - first_bin], offsets[k - first_bin + 1]
        seen_rps[k] = (last - first) / bin_s
        if k % periods[0] == 0:
            demand = demand_seen(seen_rps, k, periods[1])
            if int(scaler[0]) != NO_AUTOSCALER:
                history = seen_rps if k >= periods[2] else rates_rps
                autoscale(k, demand, history, node_rps, periods, scaler, plan, pending, wishes, counts)
            if state.size > 0:
                turn_burst(
                    k, demand, node_rps * counts[READY], float(sizes[QUEUED]), pool, state, since, counts
                )
        ready[k], running_burst[k] = counts[READY], np.sum(state == RUNNING)
        slots = node_slots * (ready[k] + running_burst[k])
        start_waiting(now_s, slots, max_wait_s, arrivals_s, services_s, waits_s, heap, sizes)
        for i in range(first, last):
            arrive(i, slots, max_wait_s, arrivals_s, services_s, waits_s, heap, sizes)
        finish_until(now_s + bin_s, slots, max_wait_s, arrivals_s, services_s, waits_s, heap, sizes)
        expire(now_s + bin_s, max_wait_s, arrivals_s, waits_s, sizes)
        billed[k] = counts[READY] + counts[PENDING]
        billed_burst[k] = np.sum(state != OFF)
        queued[k] = sizes[QUEUED]
