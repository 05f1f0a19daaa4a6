"""`rhodeck estimate run` and the traffic it takes."""

from __future__ import annotations

import csv
import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy.orm import Session

from control.cli_estimate import estimate
from control.estimate_scenarios import json_object, read_scenario
from control.rate_profile_files import recorded_rates
from control.tables import GatewayRow, GatewaySampleRow
from fleet.errors import FleetError, InvalidInput
from fleet.rate_profiles import RateProfile, read_csv_text, recorded_profile

REFERENCE = Path(__file__).parents[2] / "data" / "cost" / "reference.csv"


def no_record() -> RateProfile:
    raise AssertionError("the record was not asked for")


def run(tmp_path: Path, scenario: Any, *options: str) -> Any:
    path = tmp_path / "scenario.json"
    path.write_text(scenario if isinstance(scenario, str) else json.dumps(scenario))
    return CliRunner().invoke(estimate, ["run", str(path), *options])


def test_the_command_prints_the_reference_columns(tmp_path: Path) -> None:
    with REFERENCE.open(newline="") as handle:
        row = next(r for r in csv.DictReader(handle) if r["strategy"] == "hybrid_pred_spot_admission")
    done = run(tmp_path, {"profile": row["profile"], "params": json.loads(row["params"])}, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    columns = list(row)[4:]
    assert list(found)[: len(columns)] == columns
    for column in columns:
        assert found[column] == pytest.approx(float(row[column]), rel=1e-6), column


def test_mu_and_price_count_wherever_they_stand(tmp_path: Path) -> None:
    inside = run(tmp_path, {"profile": "B", "params": {"n": 5, "D": 1.5, "mu": 4, "price": 10}}, "--json")
    beside = run(tmp_path, {"profile": "B", "params": {"n": 5, "D": 1.5}, "mu": 4, "price": 10}, "--json")
    assert inside.output == beside.output
    assert json.loads(inside.output)["cost_month"] == pytest.approx(36_000)
    with pytest.raises(InvalidInput, match="/mu is 3"):
        read_scenario({"profile": "B", "params": {"n": 5, "mu": 4}, "mu": 3}, tmp_path, no_record)


def test_a_file_beside_the_scenario_is_its_traffic(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "mine.csv.gz", "wt") as handle:
        handle.write("bin,rate_rps\n" + "".join(f"{k},{6 if k % 2 else 12}\n" for k in range(8640)))
    done = run(tmp_path, {"profile": "mine.csv.gz", "params": {"n": 3, "D": 0}}, "--json")
    found = json.loads(done.output)
    assert found["offered"] == pytest.approx(9 * 720 * 3600)
    assert found["rej_frac"] == pytest.approx(1 / 6)  # 3 of each 12 + 6


def test_a_trace_is_counted_into_bins_without_its_broken_end() -> None:
    lines = ["t_s,input_tokens,output_tokens", "0.5,100,10", "9.9,300,30", "10,100,10", "35,100,10"]
    profile = read_csv_text("t", "test", lines)
    assert profile.rates_rps.tolist() == [0.2, 0.1, 0.0]
    assert (profile.tokens_in, profile.tokens_out, profile.requests) == (150, 15, 4)
    assert any("150 + 15 tokens" in note for note in profile.notes())


def test_held_rates_fill_their_steps() -> None:
    profile = read_csv_text("t", "test", ["t_s,rate_rps", "0,6", "30,12"])
    assert profile.rates_rps.tolist() == [6, 6, 6, 12, 12, 12]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["bin,rate_rps"], "no rows"),
        (["bin,rate_rps", "0,1", "2,1"], "bin 2 where bin 1 is due"),
        (["bin,rate_rps", "0,-1"], "line 2: rate_rps is '-1'"),
        (["bin,rate_rps", "0,inf"], "line 2: rate_rps is 'inf'"),
        (["t_s,rate_rps", "0,1", "10,1", "30,1"], "line 4: t_s does not go on in even steps"),
        (["t_s,rate_rps", "0,1", "3,1"], "even steps of whole 10 s"),
        (["t_s,rate_rps", "0,6", "1e12,6"], "last 23,148,148 days"),  # 16 TB of bins
        (["bin,rate_rps", "0,1e300"], "line 2: rate_rps is '1e300'"),
        (["t_s", "5", "4"], "line 3: t_s is 4 after 5"),
        (["t_s", "1e12"], "line 2: t_s is 1e+12"),
        (["when,what", "1,2"], "has the columns what, when"),
    ],
)
def test_a_broken_profile_is_refused_at_its_line(lines: list[str], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_csv_text("t", "test", lines)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("nonsense", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"profile":"A","profile":"B","params":{"n":1}}', "stands twice"),
        ({"profile": "A"}, "/params is missing"),
        ({"profile": "A", "params": {"n": 1}, "slo": 2}, "/slo is unknown"),
        ({"profile": 3, "params": {"n": 1}}, "/profile is 3"),
        ({"profile": "nowhere.csv", "params": {"n": 1}}, "nowhere.csv cannot be read"),
        ({"profile": "A", "params": {"n": 1}, "mu": 0}, "mu is 0"),
        ({"profile": "A", "params": {"n": 1}, "price": "28"}, "/price is '28'"),
        ('{"profile":"A","params":{"n":' + "9" * 5_000 + "}}", "too long a number"),
        ('{"profile":"A","params":{"n":1},"mu":' + "9" * 400 + "}", "too long a number"),
        ('{"profile":"A","params":{"n":1},"mu":1e999}', "mu is inf"),
        ('{"profile":"A","params":{"n":NaN}}', "NaN is no number"),
        ('{"profile":"\\ud800","params":{"n":1}}', "not JSON"),
        ("[" * 200_000, "not JSON"),
        ({"profile": "a\0b", "params": {"n": 1}}, "/profile is 'a"),
        ({"profile": "a" * 900, "params": {"n": 1}}, "cannot be read"),
        ({"profile": "A", "params": {"n": "x" * 100_000}}, "/params/n is 'xxx"),
        ({"profile": "A", "params": {"n": 1}, "x" * 100_000: 1}, "is unknown"),
    ],
)
def test_a_wrong_scenario_says_what_is_wrong(tmp_path: Path, scenario: Any, words: str) -> None:
    done = run(tmp_path, scenario)
    assert isinstance(done.exception, FleetError)
    assert words in done.exception.message
    assert len(done.exception.message) <= 300


