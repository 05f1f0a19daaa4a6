"""Queues whose customers leave: random patience (Erlang-A) and a fixed timeout (M/M/c+D).

Rates are per second, times are seconds. The gateway's longest wait is a constant, so its model is M/M/c+D;
random patience of the same mean triples the timeouts at rho 1. Valid at any load, above 1 included.
Prevents: exponentials that overflow deep in overload, and 0/0 at exactly rho = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fleet.erlang import erlang_b
from fleet.errors import InvalidInput

_CHUNK = 4096
_NEGLIGIBLE = 45.0  # e^-45 of the largest term is below double precision
_MAX_TERMS = 20_000_000


@dataclass(frozen=True, slots=True)
class Impatient:
    """What an M/M/c queue with exponential patience does."""

    p_abandon: float  # share of arrivals that leave unserved
    queue: float  # mean number waiting
    wait_mean_s: float  # over all arrivals, those who leave included


def erlang_a(lam: float, mu: float, c: int, theta: float) -> Impatient:
    """Return M/M/c with exponential patience of rate `theta` > 0 (1/s).

    Source: Palm (1957); birth-death weights relative to state c, the first c states being 1 / B_c.
    """
    if theta <= 0:
        raise InvalidInput(f"theta is {theta}: patience must be finite; use mmc without it", field="theta")
    blocking = erlang_b(lam / mu, c)
    if blocking == 0:
        return Impatient(0.0, 0.0, 0.0)
    log_below = math.log(1 / blocking - 1) if blocking < 1 else -math.inf
    logs: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = [np.zeros(1)]
    last, largest, start = 0.0, 0.0, 1
    while True:
        waiting = np.arange(start, start + _CHUNK, dtype=np.float64)
        chunk = last + np.cumsum(math.log(lam) - np.log(c * mu + waiting * theta))
        logs.append(chunk)
        last, largest, start = float(chunk[-1]), max(largest, float(chunk.max())), start + _CHUNK
        if last < largest - _NEGLIGIBLE and c * mu + start * theta > lam:
            break
        if start > _MAX_TERMS:
            raise InvalidInput(f"theta {theta} is too small for lambda {lam}", field="theta")
    weights_log = np.concatenate(logs)
    shift = max(largest, log_below)
    weights = np.exp(weights_log - shift)
    total = math.exp(log_below - shift) + float(weights.sum())
    queue = float((np.arange(weights.size) * weights).sum()) / total
    return Impatient(theta * queue / lam, queue, queue / lam)


@dataclass(frozen=True, slots=True)
class FixedTimeout:
    """What an M/M/c queue does whose waiters leave after exactly `timeout_s`.

    All weights carry the factor exp(-shift), which cancels in every ratio.
    """

    lam: float
    spare: float  # c mu - lambda, per second; negative in overload
    full_rate: float  # c mu
    timeout_s: float
    shift: float
    below: float  # 1 / B_{c-1}(a), scaled

    def _decay(self, t_s: float) -> float:
        return math.exp(-self.spare * t_s - self.shift)

    def _between(self, t_s: float) -> float:
        """Return the integral of exp(-spare x) from t to the timeout, scaled."""
        length = self.timeout_s - t_s
        if abs(self.spare * length) < 1:
            if self.spare == 0:
                return length * self._decay(t_s)
            return -math.expm1(-self.spare * length) / self.spare * self._decay(t_s)
        return (self._decay(t_s) - self._decay(self.timeout_s)) / self.spare

    def _weight_above(self, t_s: float) -> float:
        return self.lam * (self._between(t_s) + self._decay(self.timeout_s) / self.full_rate)

    @property
    def _total(self) -> float:
        return self.below + self._weight_above(0.0)

    @property
    def p_timeout(self) -> float:
        """Return the share of arrivals that time out (0..1)."""
        return self.lam / self.full_rate * self._decay(self.timeout_s) / self._total

    def p_wait_above(self, t_s: float) -> float:
        """Return P(wait > t), a wait ending at service or at the timeout; 0 from the timeout on."""
        if t_s < 0:
            return 1.0
        return self._weight_above(t_s) / self._total if t_s < self.timeout_s else 0.0

    @property
    def wait_mean_s(self) -> float:
        """Return the mean wait over all arrivals; those who leave waited the whole timeout."""
        end, x = self._decay(self.timeout_s), self.spare * self.timeout_s
        if abs(x) < 1e-3:  # (1 - e^-x - x e^-x) / x^2 cancels here; its series does not
            ramp = self.timeout_s**2 * (1 / 2 - x / 3 + x * x / 8 - x**3 / 30) * math.exp(-self.shift)
        else:
            ramp = (self._between(0.0) - self.timeout_s * end) / self.spare
        return self.lam * (ramp + self.timeout_s * end / self.full_rate) / self._total


def mmc_fixed_timeout(lam: float, mu: float, c: int, timeout_s: float) -> FixedTimeout:
    """Return M/M/c+D: waiters leave after `timeout_s` >= 0. Any load.

    Source: Baccelli and Hebuterne (1981); Zeltyn and Mandelbaum, Queueing Systems 51 (2005).
    """
    if timeout_s < 0:
        raise InvalidInput(f"D is {timeout_s}: a timeout is 0 or more seconds", field="D")
    spare = c * mu - lam
    shift = max(0.0, -spare * timeout_s)
    blocking = erlang_b(lam / mu, c - 1)
    below = math.exp(-shift) / blocking if blocking > 0 else math.inf
    return FixedTimeout(lam, spare, c * mu, timeout_s, shift, below)
