"""Comparisons as documents, links and commands."""

from __future__ import annotations

import base64
import csv
import io
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from control.cli_estimate import estimate
from control.comparison_documents import MAX_BYTES, as_link, canonical, from_link, read_comparison
from control.comparison_report import as_csv, as_json, as_text, warnings
from control.rate_profile_files import bundled_profile
from fleet.errors import InvalidInput

TWO: dict[str, Any] = {
    "traffic": "A",
    "strategies": [
        {"name": "five", "params": {"n": 5, "D": 1.5}},
        {"name": "five + spot", "params": {"n": 5, "D": 1.5, "burst": {"n": 2}}},
    ],
}


def test_a_link_carries_every_input_and_gives_the_same_result() -> None:
    ready = read_comparison({**TWO, "mean_rps": 11, "refusal_usd": 0.02}, bundled_profile)
    again = read_comparison(from_link(as_link(ready.document)), bundled_profile)
    assert again.document == ready.document
    assert again.sha256 == ready.sha256
    assert as_json(again, again.run()) == as_json(ready, ready.run())


def test_defaults_are_written_out_so_that_a_later_default_changes_no_old_link() -> None:
    ready = read_comparison({"traffic": "A"}, bundled_profile)
    assert ready.document["price"] == 28.0
    assert ready.document["spot_price"] == 16.0
    assert len(ready.document["strategies"]) == 6
    assert all("ctl_s" in one["params"] for one in ready.document["strategies"])


def test_reading_a_complete_document_changes_nothing() -> None:
    odd = {**TWO, "tiers": {"interactive": 0.337, "batch": 0.331, "best_effort": 0.337}}
    once = read_comparison(odd, bundled_profile)
    assert read_comparison(once.document, bundled_profile).sha256 == once.sha256


def test_spot_nodes_without_a_price_take_the_comparison_s() -> None:
    ready = read_comparison({**TWO, "spot_price": 9}, bundled_profile)
    assert ready.document["strategies"][1]["params"]["burst"]["price"] == 9.0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"traffic": None}, "/traffic"),
        ({"pirce": 3}, "/pirce"),
        ({"mu": 0}, "/mu"),
        ({"mu": float("nan")}, "/mu"),
        ({"price": True}, "/price"),
        ({"mean_rps": -1}, "/mean_rps"),
        ({"version": 2}, "/version"),
        ({"tiers": {"gold": 1.0}}, "/tiers/gold"),
        ({"tiers": {"batch": 0.5}}, "/tiers"),
        ({"strategies": []}, "/strategies"),
        ({"strategies": [{"name": "x", "params": {"n": 0}}]}, "/strategies/0/params/n"),
        ({"strategies": [{"name": "x\n", "params": {"n": 1}}]}, "/strategies/0/name"),
        ({"strategies": [{"name": "x", "params": {"n": 1}, "reserved": 2}]}, "/strategies/0/reserved"),
        ({"sources": {"mu": 3}}, "/sources"),
        ({"weights": {"interactive": 70}}, "/weights"),
        ({"weights": {"interactive": 70, "batch": 0, "best_effort": 5}}, "/weights/batch"),
        ({"tenants": []}, "/tenants"),
        ({"tenants": {"gold": {"a": 1}}}, "/tenants/gold"),
        ({"tenants": {"batch": {}}}, "/tenants/batch"),
        ({"tenants": {"batch": {"a": 0.5}}}, "/tenants/batch"),
        ({"tenants": {"batch": {"a": [1, 0]}}}, "/tenants/batch/a"),
        ({"tenants": {"batch": {"a": [1, 1, 1]}}}, "/tenants/batch"),
        ({"tenants": {"batch": {"a\n": 1}}}, "/tenants/batch"),
        ({"tenants": {"batch": {f"t{n}": 0.04 for n in range(25)}}}, "/tenants/batch"),
        ({"burst_s": 0}, "/burst_s"),
        ({"baseline": "nobody"}, "/baseline"),
        ({"refusal_acceptable": 1}, "/refusal_acceptable"),
        ({"mu": 10**400}, "/mu"),
        ({"mean_rps": 1e6, "mu": 0.001}, "/mu"),  # no page could say how many of a billion to reserve
        ({"mean_rps": 1e6, "strategies": None}, "/mu"),  # 3e6 requests/s at the peak: a million nodes
    ],
)
def test_a_fault_is_named_by_its_pointer(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_comparison({**TWO, **change}, bundled_profile)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "packed",
    [
        "",
        "!!!!",
        "é",
        "A" * 7_000,
        base64.urlsafe_b64encode(b"not packed").decode(),
        base64.urlsafe_b64encode(zlib.compress(b"[1]")).decode(),
        base64.urlsafe_b64encode(zlib.compress(b" " * (MAX_BYTES + 1))).decode(),  # a small bomb
        base64.urlsafe_b64encode(zlib.compress(canonical(TWO))[:-6]).decode(),
    ],
)
def test_a_damaged_or_hostile_link_is_refused(packed: str) -> None:
    with pytest.raises(InvalidInput):
        from_link(packed)


