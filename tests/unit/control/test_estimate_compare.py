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
from control.comparison_report import as_csv, as_json
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
        ({"baseline": "nobody"}, "/baseline"),
        ({"refusal_acceptable": 1}, "/refusal_acceptable"),
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
    hostile = {**TWO, "strategies": [{"name": "=2+5", "params": {"n": 5, "D": 1.5}}]}
    ready = read_comparison(hostile, bundled_profile)
    rows = list(csv.reader(io.StringIO(as_csv(ready, ready.run()))))
    assert rows[1][0] == "'=2+5"
    assert float(rows[1][rows[0].index("cost_usd")]) == 100_800
    inputs = {row[0]: row[1:] for row in rows[3:]}
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
