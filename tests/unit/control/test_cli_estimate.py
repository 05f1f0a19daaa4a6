"""`rhodeck estimate closed-form`: the check case to the dollar, its warnings, and refused input."""

from __future__ import annotations

import json

import pytest

from control.cli import main


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        main(["estimate", "closed-form", *arguments])
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_the_check_case_as_json(capsys):
    _, out, _ = run(capsys, "--json")
    form = json.loads(out)
    assert form["static_peak"]["usd_month"] == "201600.00"
    assert form["admission"]["usd_month"] == "100800.00"
    assert form["burst_always_on"] == "8640.00"
    assert form["total"] == "105800.00"
    assert form["saving_month"] == "95800.00"
    assert form["saving_year"] == "1149600.00"
    assert form["headroom"]["nodes"] == 12
    assert form["sources"]["price"]["date"].startswith("2026")


def test_people_see_the_refusals_beside_the_dollars_and_where_defaults_come_from(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    for text in ("201,600", "105,800", "95,800", "1,149,600", "241,920", "refused while at peak", "50.0%"):
        assert text in out
    assert "not autoscaling" in out
    assert "(2026-05)" in out


def test_flags_reach_the_formula(capsys):
    # 1200 / 800 = 1.5 req/s a node; 30 / 1.5 = 20 nodes; 20 * 10.50 * 100 h = 21,000
    _, out, _ = run(capsys, "--tokens-per-s", "1200", "--price", "10.50", "--hours", "100", "--json")
    form = json.loads(out)
    assert form["static_peak"]["usd_month"] == "21000.00"
    assert set(form["sources"]) == {"traffic", "spot_price", "burst_realistic_usd"}  # not of what was typed
    _, out, _ = run(capsys, "--price", "31")
    assert "low end of hyperscaler list prices" not in out
    _, out, _ = run(capsys, "--no-refusals")
    assert "refusals are not acceptable" in out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--peak-rps", "1"], 1, "below the mean"),
        (["--mean-rps", "-1"], 1, "mean_rps is -1"),
        (["--price", "-3"], 1, "price is -3"),
        (["--price", "nan"], 2, "not a finite amount"),
        (["--price", "cheap"], 2, "not an amount"),
        (["--nodes", "0"], 1, "admission_nodes is 0"),
        (["--tokens-per-s", "inf"], 1, "tokens_per_s is inf"),
    ],
)
def test_bad_input_is_refused(capsys, arguments, code, says):
    got, out, err = run(capsys, *arguments)
    assert got == code
    assert out == ""
    assert says in err
