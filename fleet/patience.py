"""Queues whose customers leave: random patience (Erlang-A) and a fixed timeout (M/M/c+D).

Rates are per second, times are seconds. The gateway's longest wait is a constant, so its model is M/M/c+D;
random patience of the same mean triples the timeouts at rho 1. Valid at any load, above 1 included.
Prevents: exponentials that overflow deep in overload, and 0/0 at exactly rho = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fleet.erlang import erlang_b
from fleet.errors import InvalidInput

_CHUNK = 4096
_NEGLIGIBLE = 45.0  # e^-45 of the largest term is below double precision
_MAX_TERMS = 20_000_000
_NEVER = 1e-300  # less than this share ever finds all servers busy

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Impatient:
    """What an M/M/c queue with exponential patience does."""

    p_abandon: float  # share of arrivals that leave unserved
    queue: float  # mean number waiting
    wait_mean_s: float  # over all arrivals, those who leave included


def erlang_a(lam: float, mu: float, c: int, theta: float) -> Impatient:
    """Return M/M/c with exponential patience of rate `theta` > 0 (1/s).

    Source: Palm (1957); birth-death weights walked outward from the likeliest queue, the states with a free
    server weighing 1 / B_c - 1 times the empty queue.
    """
    if theta <= 0:
        raise InvalidInput(f"theta is {theta}: patience must be finite; use mmc without it", field="theta")
    blocking = erlang_b(lam / mu, c)
    if blocking < _NEVER:
        return Impatient(0.0, 0.0, 0.0)
    full = c * mu
    peak = max(0, math.floor((lam - full) / theta))  # the likeliest number waiting
    up = _log_weights(lambda n: math.log(lam) - np.log(full + (peak + n) * theta), None)
    down = _log_weights(lambda n: np.log(full + (peak + 1 - n) * theta) - math.log(lam), peak)
    waiting = np.concatenate((peak - np.arange(down.size, 0, -1), [peak], peak + np.arange(1, up.size + 1)))
    weights = np.exp(np.concatenate((down[::-1], [0.0], up)))
    total = float(weights.sum())
    if down.size == peak:  # the walk reached an empty queue: states with a free server count too
        total += float(weights[0]) * (1 / blocking - 1)
    queue = float((waiting * weights).sum()) / total
    return Impatient(theta * queue / lam, queue, queue / lam)


def _log_weights(step: Callable[[Vector], Vector], count: int | None) -> Vector:
    """Return the running sum of `step(1), step(2), ...` until it is negligible, at most `count` terms."""
    chunks: list[Vector] = []
    last, done = 0.0, 0
    while last > -_NEGLIGIBLE and (count is None or done < count):
        if done > _MAX_TERMS:
            raise InvalidInput("patience is too long for this load to be summed", field="theta")
        size = _CHUNK if count is None else min(_CHUNK, count - done)
        chunk = last + np.cumsum(step(np.arange(done + 1, done + size + 1, dtype=np.float64)))
        chunks.append(chunk)
        last, done = float(chunk[-1]), done + size
    return np.concatenate(chunks) if chunks else np.zeros(0)


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
