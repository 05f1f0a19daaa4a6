"""Waits of priority classes that do not interrupt each other (Cobham).

Rates are per second, times are seconds; class 0 goes first. Prevents: strict priority sold as harmless,
when the last class waits many times the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.erlang import erlang_c, require_settled
from fleet.errors import InvalidInput


def _check(lam: Sequence[float], k: int) -> None:
    if not 0 <= k < len(lam):
        raise InvalidInput(f"class {k} does not exist: there are {len(lam)}, counted from 0", field="k")


def cobham_wait_s(lam: Sequence[float], mu: Sequence[float], k: int) -> float:
    """Return the mean wait of class `k` on one server, exponential work with rate mu[i] per class.

    Source: Cobham (1954): W0 / ((1 - s_{k-1})(1 - s_k)), W0 = sum lambda_i / mu_i^2.
    """
    _check(lam, k)
    if len(lam) != len(mu):
        raise InvalidInput(f"{len(lam)} arrival rates but {len(mu)} service rates", field="mu")
    loads = [rate / speed for rate, speed in zip(lam, mu, strict=True)]
    require_settled(sum(loads))
    residual = sum(load / speed for load, speed in zip(loads, mu, strict=True))
    return residual / ((1 - sum(loads[:k])) * (1 - sum(loads[: k + 1])))


def cobham_many_servers_wait_s(lam: Sequence[float], mu: float, c: int, k: int) -> float:
    """Return the mean wait of class `k` on `c` servers of equal rate: Cobham with Erlang-C as numerator."""
    _check(lam, k)
    waiting = erlang_c(sum(lam) / mu, c)
    full = c * mu
    return waiting / full / ((1 - sum(lam[:k]) / full) * (1 - sum(lam[: k + 1]) / full))
