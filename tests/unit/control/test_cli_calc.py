"""`rhodeck calc` prints one number, and refuses what it cannot answer with exit code 1 and a reason."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from control.cli import main

VECTORS = Path(__file__).parents[2] / "data" / "queueing" / "queueing_vectors.csv"


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


def test_the_list_names_what_every_model_takes_and_gives(capsys):
    code, out, _ = run(capsys, "--list")
    assert code == 0
    assert "mmc\n  takes lam (number > 0), mu (number > 0), c (whole number >= 1)\n" in out
    _, out, _ = run(capsys, "--list", "--json")
    listed = {model["model"]: model for model in json.loads(out)}
    with VECTORS.open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert {row["model"] for row in rows} == set(listed)
    for row in rows:  # what is listed is what there is: every vector's parameters and no mandatory one more
        taken = {p["name"]: p["optional"] for p in listed[row["model"]]["parameters"]}
        given = set(json.loads(row["params"]))
        assert given <= set(taken), row
        assert {name for name, optional in taken.items() if not optional} <= given, row


def test_without_a_model_the_usage_is_shown(capsys):
    code, _, err = run(capsys, "mmc")
    assert code == 2
    assert "give MODEL, --params and --quantity, or --list" in err


@pytest.mark.parametrize(
    ("model", "params", "quantity", "says"),
    [
        ("nothing", "{}", "Wq", "Models: erlang_b"),
        ("mmc", '{"lam": 1, "mu": 1, "c": 2}', "speed", "Quantities: rho"),
        ("mmc", "lam=1", "Wq", "not JSON"),
        ("mmc", '{"lam": 1}', "Wq", "mmc takes lam (number > 0), mu (number > 0), c (whole"),
        ("mmc", '{"lam": 1, "mu": 2, "c": 1, "servers": 3}', "Wq", "mmc takes lam (number > 0)"),
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
