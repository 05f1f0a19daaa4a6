"""Many servers, one queue, exponential work: Erlang's formulas and their bounded and retrying forms.

Rates are per second, times are seconds, `a` is offered load in erlangs (lambda / mu), `c` counts servers.
A server is a decode slot when the question is waiting on a fleet: with nodes as servers M/M/5 predicts
55 % waiting at rho 0.8 where 180 slots wait 0.2 % of the time. Prevents: factorials that overflow, and a
finite answer for a queue that never settles.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import expit, log_ndtr  # pyright: ignore[reportUnknownVariableType]

from fleet.errors import InvalidInput

#: The recursions are linear in the number of servers or places; beyond this they would not answer in time.
MAX_SERVERS = 5_000_000


def require_settled(rho: float) -> None:
    """Raise InvalidInput unless 0 <= rho < 1: at 1 or above a queue without bound never settles."""
    if not 0 <= rho < 1:
        raise InvalidInput(
            f"rho is {rho:.4g}: the queue never settles",
            hint="Use a bounded model (mmck, mmc_D, erlang_a), or fewer arrivals or more servers",
            field="lam",
        )


def servers(c: float) -> int:
    """Return `c` as a count of servers, 1..MAX_SERVERS. Raises InvalidInput otherwise."""
    if c != int(c) or not 1 <= c <= MAX_SERVERS:
        raise InvalidInput(f"c is {c}: it must be a whole number from 1 to {MAX_SERVERS}", field="c")
    return int(c)


def find_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of a monotone `function` between `low` and `high`, to 14 digits."""
    if function(low) == 0:
        return low
    from scipy.optimize import brentq  # pyright: ignore[reportUnknownVariableType] # slow to import, rarely needed

    return float(brentq(function, low, high, xtol=1e-300, rtol=1e-14, maxiter=500))  # pyright: ignore[reportUnknownArgumentType, reportArgumentType]


def erlang_b(a: float, c: int) -> float:
    """Return the blocking probability of M/M/c/c at load `a` (erlangs, >= 0); c may be 0.

    Source: Erlang (1917); recursion B_n = a B_{n-1} / (n + a B_{n-1}), which neither overflows nor cancels.
    """
    blocking = 1.0
    for n in range(1, c + 1):
        blocking = a * blocking / (n + a * blocking)
    return blocking


def _wait_from_blocking(blocking: float, a: float, c: int) -> float:
    rho = a / c
    return blocking / (1 - rho * (1 - blocking))


def erlang_c(a: float, c: int) -> float:
    """Return the probability that an arrival waits in M/M/c at load `a` < c.

    Raises InvalidInput when a >= c. Source: Erlang (1917), as C = B / (1 - rho (1 - B)).
    """
    require_settled(a / c)
    return _wait_from_blocking(erlang_b(a, c), a, c)


def mmc_wait_mean_s(lam: float, mu: float, c: int) -> float:
    """Return the mean queue wait of M/M/c, C / (c mu - lambda)."""
    return erlang_c(lam / mu, c) / (c * mu - lam)


def mmc_wait_tail(lam: float, mu: float, c: int, t_s: float) -> float:
    """Return P(queue wait > t) of M/M/c under FIFO, C exp(-(c mu - lambda) t)."""
    return erlang_c(lam / mu, c) * math.exp(-(c * mu - lam) * t_s)


def mmc_wait_quantile_s(lam: float, mu: float, c: int, q: float) -> float:
    """Return the q-quantile (0 < q < 1) of the queue wait of M/M/c; 0 when fewer than 1 - q wait."""
    waiting = erlang_c(lam / mu, c)
    return max(0.0, math.log(waiting / (1 - q)) / (c * mu - lam)) if waiting > 0 else 0.0


def mmc_time_tail(lam: float, mu: float, c: int, t_s: float) -> float:
    """Return P(time in system > t) of M/M/c under FIFO: an exponential wait plus an exponential service."""
    waiting = erlang_c(lam / mu, c)
    spare = c * mu - lam
    if math.isclose(spare, mu, rel_tol=1e-9):
        return math.exp(-mu * t_s) * (1 + waiting * mu * t_s)
    share = waiting * mu / (spare - mu)
    return (1 + share) * math.exp(-mu * t_s) - share * math.exp(-spare * t_s)


def mmc_time_quantile_s(lam: float, mu: float, c: int, q: float) -> float:
    """Return the q-quantile (0 < q < 1) of the time in system of M/M/c under FIFO."""
    high = 1 / mu
    while mmc_time_tail(lam, mu, c, high) > 1 - q:
        high *= 2
    return find_root(lambda t: mmc_time_tail(lam, mu, c, t) - (1 - q), 0.0, high)


