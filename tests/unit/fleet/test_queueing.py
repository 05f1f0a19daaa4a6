"""Every queueing model against an independent reference, its own identities, and theory at the limits."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import InvalidInput, NotMeasured
from fleet.queueing import MODELS, calculate, flow_balance, flow_z, utilization

DATA = Path(__file__).parents[2] / "data" / "queueing" / "queueing_vectors.csv"
with DATA.open(newline="") as handle:
    VECTORS = list(csv.DictReader(handle))


def test_the_reference_has_115_rows_and_every_model_is_known():
    assert len(VECTORS) == 115
    assert {row["model"] for row in VECTORS} == set(MODELS)


@pytest.mark.parametrize("row", VECTORS, ids=lambda r: f"{r['model']}-{r['quantity']}-{r['params']}")
def test_model_agrees_with_the_reference_to_one_in_a_million(row: dict[str, str]):
    got = calculate(row["model"], json.loads(row["params"]), row["quantity"]).value
    assert got == pytest.approx(float(row["value"]), rel=1e-6, abs=0)


def test_utilization_is_not_capped_and_needs_a_service_rate():
    assert utilization(33, 30) == pytest.approx(1.1)
    assert utilization(0, 30) == 0
    with pytest.raises(NotMeasured):
        utilization(1, 0)


def test_flow_balance_reads_one_at_any_steady_load_and_is_unknown_without_completions():
    assert flow_balance(20, 20) == flow_balance(2000, 2000) == 1.0
    assert flow_balance(3, 0) is None
    assert flow_z(150, 50) == pytest.approx(100 / math.sqrt(200))
    assert flow_z(0, 0) == 0


@pytest.mark.parametrize("c", [10_000, 1_000_000])
def test_large_pools_approach_halfin_whitt(c: int):
    # c = a + sqrt(a) servers: P(wait) -> 0.22336 as a grows; the next term is of order 1/sqrt(a)
    a = ((math.sqrt(1 + 4 * c) - 1) / 2) ** 2
    exact = calculate("erlang_c", {"a": a, "c": c}, "p_wait").value
    limit = calculate("halfin_whitt", {"beta": 1.0}, "p_wait").value
    assert exact == pytest.approx(limit, rel=1 / math.sqrt(a))


@pytest.mark.parametrize(
    ("model", "params", "quantity", "limit"),
    [
        ("mmck", {"lam": 1000, "mu": 1, "c": 5, "K": 100_000}, "p_block", 1 - 5 / 1000),
        ("mmc_D", {"lam": 1000, "mu": 1, "c": 5, "D": 500}, "p_timeout", 1 - 5 / 1000),
        ("mmc_D", {"lam": 1000, "mu": 1, "c": 5, "D": 500}, "Wq_all", 500),
        ("erlang_a", {"lam": 5000, "mu": 1, "c": 5, "theta": 0.01}, "p_abandon", 1 - 5 / 5000),
        ("engine_bd", {"lam": 500, "O": 300, "I": 500, "alpha": 0.012, "beta": 1e-4, "gamma": 0, "B": 4096,
                       "Q": 5000}, "b_mean", 4096),
        ("halfin_whitt", {"beta": 60}, "p_wait", 0.0),
        ("erlang_b", {"a": 1, "c": 500}, "p_block", 0.0),
    ],
)  # fmt: skip
def test_far_out_the_fluid_limit_holds_without_overflow(model, params, quantity, limit):
    # in deep overload what is refused is what exceeds capacity: 1 - c mu / lambda
    assert calculate(model, params, quantity).value == pytest.approx(limit, rel=2e-3, abs=1e-300)


def test_fixed_timeout_is_continuous_through_rho_one():
    # the closed form divides by c mu - lambda; at exactly 15 = 5 * 3 and around it the value must not jump
    at = [
        calculate("mmc_D", {"lam": 15 + d, "mu": 3, "c": 5, "D": 1.5}, "Wq_all").value
        for d in (-1e-9, 0, 1e-9)
    ]
    assert at[0] == pytest.approx(at[1], rel=1e-8)
    assert at[2] == pytest.approx(at[1], rel=1e-8)


@pytest.mark.parametrize("lam", [4.0, 14.9, 15.0, 15.1, 60.0])
def test_those_who_leave_are_those_nobody_serves(lam):
    # plain sums over 8000 states, where no weight overflows: at 60/s the queue is 4500 +- 80
    mu, c, theta = 3.0, 5, 0.01
    logs = [0.0]
    for n in range(1, 8000):
        logs.append(logs[-1] + math.log(lam / (min(n, c) * mu + max(0, n - c) * theta)))
    weights = [math.exp(value - max(logs)) for value in logs]
    total = sum(weights)
    queue = sum(max(0, n - c) * w for n, w in enumerate(weights)) / total
    params = {"lam": lam, "mu": mu, "c": c, "theta": theta}
    assert calculate("erlang_a", params, "Lq").value == pytest.approx(queue, rel=1e-9)
    assert calculate("erlang_a", params, "p_abandon").value == pytest.approx(theta * queue / lam, rel=1e-9)


def test_very_patient_crowds_are_summed_around_their_peak():
    # fluid: (lambda - c mu) / theta wait, here 5.8e7 of them; the noise is a ten-thousandth of that
    params = {"lam": 585.0, "mu": 0.01, "c": 3000, "theta": 6.1e-6}
    queue = calculate("erlang_a", params, "Lq").value
    assert queue == pytest.approx((585 - 30) / 6.1e-6, rel=1e-3)


def test_fixed_timeout_mean_is_the_area_under_its_tail():
    # E[wait] = integral of P(wait > t) over 0..D, here by Simpson's rule on 2000 steps
    base = {"lam": 13, "mu": 3, "c": 5, "D": 1.5}
    n, h = 2000, 1.5 / 2000
    tail = [
        calculate("mmc_D", {**base, "t": min(i * h, 1.5 - 1e-12)}, "P_wait_gt_t").value
        for i in range(n + 1)
    ]
    area = h / 3 * (tail[0] + tail[-1] + 4 * sum(tail[1:-1:2]) + 2 * sum(tail[2:-1:2]))
    assert calculate("mmc_D", base, "Wq_all").value == pytest.approx(area, rel=1e-6)


def test_time_quantile_of_many_servers_inverts_its_tail():
    params = {"lam": 12, "mu": 3, "c": 5}
    p95 = calculate("mmc", params, "W_p95").value
    assert calculate("mmc", params, f"P_W_gt_{p95:.9f}").value == pytest.approx(0.05, rel=1e-6)
    # spare capacity equal to mu makes the general form 0/0: 4 servers, lambda 9, spare 3
    assert calculate("mmc", {"lam": 9, "mu": 3, "c": 4}, "W_p95").value > 0


def test_fifo_waits_average_to_the_priority_waits_weighted_by_rate():
    # Kleinrock's conservation law with equal service: sum lambda_k W_k is the same as FIFO's
    lam, mu, c = [6.0, 4.0, 2.0], 3.0, 5
    by_class = [
        calculate("cobham_mmc", {"lam": lam, "mu": mu, "c": c, "k": k}, "Wq").value for k in range(3)
    ]
    fifo = calculate("mmc", {"lam": 12, "mu": mu, "c": c}, "Wq").value
    assert sum(rate * wait for rate, wait in zip(lam, by_class, strict=True)) == pytest.approx(12 * fifo)


@given(rho=st.floats(0.05, 0.98), c=st.integers(1, 200), scale=st.floats(1e-3, 1e3))
def test_waits_scale_with_the_time_unit_and_shortest_first_never_loses(rho, c, scale):
    # measuring in other units multiplies rates by `scale` and divides times by it
    one = calculate("mmc", {"lam": rho * c, "mu": 1, "c": c}, "Wq").value
    other = calculate("mmc", {"lam": rho * c * scale, "mu": scale, "c": c}, "Wq").value
    assert other * scale == pytest.approx(one, rel=1e-8)
    fifo = calculate("mg1_pk", {"lam": rho, "ES": 1, "cs2": 1}, "Wq").value
    assert calculate("sjf_mm1", {"lam": rho, "mu": 1}, "Wq_mean").value <= fifo * (1 + 1e-9)


@given(
    lam=st.floats(0.1, 60),
    more=st.floats(1.001, 2),
    c=st.integers(1, 20),
    room=st.integers(0, 50),
    d=st.floats(0, 20),
)
def test_more_load_never_refuses_less(lam, more, c, room, d):
    def refused(rate: float) -> tuple[float, float]:
        bounded = calculate("mmck", {"lam": rate, "mu": 3, "c": c, "K": c + room}, "p_block").value
        timed = calculate("mmc_D", {"lam": rate, "mu": 3, "c": c, "D": d}, "p_timeout").value
        return bounded, timed

    few, many = refused(lam), refused(lam * more)
    assert many[0] >= few[0] * (1 - 1e-9)
    assert many[1] >= few[1] * (1 - 1e-9)
    assert 0 <= many[0] <= 1
    assert 0 <= many[1] <= 1


@pytest.mark.parametrize(
    ("model", "params", "quantity", "says"),
    [
        ("mm7", {}, "Wq", "no model"),
        ("mmc", {"lam": 1, "mu": 1, "c": 2}, "Wz", "no quantity"),
        ("mmc", {"lam": 1, "mu": 1, "c": 2}, "Wq_p*", "no quantity"),
        ("mmc", {"lam": 1, "mu": 1, "c": 2}, "Wq_p100", "percentile"),
        ("mmc", {"lam": 1, "mu": 1}, "Wq", "c is missing"),
        ("mmc", {"lam": 1, "mu": 1, "c": 2.5}, "Wq", "whole number"),
        ("mmc", {"lam": 1, "mu": 1, "c": 2, "k": 1}, "Wq", "unknown parameters: k"),
        ("mmc", {"lam": 3, "mu": 1, "c": 2}, "Wq", "never settles"),
        ("mmc", {"lam": True, "mu": 1, "c": 2}, "Wq", "not a finite number"),
        ("mmc", {"lam": math.nan, "mu": 1, "c": 2}, "Wq", "not a finite number"),
        ("mmc", {"lam": -1, "mu": 1, "c": 2}, "Wq", "0 or more"),
        ("mmck", {"lam": 1, "mu": 1, "c": 2, "K": 1}, "p_block", "K is 1"),
        ("cobham_mm1", {"lam": [0.1], "mu": [1, 1], "k": 0}, "Wq", "1 arrival rates but 2"),
        ("cobham_mm1", {"lam": "0.1", "mu": [1, 1], "k": 0}, "Wq", "list of numbers"),
        ("cobham_mm1", {"lam": [0.1], "mu": [1], "k": 5}, "Wq", "class 5"),
        ("retry_fixed_point", {"lam": 1, "mu": 1, "c": 1, "K": 1, "p_retry": 1}, "lam_eff", "p_retry"),
        ("mg1_pk", {"lam": 10**400, "ES": 1, "cs2": 1}, "Wq", "not a finite number"),
        ("cobham_mm1", {"lam": [10**400], "mu": [1], "k": 0}, "Wq", "not a finite number"),
        ("distributional_little_mg1_fifo", {"lam": 1e-300, "ES": 1, "cs2": 1e300}, "Var_N", "range"),
        ("retry_fixed_point", {"lam": 1e308, "mu": 3, "c": 5, "K": 5, "p_retry": 0.8}, "lam_eff", "range"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_the_reason(model, params, quantity, says):
    with pytest.raises(InvalidInput, match=says.replace("*", r"\*")):
        calculate(model, params, quantity)
