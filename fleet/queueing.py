"""Queueing identities for one node or one fleet, and every queueing model under one name.

Pure: no clock, no I/O. Rates are per second, times are seconds. lambda is `arrival_rate`; mu is
`service_rate`, what a busy node could finish; X is `throughput`, what it did finish. X never stands in for
mu: in steady state X equals lambda, so lambda / X reads 1.0 at any load. `calculate` is the registry behind
`rhodeck calc`, so that a person can check a number by hand. Prevents: a model that answers in overload as
if it settled, and a misspelt parameter read as its default.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from fleet import engine_chain, erlang, little, patience, priority_queues, single_server
from fleet.errors import InvalidInput, NotMeasured

SHOWN_CHARS = 40  # of a parameter that is refused
Value = float | Sequence[float]
Number = float | None


def utilization(arrival_rate: float, service_rate: float) -> float:
    """Return rho = lambda / mu (ratio, >= 0). At 1 or above the queue never settles; it is not capped.

    Both rates in requests/s. Raises NotMeasured if `service_rate` is 0: the node was never busy.
    Source: Kleinrock, Queueing Systems vol. 1 (1975), 2.1.
    """
    if service_rate <= 0:
        raise NotMeasured("service rate is 0", hint="Give a configured capacity or wait for a busy period")
    return arrival_rate / service_rate


def flow_balance(arrivals: int, completions: int) -> Number:
    """Return lambda / X over one window (ratio); None when nothing completed. 1.0 at any steady load."""
    return arrivals / completions if completions > 0 else None


def flow_z(arrivals: int, completions: int) -> float:
    """Return z = (A - C) / sqrt(A + C): how far arrivals and completions differ beyond Poisson noise."""
    total = arrivals + completions
    return (arrivals - completions) / math.sqrt(total) if total else 0.0


def _is_finite(value: float) -> bool:
    """True where `value` is a number a float can hold: an int can be larger than any."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