def test_the_sheet_has_a_row_a_strategy_every_input_and_no_formula() -> None:
    names = ("=2+5", "\ufe662+5", "a;=2+5")  # plain, a small sign, behind a semicolon
    one = {"params": {"n": 5, "D": 1.5}}
    hostile = {**TWO, "strategies": [{"name": name, **one} for name in names]}
    ready = read_comparison(hostile, bundled_profile)
    rows = list(csv.reader(io.StringIO(as_csv(ready, ready.run()))))
    assert [row[0] for row in rows[1:4]] == ["'=2+5", "'\ufe662+5", "a;'=2+5"]
    assert float(rows[1][rows[0].index("cost_usd")]) == 100_800
    inputs = {row[0]: row[1:] for row in rows[rows.index(["input", "value", "source"]) :]}
    assert inputs["price"] == [
        "28",
        "default: 8xH100 on demand, low end of hyperscaler list prices (2026-05)",
    ]
    assert inputs["content"][0] == ready.sha256


def test_the_command_compares_a_document_and_a_bundled_traffic(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    path.write_text(json.dumps(TWO))
    found = CliRunner().invoke(estimate, ["compare", str(path), "--json"])
    assert found.exit_code == 0, found.output
    outcomes = json.loads(found.stdout)["outcomes"]
    assert [(o["strategy"], round(o["cost_usd"])) for o in outcomes] == [
        ("five", 100_800),
        ("five + spot", 111_584),  # published for 2 spot nodes at 16 USD
    ]
    text = CliRunner().invoke(estimate, ["compare", "A"])
    assert text.exit_code == 0, text.output
    assert "pays if a refusal costs over 5.19 cents" in text.output
    assert "Static + admission alone is the wrong answer" in text.output


def test_a_wrong_document_ends_the_command_with_the_pointer(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text('{"traffic": "A", "mu": NaN}')
    found = CliRunner().invoke(estimate, ["compare", str(path)])
    assert found.exit_code != 0
    assert isinstance(found.exception, InvalidInput)


WHOSE: dict[str, Any] = {
    **TWO,
    "tiers": {"interactive": 0.5, "batch": 0.5},
    "weights": {"interactive": 50, "batch": 50},
    "tenants": {"batch": {"=cmd": 0.9, "beta": [0.1, 3]}},
}


def test_a_document_from_before_tenants_and_weights_still_opens() -> None:
    whole = read_comparison(TWO, bundled_profile).document
    old = {key: value for key, value in whole.items() if key not in ("weights", "tenants", "burst_s")}
    again = read_comparison(from_link(as_link(old)), bundled_profile)
    assert again.document == whole
    assert [(flow.tenant, flow.tier) for flow in again.flows] == [
        ("", "interactive"),
        ("", "batch"),
        ("", "best_effort"),
    ]


def test_tenants_and_weights_decide_who_is_refused_and_are_in_link_sheet_and_text() -> None:
    ready = read_comparison(WHOSE, bundled_profile)
    again = read_comparison(from_link(as_link(ready.document)), bundled_profile)
    assert again.document == ready.document
    compared = again.run()
    noticed = {(n.tier, n.tenant): n for n in compared.outcomes[0].noticed}
    # equal shares at equal weights: both tiers are refused alike
    assert noticed["interactive", ""].refused_share == pytest.approx(noticed["batch", ""].refused_share)
    tenants = [noticed["batch", name] for name in ("=cmd", "beta")]
    assert sum(n.refused for n in tenants) == pytest.approx(noticed["batch", ""].refused)
    # beta asks for a tenth of the tier and has three quarters of the weight: nothing of it is refused
    assert noticed["batch", "beta"].refused == pytest.approx(0, abs=1e-6)
    rows = list(csv.reader(io.StringIO(as_csv(again, compared))))
    shown = [row for row in rows if row[:3] == ["five", "batch", "'=cmd"]]
    assert float(shown[0][4]) == pytest.approx(noticed["batch", "=cmd"].refused)
    text = as_text(again, compared)
    assert "batch (=cmd 0.9, beta 0.1 weight 3)" in text
    assert "interactive 50, batch 50" in text


def test_a_measured_burst_decides_whether_an_autoscaler_comes_in_time() -> None:
    # 90 s against a start of 240 s; the traffic's own bursts last 36 minutes
    short = read_comparison({**TWO, "burst_s": 90}, bundled_profile)
    said = " ".join(warnings(short, short.run()))
    assert "Bursts as given last 90 s (median), a node starts in 4 min" in said
    assert "comes too late" in said
