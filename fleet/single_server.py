"""One server, any work: waits by Pollaczek-Khinchine and Kingman, shortest job first, processor sharing.

Rates are per second, times are seconds; `ca2`, `cs2` are squared coefficients of variation of inter-arrival
and service times. Prevents: an approximation shown as exact (Kingman and Allen-Cunneen say so in their
names), and an FIFO wait quoted for a discipline that is not FIFO.
"""

from __future__ import annotations

import math
from itertools import pairwise

from scipy.special import pdtrc

from fleet.erlang import mmc_wait_mean_s, require_settled


def mg1_wait_mean_s(lam: float, service_mean_s: float, cs2: float) -> float:
    """Return the mean FIFO wait of M/G/1. Source: Pollaczek-Khinchine."""
    rho = lam * service_mean_s
    require_settled(rho)
    return rho * service_mean_s * (1 + cs2) / (2 * (1 - rho))


def kingman_wait_mean_s(rho: float, ca2: float, cs2: float, service_mean_s: float) -> float:
    """Return Kingman's heavy-traffic approximation of the mean wait of G/G/1 (1961)."""
    require_settled(rho)
    return rho / (1 - rho) * (ca2 + cs2) / 2 * service_mean_s


def allen_cunneen_wait_mean_s(lam: float, mu: float, c: int, ca2: float, cs2: float) -> float:
    """Return the Allen-Cunneen approximation of the mean wait of G/G/c: M/M/c times (ca2 + cs2)/2."""
    return mmc_wait_mean_s(lam, mu, c) * (ca2 + cs2) / 2


def sjf_wait_mean_s(lam: float, mu: float) -> float:
    """Return the mean wait of M/M/1 under non-preemptive shortest job first.

    Source: Phipps (1956): integral of W0 / (1 - rho(x))^2 over job sizes, W0 = lambda E[S^2] / 2.
    """
    rho = lam / mu
    require_settled(rho)

    def integrand(z: float) -> float:  # z = mu x; 1 - rho(x), written without cancellation
        left = (1 - rho) + rho * math.exp(-z) * (1 + z)
        return math.exp(-z) / (left * left)

    bend = -math.log1p(-rho)  # beyond it almost all load is shorter than x
    edges = [0.0, bend / 2, bend, bend + 5, bend + 15, bend + 50, bend + 800]
    from scipy.integrate import quad  # pyright: ignore[reportUnknownVariableType] # slow to import

    total = sum(
        float(quad(integrand, low, high, epsabs=0, epsrel=1e-11, limit=200)[0])  # pyright: ignore[reportUnknownArgumentType]
        for low, high in pairwise(edges)
        if high > low
    )
    return rho / mu * total


def ps_time_mean_s(rho: float, service_mean_s: float) -> float:
    """Return the mean time in system of M/G/1 processor sharing; any distribution of work."""
    require_settled(rho)
    return service_mean_s / (1 - rho)


def ps_time_given_work_s(rho: float, work_s: float) -> float:
    """Return the mean time in system of a job of `work_s` under processor sharing."""
    require_settled(rho)
    return work_s / (1 - rho)


def infinite_server_tail(lam: float, service_mean_s: float, n: float) -> float:
    """Return P(more than n in system) of M/G/inf: Poisson, whatever the distribution of service."""
    return float(pdtrc(math.floor(n), lam * service_mean_s))


def mg1_count_moments(lam: float, service_mean_s: float, cs2: float) -> tuple[float, float]:
    """Return (mean, variance) of the number in M/G/1 FIFO with lognormal service.

    Distributional Little's law (Keilson and Servi 1988): Var N = lambda E T + lambda^2 Var T. The wait's
    second moment is 2 Wq^2 + lambda E[S^3] / (3 (1 - rho)); lognormal E[S^3] = E[S]^3 (1 + cs2)^3.
    """
    rho = lam * service_mean_s
    wait = mg1_wait_mean_s(lam, service_mean_s, cs2)
    third = service_mean_s**3 * (1 + cs2) ** 3
    wait_variance = wait * wait + lam * third / (3 * (1 - rho))
    time_variance = wait_variance + cs2 * service_mean_s**2
    time_mean = wait + service_mean_s
    return lam * time_mean, lam * time_mean + lam * lam * time_variance