def mmc_queue_quantile(lam: float, mu: float, c: int, q: float) -> int:
    """Return the smallest n with P(requests in queue <= n) >= q; the queue of M/M/c is geometric."""
    waiting, rho = erlang_c(lam / mu, c), lam / (c * mu)
    if waiting * rho <= 1 - q:
        return 0
    return max(0, math.ceil(math.log((1 - q) / waiting) / math.log(rho) - 1e-12) - 1)


def mmck_block(lam: float, mu: float, c: int, places: int) -> float:
    """Return the share of arrivals refused by M/M/c/K with K = `places` >= c. Any load."""
    return _mmck(lam, mu, c, places)[0]


def mmck_wait_admitted_s(lam: float, mu: float, c: int, places: int) -> float:
    """Return the mean queue wait of those M/M/c/K admits, by Little's law on the admitted."""
    blocked, queue = _mmck(lam, mu, c, places)
    return queue / (lam * (1 - blocked))


def mmck_queue(lam: float, mu: float, c: int, places: int) -> float:
    """Return the mean number waiting in M/M/c/K."""
    return _mmck(lam, mu, c, places)[1]


def _mmck(lam: float, mu: float, c: int, places: int) -> tuple[float, float]:
    """Return (blocking probability, mean queue) by weights relative to the largest, never overflowing."""
    if places < c or places > MAX_SERVERS:
        raise InvalidInput(f"K is {places}: it must be c = {c} or more, at most {MAX_SERVERS}", field="K")
    blocking = erlang_b(lam / mu, c)
    if blocking == 0:
        return 0.0, 0.0
    queued = np.arange(places - c + 1, dtype=np.float64)
    exponents = queued * math.log(lam / (c * mu))
    shift = max(0.0, float(exponents[-1]))
    weights = np.exp(exponents - shift)
    total = (1 / blocking - 1) * math.exp(-shift) + float(weights.sum())
    return float(weights[-1]) / total, float((queued * weights).sum()) / total


def halfin_whitt_wait(beta: float) -> float:
    """Return P(wait) of a large pool staffed at c = a + beta sqrt(a), beta >= 0.

    Source: Halfin and Whitt, Operations Research 29 (1981): [1 + beta Phi(beta)/phi(beta)]^-1.
    """
    if beta < 0:
        raise InvalidInput(f"beta is {beta}: below 0 the pool is overloaded", field="beta")
    if beta == 0:
        return 1.0
    log_density = -0.5 * beta * beta - 0.5 * math.log(2 * math.pi)
    odds = math.log(beta) + float(log_ndtr(beta)) - log_density
    return float(expit(-odds))


def square_root_beta(p_wait_target: float) -> float:
    """Return the beta of Halfin-Whitt that gives `p_wait_target` (0 < target < 1)."""
    if not 0 < p_wait_target < 1:
        raise InvalidInput(f"target is {p_wait_target}: it must lie between 0 and 1", field="p_wait_target")
    return find_root(lambda beta: halfin_whitt_wait(beta) - p_wait_target, 0.0, 40.0)


def square_root_staffing(a: float, p_wait_target: float) -> int:
    """Return ceil(a + beta sqrt(a)): the rule's answer, which may be one short of the exact one."""
    return math.ceil(a + square_root_beta(p_wait_target) * math.sqrt(a))


def exact_staffing(a: float, p_wait_target: float) -> int:
    """Return the smallest c with Erlang-C(c, a) <= `p_wait_target`."""
    if not 0 < p_wait_target < 1 or not 0 < a <= MAX_SERVERS / 2:
        raise InvalidInput(
            f"load {a} or target {p_wait_target} out of range",
            hint="0 < target < 1 and a positive load",
            field="a",
        )
    blocking, c = 1.0, 0
    while True:
        c += 1
        blocking = a * blocking / (c + a * blocking)
        if c > a and _wait_from_blocking(blocking, a, c) <= p_wait_target:
            return c


def retry_load(lam: float, mu: float, c: int, places: int, p_retry: float) -> float:
    """Return the offered rate when a refused request returns with probability `p_retry` (0 <= r < 1).

    The fixed point of x = lambda + r P_block(x) x for M/M/c/K. x (1 - r P_block(x)) rises with x, so the
    root is unique and lies between lambda and lambda / (1 - r).
    """
    if not 0 <= p_retry < 1:
        raise InvalidInput(
            f"p_retry is {p_retry}: at 1 nobody gives up and overload has no fixed point",
            field="p_retry",
        )
    return find_root(
        lambda x: x * (1 - p_retry * mmck_block(x, mu, c, places)) - lam,
        lam,
        lam / (1 - p_retry) * (1 + 1e-12),
    )