class Params:
    """The parameters of one calculation. Remembers what was read, so that leftovers can be refused."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values
        self._read: set[str] = set()

    def number(self, name: str, *, low: float = 0.0, default: Number = None) -> float:
        """Return a finite number >= `low`. Raises InvalidInput when absent without default, or unusable."""
        self._read.add(name)
        value = self._values.get(name, default)
        if value is None:
            raise InvalidInput(f"parameter {name} is missing", field=name, hint="Add it to --params")
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            shown = repr(value) if len(repr(value)) <= SHOWN_CHARS else f"{repr(value)[:SHOWN_CHARS]}..."
            raise InvalidInput(f"parameter {name} is not a finite number: {shown}", field=name)
        if value < low:
            raise InvalidInput(f"parameter {name} is {value}: it must be {low:g} or more", field=name)
        return float(value)

    def positive(self, name: str) -> float:
        """Return a number > 0."""
        value = self.number(name)
        if value == 0:
            raise InvalidInput(f"parameter {name} is 0: it must be positive", field=name)
        return value

    def count(self, name: str, *, low: int = 0) -> int:
        """Return a whole number, `low`..MAX_SERVERS."""
        value = self.number(name, low=low)
        if value != int(value) or value > erlang.MAX_SERVERS:
            raise InvalidInput(
                f"parameter {name} is {value}: it must be a whole number up to {erlang.MAX_SERVERS}",
                field=name,
            )
        return int(value)

    def rates(self, name: str) -> list[float]:
        """Return a list of positive numbers, one per class."""
        self._read.add(name)
        values = self._values.get(name)
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise InvalidInput(f"parameter {name} must be a list of numbers", field=name)
        found = [Params({name: value}).positive(name) for value in values]
        return found

    def refuse_leftovers(self) -> None:
        """Raise InvalidInput for parameters the model never read: a misspelling must not pass."""
        extra = sorted(set(self._values) - self._read)
        if extra:
            raise InvalidInput(
                f"unknown parameters: {', '.join(extra)}",
                hint=f"This model reads: {', '.join(sorted(self._read))}",
                field=extra[0],
            )


Quantity = Callable[[], float]
#: Quantities by name. A key ending in "*" takes a number from the rest of the asked name.
Quantities = dict[str, Quantity | Callable[[float], float]]


def _erlang_b(p: Params) -> Quantities:
    a, c = p.number("a"), p.count("c")
    return {"p_block": lambda: erlang.erlang_b(a, c)}


def _erlang_c(p: Params) -> Quantities:
    a, c = p.number("a"), p.count("c", low=1)
    return {"p_wait": lambda: erlang.erlang_c(a, c)}


def _mmc(p: Params) -> Quantities:
    lam, mu, c = p.positive("lam"), p.positive("mu"), p.count("c", low=1)

    def wait() -> float:
        return erlang.mmc_wait_mean_s(lam, mu, c)

    return {
        "rho": lambda: utilization(lam, c * mu),
        "p_wait": lambda: erlang.erlang_c(lam / mu, c),
        "Wq": wait,
        "W": lambda: wait() + 1 / mu,
        "Lq": lambda: lam * wait(),
        "L": lambda: lam * (wait() + 1 / mu),
        "P_Wq_gt_*": lambda t: erlang.mmc_wait_tail(lam, mu, c, t),
        "P_W_gt_*": lambda t: erlang.mmc_time_tail(lam, mu, c, t),
        "Wq_p*": lambda digits: erlang.mmc_wait_quantile_s(lam, mu, c, _quantile(digits)),
        "W_p*": lambda digits: erlang.mmc_time_quantile_s(lam, mu, c, _quantile(digits)),
        "Lq_p*": lambda digits: float(erlang.mmc_queue_quantile(lam, mu, c, _quantile(digits))),
    }


def _mmck(p: Params) -> Quantities:
    lam, mu, c, k = p.positive("lam"), p.positive("mu"), p.count("c", low=1), p.count("K", low=1)
    return {
        "p_block": lambda: erlang.mmck_block(lam, mu, c, k),
        "Wq_admitted": lambda: erlang.mmck_wait_admitted_s(lam, mu, c, k),
        "Lq": lambda: erlang.mmck_queue(lam, mu, c, k),
    }


def _mg1(p: Params) -> Quantities:
    lam, service, cs2 = p.positive("lam"), p.positive("ES"), p.number("cs2")

    def wait() -> float:
        return single_server.mg1_wait_mean_s(lam, service, cs2)

    return {"Wq": wait, "W": lambda: wait() + service, "Lq": lambda: lam * wait()}


def _kingman(p: Params) -> Quantities:
    rho, ca2, cs2, service = p.number("rho"), p.number("ca2"), p.number("cs2"), p.positive("ES")
    return {"Wq_formula": lambda: single_server.kingman_wait_mean_s(rho, ca2, cs2, service)}


def _allen_cunneen(p: Params) -> Quantities:
    lam, mu, c = p.positive("lam"), p.positive("mu"), p.count("c", low=1)
    ca2, cs2 = p.number("ca2"), p.number("cs2")
    return {"Wq_formula": lambda: single_server.allen_cunneen_wait_mean_s(lam, mu, c, ca2, cs2)}


def _halfin_whitt(p: Params) -> Quantities:
    beta = p.number("beta")
    return {"p_wait": lambda: erlang.halfin_whitt_wait(beta)}


def _staffing(p: Params) -> Quantities:
    a, target = p.positive("a"), p.positive("p_wait_target")
    return {
        "c_exact": lambda: float(erlang.exact_staffing(a, target)),
        "c_rule": lambda: float(erlang.square_root_staffing(a, target)),
        "beta": lambda: erlang.square_root_beta(target),
    }


def _erlang_a(p: Params) -> Quantities:
    lam, mu, c, theta = p.positive("lam"), p.positive("mu"), p.count("c", low=1), p.positive("theta")
    return {
        "p_abandon": lambda: patience.erlang_a(lam, mu, c, theta).p_abandon,
        "Wq": lambda: patience.erlang_a(lam, mu, c, theta).wait_mean_s,
        "Lq": lambda: patience.erlang_a(lam, mu, c, theta).queue,
    }


def _mmc_fixed_timeout(p: Params) -> Quantities:
    model = patience.mmc_fixed_timeout(
        p.positive("lam"), p.positive("mu"), p.count("c", low=1), p.number("D")
    )
    t = p.number("t", default=0.0)
    return {
        "p_timeout": lambda: model.p_timeout,
        "Wq_all": lambda: model.wait_mean_s,
        "P_wait_gt_t": lambda: model.p_wait_above(t),
        "p_wait": lambda: model.p_wait_above(0.0),
    }


def _cobham_mm1(p: Params) -> Quantities:
    lam, mu, k = p.rates("lam"), p.rates("mu"), p.count("k")
    return {"Wq": lambda: priority_queues.cobham_wait_s(lam, mu, k)}


def _cobham_mmc(p: Params) -> Quantities:
    lam, mu, c, k = p.rates("lam"), p.positive("mu"), p.count("c", low=1), p.count("k")
    return {"Wq": lambda: priority_queues.cobham_many_servers_wait_s(lam, mu, c, k)}


def _sjf(p: Params) -> Quantities:
    lam, mu = p.positive("lam"), p.positive("mu")
    return {"Wq_mean": lambda: single_server.sjf_wait_mean_s(lam, mu)}


def _ps(p: Params) -> Quantities:
    rho, service = p.number("rho"), p.positive("ES")
    work = p.number("x", default=service)
    return {
        "T_mean": lambda: single_server.ps_time_mean_s(rho, service),
        "T_given_x": lambda: single_server.ps_time_given_work_s(rho, work),
    }


def _engine_bd(p: Params) -> Quantities:
    chain = engine_chain.engine_chain(
        p.positive("lam"),
        p.positive("O"),
        p.number("I"),
        alpha=p.positive("alpha"),
        beta=p.number("beta"),
        gamma=p.number("gamma"),
        slots=p.count("B", low=1),
        queue=p.count("Q"),
    )
    return {
        "mu_sat": lambda: chain.mu_sat,
        "p_block": lambda: chain.p_block,
        "b_mean": lambda: chain.b_mean,
        "itl_mean": lambda: chain.itl_mean_s,
        "Lq": lambda: chain.queue_mean,
    }


def _mginf(p: Params) -> Quantities:
    lam, service, n = p.positive("lam"), p.positive("ES"), p.number("n", default=0.0)
    return {
        "P_N_gt_n": lambda: single_server.infinite_server_tail(lam, service, n),
        "E_N": lambda: lam * service,
        "N_p*": lambda digits: float(little.infinite_server_quantile(lam, service, _quantile(digits))),
    }


def _little_mg1(p: Params) -> Quantities:
    moments = single_server.mg1_count_moments(p.positive("lam"), p.positive("ES"), p.number("cs2"))
    return {"E_N": lambda: moments[0], "Var_N": lambda: moments[1]}


def _little_mmc(p: Params) -> Quantities:
    lam, mu, c = p.positive("lam"), p.positive("mu"), p.count("c", low=1)
    return {
        # lambda^2 E[Wq^2]: the wait is exponential with rate c mu - lambda, with probability C
        "E_Lq(Lq-1)": lambda: 2 * erlang.erlang_c(lam / mu, c) * (lam / (c * mu - lam)) ** 2,
        "Lq_p*": lambda digits: float(erlang.mmc_queue_quantile(lam, mu, c, _quantile(digits))),
    }


def _retry(p: Params) -> Quantities:
    lam, mu, c = p.positive("lam"), p.positive("mu"), p.count("c", low=1)
    places, p_retry = p.count("K", low=1), p.number("p_retry")

    def offered() -> float:
        return erlang.retry_load(lam, mu, c, places, p_retry)

    return {"lam_eff": offered, "p_block": lambda: erlang.mmck_block(offered(), mu, c, places)}


#: Every model by the name `rhodeck calc` takes.
MODELS: dict[str, Callable[[Params], Quantities]] = {
    "erlang_b": _erlang_b,
    "erlang_c": _erlang_c,
    "mmc": _mmc,
    "mmck": _mmck,
    "mg1_pk": _mg1,
    "kingman_gg1": _kingman,
    "allen_cunneen": _allen_cunneen,
    "halfin_whitt": _halfin_whitt,
    "sqrt_staffing": _staffing,
    "erlang_a": _erlang_a,
    "mmc_D": _mmc_fixed_timeout,
    "cobham_mm1": _cobham_mm1,
    "cobham_mmc": _cobham_mmc,
    "sjf_mm1": _sjf,
    "mg1_ps": _ps,
    "engine_bd": _engine_bd,
    "mginf": _mginf,
    "distributional_little_mg1_fifo": _little_mg1,
    "distributional_little_mmc": _little_mmc,
    "retry_fixed_point": _retry,
}


def _quantile(digits: float) -> float:
    """Return 0.999 for 99.9 (as in Wq_p99.9). Raises InvalidInput outside 0..100."""
    if not 0 < digits < 100:
        raise InvalidInput(f"percentile {digits:g} must lie between 0 and 100", field="quantity")
    return digits / 100


@dataclass(frozen=True, slots=True)
class Calculation:
    """One value of one model, with what was asked."""

    model: str
    quantity: str
    value: float


def calculate(model: str, params: Mapping[str, Value], quantity: str) -> Calculation:
    """Return `quantity` of `model` at `params` (units in the module docstring).

    Raises InvalidInput for an unknown model, quantity or parameter (all names are in the hint), for a value
    out of range, and for an unbounded queue at rho >= 1.
    """
    build = MODELS.get(model)
    if build is None:
        raise InvalidInput(
            f"no model is called {model!r}", field="model", hint=f"Models: {', '.join(MODELS)}"
        )
    held = Params(params)
    try:
        # an overflow in an array raises here as it does for one number, and prints no warning instead
        with np.errstate(over="raise", invalid="raise", divide="ignore"):
            quantities = build(held)
            held.refuse_leftovers()
            value = _evaluate(quantities, quantity)
    except (ArithmeticError, MemoryError) as exc:
        raise InvalidInput(
            f"{model} leaves the range of floating point at these parameters", hint=str(exc)
        ) from exc
    if not math.isfinite(value):
        raise InvalidInput(f"{quantity} of {model} is not finite at these parameters")
    return Calculation(model, quantity, value)


def _evaluate(quantities: Quantities, asked: str) -> float:
    exact = quantities.get(asked)
    if exact is not None and not asked.endswith("*"):
        return cast(Quantity, exact)()
    for name, compute in quantities.items():
        prefix = name.removesuffix("*")
        if name == prefix or not asked.startswith(prefix):
            continue
        number = asked.removeprefix(prefix)
        if re.fullmatch(r"\d{1,6}(\.\d{1,9})?", number):
            return cast("Callable[[float], float]", compute)(float(number))
    raise InvalidInput(
        f"no quantity is called {asked!r} here",
        field="quantity",
        hint=f"Quantities: {', '.join(quantities)} (* stands for a number)",
    )