def test_a_document_of_many_keys_is_read_in_time_proportional_to_them() -> None:
    keys = {f"k{place}": 0 for place in range(60_000)}  # each against each would be 3.6e9 comparisons
    assert json_object(json.dumps(keys), "it") == keys


def test_bins_nobody_counted_hold_the_rate_before_or_refuse() -> None:
    profile = recorded_profile("test", [(10, 20.0), (10, None), (10, 40.0), (10, 0.0), (10, 10.0)])
    assert profile.rates_rps.tolist() == [2, 2, 4, 0, 1]
    assert profile.filled_share == pytest.approx(0.2)
    with pytest.raises(InvalidInput, match="2 of 5 recorded bins"):
        recorded_profile("test", [(10, 20.0), (10, None), (10, None), (10, 0.0), (10, 10.0)])


@pytest.mark.postgres
def test_recorded_arrivals_are_those_of_all_gateways(session: Session) -> None:
    start = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
    for gateway, offered in (("gw-1", 30), ("gw-2", 10)):
        session.add(
            GatewayRow(name=gateway, base_url=f"http://{gateway}", state="active", created_at=start)
        )
        session.flush()
        for k in range(1, 31):  # rounds of 20 s: each fills two bins
            session.add(
                GatewaySampleRow(
                    at=start + timedelta(seconds=20 * k),
                    gateway=gateway,
                    tenant="acme",
                    tier="interactive",
                    covered_s=20.0,
                    offered=offered,
                )
            )
    session.flush()
    profile = recorded_rates(session, start, start + timedelta(seconds=600))
    assert profile.rates_rps == pytest.approx([2.0] * 60)


@pytest.mark.postgres
def test_a_gateway_that_was_not_heard_leaves_a_gap_and_not_less_traffic(session: Session) -> None:
    start = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
    # gw-2 is silent from 200 s to 280 s and comes back; gw-3 is removed after 100 s; gw-4 was never heard.
    rounds = {
        "gw-1": range(1, 31),
        "gw-2": [*range(1, 11), *range(15, 31)],
        "gw-3": range(1, 6),
        "gw-4": [],
    }
    for gateway, heard in rounds.items():
        state = "removed" if gateway == "gw-3" else "active"
        session.add(GatewayRow(name=gateway, base_url=f"http://{gateway}", state=state, created_at=start))
        session.flush()
        for k in heard:
            session.add(
                GatewaySampleRow(
                    at=start + timedelta(seconds=20 * k),
                    gateway=gateway,
                    tenant="acme",
                    tier="interactive",
                    covered_s=20.0,
                    offered=20,
                )
            )
    session.flush()
    profile = recorded_rates(session, start, start + timedelta(seconds=600))
    # 1 request/s each: three for 100 s, then two. The gap holds its neighbour's rate, not half of it.
    assert profile.rates_rps == pytest.approx([3.0] * 10 + [2.0] * 50)
    assert profile.filled_share == pytest.approx(10 / 60)  # 8 bins, and 2 whose round is not over
    assert "13.3 % of it unknown: not every gateway was heard" in profile.source
    assert "without 1 active gateways" in profile.source


def test_events_stand_beside_the_fluid_answer(tmp_path: Path) -> None:
    (tmp_path / "calm.csv").write_text("bin,rate_rps\n" + "".join(f"{k},0.2\n" for k in range(8640)))
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({"profile": "calm.csv", "params": {"n": 1, "D": 1.5}}))
    arguments = ["confirm", str(path), "--replications", "2", "--slots", "4", "--json"]
    done = CliRunner().invoke(estimate, arguments)
    assert done.exit_code == 0, done.output
    told = done.stderr.splitlines()  # no terminal reads it: plain lines
    assert {"progress: month 1 of 2 0/30", "progress: month 2 of 2 30/30"} <= set(told)
    found = json.loads(done.stdout)
    mean, low, high = found["events"]["offered"]
    assert low < mean < high
    assert mean == pytest.approx(0.2 * 720 * 3600, rel=0.01)
    assert found["fluid"]["cost_month"] == found["events"]["cost_month"][0] == pytest.approx(20_160)
    shown = CliRunner().invoke(estimate, ["confirm", str(path), "--replications", "1"])
    assert all(f"\n{row} " in shown.stdout for row in ("cost, USD", "refused", "wait p99, s", "rho"))
