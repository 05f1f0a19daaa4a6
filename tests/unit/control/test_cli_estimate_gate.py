"""`rhodeck estimate confirm --gate`: three methods side by side, tiers, and what is refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from control.cli_estimate import estimate
from control.cli_estimate_gate import replicated_days, whole_days
from control.estimate_scenarios import read_scenario
from control.progress_lines import read_progress
from fleet.errors import FleetError, InvalidInput
from fleet.outcomes import Tier

#: Two nodes of 0.0125 requests/s and two slots: 0.9 of what they serve, for a day.
SMALL: dict[str, Any] = {
    "profile": "small.csv",
    "params": {"n": 2, "D": 20},
    "mu": 0.0125,
    "tiers": {"interactive": 0.5, "best_effort": 0.5},
}


def scenario(folder: Path, **changes: Any) -> Path:
    (folder / "small.csv").write_text("t_s,rate_rps\n" + "".join(f"{600 * n},0.0225\n" for n in range(144)))
    path = folder / "scenario.json"
    path.write_text(json.dumps(SMALL | changes))
    return path


def confirm_days(path: Path, *words: str) -> str:
    asked = ["confirm", str(path), "--gate", "--slots", "2", *words]
    found = CliRunner().invoke(estimate, asked, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


def confirm(path: Path, *words: str) -> str:
    asked = ["confirm", str(path), "--gate", "--slots", "2", "--days", "1", *words]
    found = CliRunner().invoke(estimate, asked, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    told = [read_progress(line) for line in found.stderr.splitlines()]  # no terminal reads it: plain lines
    through = [one for one in told if one is not None and one[0] == "requests through the gate"]
    assert through[0][1] == 0
    assert through[-1][1] == through[-1][2] == pytest.approx(0.0225 * 86_400, abs=1)
    return found.stdout


def test_three_methods_stand_side_by_side(tmp_path: Path) -> None:
    found = json.loads(confirm(scenario(tmp_path), "--json"))
    costs = {found[name]["cost_month"] for name in ("fluid", "events", "gate")}
    assert costs == {2 * 24 * 28.0}  # two nodes, a day
    assert found["gate"]["offered"] == found["events"]["offered"] == pytest.approx(0.0225 * 86_400, rel=0.1)
    assert set(found["tiers"]) == {"interactive", "best_effort"}  # nobody sends batch
    assert found["tiers"]["best_effort"]["refused_share"] > found["tiers"]["interactive"]["refused_share"]
    assert found["requests_per_s"] > 0
    shown = confirm(scenario(tmp_path))
    assert "best_effort" in shown
    assert "by the tiers' weights (70/5)" in shown


def test_engines_tenants_and_other_seeds_are_told_apart(tmp_path: Path) -> None:
    tenants = {"interactive": {"acme": [0.6, 3], "beta": [0.4, 1]}}
    weights = {"interactive": 80, "batch": 10, "best_effort": 10}
    path = scenario(tmp_path, tenants=tenants, weights=weights)
    words = ["--engine", "h100-70b-fp8", "--replications", "2", "--processes", "1"]
    found = json.loads(confirm(path, *words, "--json"))
    assert [one["tenant"] for one in found["tenants"]] == ["acme", "beta"]
    of_tier = found["tiers"]["interactive"]
    assert sum(one["offered"] for one in found["tenants"]) == of_tier["offered"]
    assert of_tier["first_p50_s"] < of_tier["e2e_p50_s"]
    assert found["preemptions"] == 0
    others = found["replications"]
    assert (others["seeds"], others["days"]) == (2, 1)
    mean, low, high = others["refused_share"]
    assert low < mean < high
    shown = confirm(path, *words)
    assert "2 other seeds on the first day, 95 %" in shown
    assert "\nacme " in shown
    assert "(80/10)" in shown


def test_an_engine_as_fitted_serves_behind_the_gate(tmp_path: Path) -> None:
    fit = tmp_path / "fit.json"
    fit.write_text(json.dumps([{"engine": "node-1", "alpha": 0.014, "m": 0.0007}]))
    found = json.loads(confirm(scenario(tmp_path), "--fit", str(fit), "--processes", "1", "--json"))
    assert found["preemptions"] == 0
    assert found["tiers"]["interactive"]["first_p50_s"] > 0
    fit.write_text("[]")
    with pytest.raises(FleetError, match="curve"):
        confirm(scenario(tmp_path), "--fit", str(fit))


def test_engines_serve_only_behind_the_gate(tmp_path: Path) -> None:
    path = str(scenario(tmp_path))
    for words, said in (
        (["--engine", "h100-70b-fp8"], "only behind the gate"),
        (["--gate", "--engine", "abacus"], "no engine profile"),
        (["--gate", "--engine", "tiny", "--fit", "x.json"], "both"),
        (["--gate", "--days", "1", "--engine", "h100-70b-fp8", "--kv-tokens", "100"], "KV cache holds"),
    ):
        with pytest.raises(FleetError, match=said):
            CliRunner().invoke(estimate, ["confirm", path, *words], catch_exceptions=False)


def test_other_seeds_simulate_the_days_asked_for_and_say_which_they_are(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    few = ["--replications", "2", "--processes", "1", "--days", "2"]
    shown = confirm_days(path, *few, "--replications-days", "1")
    assert "2 other seeds on the first day of 2, 95 %" in shown
    assert "not in the 2 above" in shown
    document = json.loads(confirm_days(path, *few, "--replications-days", "all", "--json"))
    assert (document["replications"]["days"], document["replications"]["of_days"]) == (2, 2)
    assert (replicated_days(None, 30), replicated_days(None, 1), replicated_days("7", 7)) == (2, 1, 7)
    for text in ("0", "8", "-1", "1.5", "some", "\u0662", ""):
        with pytest.raises(InvalidInput, match="--replications-days"):
            replicated_days(text, 7)
    with pytest.raises(InvalidInput, match="whole month"):
        CliRunner().invoke(
            estimate, ["confirm", str(path), "--replications-days", "all"], catch_exceptions=False
        )


def test_parts_of_days_and_other_tiers_are_refused() -> None:
    assert whole_days(None) == 30
    for days in (0.5, 31, 1.5):
        with pytest.raises(InvalidInput, match="--days"):
            whole_days(days)
    document = {"profile": "A", "params": {"n": 5}}

    def read(tiers: Any) -> Any:
        return read_scenario({**document, "tiers": tiers}, Path(), lambda: pytest.fail("not recorded"))

    assert read({"batch": 1.0}).tiers == {Tier.BATCH: 1.0}
    for tiers in (
        {},
        [],
        {"gold": 1.0},
        {"batch": 0.4},
        {"batch": 2.0, "interactive": -1.0},
        {"batch": "all"},
    ):
        with pytest.raises(InvalidInput):
            read(tiers)
