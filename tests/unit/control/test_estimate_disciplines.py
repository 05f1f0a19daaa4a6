"""`rhodeck estimate disciplines`: what it prints, and files it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from control.cli_estimate import estimate
from control.replay_files import scaled, trace_arrivals
from fleet.errors import InvalidInput
from fleet.outcomes import Tier

HEAD = "t_s,input_tokens,output_tokens,tenant,tier\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_a_comparison_is_printed_with_who_notices() -> None:
    asked = ["disciplines", "--compare", "chunking", "--nodes", "1", "--seconds", "30", "--rate", "8"]
    found = CliRunner().invoke(estimate, asked)
    assert found.exit_code == 0, found.output
    for words in ("How much of a prompt goes into one step?", "whole prompts", "chunks of 2048 against"):
        assert words in found.stdout


def test_a_trace_is_compared_as_json(tmp_path: Path) -> None:
    rows = "".join(f"{n / 4},{200 + n},{50 + n},{'ab'[n % 2]},interactive\n" for n in range(100))
    path = written(tmp_path, HEAD + rows)
    asked = ["disciplines", "--compare", "order", "--nodes", "1", "--trace", str(path), "--json"]
    found = CliRunner().invoke(estimate, asked)
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    cases = document["comparisons"][0]["cases"]
    assert [case["all"]["offered"] for case in cases] == [100] * 5
    assert set(cases[0]["by_tenant"]) == {"a", "b"}


def test_a_trace_is_read_in_order_of_time_and_scaled_to_a_rate(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + "4,10,20,a,batch\n2,30,40,b,interactive\n0,9000,1,c,best_effort\n")
    found = trace_arrivals(path)
    assert [one.request.tenant for one in found] == ["c", "b", "a"]
    assert [one.request.tier for one in found] == [Tier.BEST_EFFORT, Tier.INTERACTIVE, Tier.BATCH]
    assert [one.request.endpoint for one in found] == ["long", "short", "short"]
    assert [one.at_s for one in scaled(found, 2.0)] == [0.0, 0.5, 1.0]  # two gaps of a half: two a second


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("t_s,input_tokens\n1,2\n", "output_tokens"),
        (HEAD, "no requests"),
        (HEAD + "1,nan,3,a,batch\n", "line 2: input_tokens"),
        (HEAD + "1,2,-3,a,batch\n", "line 2: output_tokens"),
        (HEAD + "1,2,3,a,vip\n", "line 2: tier"),
        (HEAD + f"1,2,3,{'x' * 64},batch\n", "line 2: tenant"),
    ],
)
def test_a_broken_trace_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        trace_arrivals(written(tmp_path, text))
