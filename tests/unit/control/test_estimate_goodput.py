"""`rhodeck estimate goodput`: from a fit or typed, what it refuses, what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from control.cli import main
from control.cli_estimate import estimate

FIT: list[dict[str, Any]] = [
    {"engine": "none", "alpha": None, "m": None},
    {
        "engine": "e1",
        "alpha": 0.012,
        "m": 0.00012,
        "knee": None,
        "m_past_knee": None,
        "prompt_tokens": 500.0,
        "decode_steps_per_request": 300.0,
    },
]


def fitted(folder: Path) -> Path:
    path = folder / "fit.json"
    path.write_text(json.dumps(FIT))
    return path


def run(*arguments: str) -> dict[str, Any]:
    found = CliRunner().invoke(estimate, ["goodput", *arguments, "--json"])
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_a_fitted_curve_gives_the_answer_of_the_same_numbers_typed(tmp_path: Path) -> None:
    of_fit = run("--fit", str(fitted(tmp_path)), "--gamma-us", "12", "--no-simulate")
    typed = run("--alpha-ms", "12", "--m-ms", "0.12", "--gamma-us", "12", "--no-simulate")
    of_fit_rates, typed_rates = ([row["rate"] for row in one["choices"]] for one in (of_fit, typed))
    assert of_fit_rates == pytest.approx(typed_rates, rel=1e-9)
    assert of_fit["curve"]["source"] == "fit"


def test_the_cache_bounds_the_batch() -> None:
    # A running sequence holds 500 + 300 (1 + 0.64) / 2 = 746 tokens: 90 % of 50,000 hold 60.
    found = run("--kv-tokens", "50000", "--no-simulate")
    assert max(row["batch"] for row in found["choices"]) == 60


def test_today_and_an_overload_are_printed() -> None:
    asked = ["goodput", "--alpha-ms", "12", "--m-ms", "0.12", "--gamma-us", "12", "--most-seqs", "16"]
    found = CliRunner().invoke(estimate, [*asked, "--seconds", "60", "--today-rps", "2", "--in-use", "8"])
    assert found.exit_code == 0, found.output
    for words in ("max_num_seqs", "Today: 2 requests/s with 8 at once", "without admission", "KV is not"):
        assert words in found.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "nobody", "--fit", "FIT"], "The file has: none, e1"),
        (["--fit", "MISSING"], "cannot be read"),
        (["--fit", "/dev/zero"], "has over 10,000,000 characters"),
        (["--fit", "ENDLESS"], "alpha is inf"),
        (["--alpha-ms", "12"], "m is not given"),
        (["--alpha-ms", "12", "--m-ms", "0.01", "--gamma-us", "100"], "Give fewer us a prompt token"),
    ],
)
def test_what_has_no_answer_is_refused_in_words(
    tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: str(tmp_path / f"{name}.json") for name in ("MISSING", "ENDLESS")}
    files["FIT"] = str(fitted(tmp_path))
    Path(files["ENDLESS"]).write_text('[{"engine": "e", "alpha": 1e999, "m": 0.001}]')
    with pytest.raises(SystemExit) as ended:
        main(["estimate", "goodput", *(files.get(one, one) for one in arguments)])
    assert ended.value.code == 1
    assert words in capsys.readouterr().err
