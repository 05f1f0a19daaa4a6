"""`rhodeck calc` prints one number, and refuses what it cannot answer with exit code 1 and a reason."""

from __future__ import annotations

import json

import pytest

from control.cli import main


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        main(["calc", *arguments])
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_it_prints_the_value_alone(capsys):
    # M/M/1 at rho 0.5: Wq = rho / (mu - lambda) = 0.5 / 0.5 = 1
    code, out, _ = run(capsys, "mmc", "--params", '{"lam": 0.5, "mu": 1, "c": 1}', "--quantity", "Wq")
    assert code == 0
    assert float(out) == pytest.approx(1.0)


def test_json_repeats_the_question(capsys):
    _, out, _ = run(capsys, "erlang_b", "--params", '{"a": 1, "c": 1}', "--quantity", "p_block", "--json")
    assert json.loads(out) == {
        "model": "erlang_b", "params": {"a": 1, "c": 1}, "quantity": "p_block", "value": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model", "params", "quantity", "says"),
    [
        ("nothing", "{}", "Wq", "Models: erlang_b"),
        ("mmc", '{"lam": 1, "mu": 1, "c": 2}', "speed", "Quantities: rho"),
        ("mmc", "lam=1", "Wq", "not JSON"),
        ("mmc", "[1]", "Wq", "not a JSON object"),
        ("mmc", '{"lam": NaN, "mu": 1, "c": 2}', "Wq", "NaN is not a number"),
        ("mmc", '{"lam": 1e999, "mu": 1, "c": 2}', "Wq", "not a finite number"),
        ("mmc", '{"lam": 1, "mu": 1, "c": 1e9}', "Wq", "whole number up to"),
        ("mmc", "[" * 9000, "Wq", "not JSON"),
        ("mmc", " " * 10_001, "Wq", "10001 characters"),
        ("mmc", '{"lam": 5, "mu": 1, "c": 2}', "Wq", "never settles"),
        ("mmc", '{"lam": {"a": 1}, "mu": 1, "c": 2}', "Wq", "not a finite number"),
        ("mmc", f'{{"lam": 1, "mu": 1, "c": 1{"0" * 400}}}', "Wq", "not a finite number: 1000"),
        ("mmc", '{"lam": 1, "mu": 1, "c": 2, "lam": 3}', "Wq", "given twice"),
    ],
)
def test_bad_input_says_what_to_do_and_fails(capsys, model, params, quantity, says):
    code, out, err = run(capsys, model, "--params", params, "--quantity", quantity)
    assert code == 1
    assert out == ""
    assert says in err
