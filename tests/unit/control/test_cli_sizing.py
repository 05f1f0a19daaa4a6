"""`rhodeck sizing`: one answer for people and programs, and refused input with its reason."""

from __future__ import annotations

import json

from control.cli import main


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        main(["sizing", *arguments])
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_people_and_programs_get_the_same_answer(capsys):
    asked = ("llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "8")
    code, out, _ = run(capsys, *asked)
    assert code == 0
    _, told, _ = run(capsys, *asked, "--json")
    document = json.loads(told)
    best = document["best"]
    assert f"Best: {best['words']}" in out
    assert f"{best['memory']['tokens']['expected']:,.0f} tokens" in out
    assert f"--tensor-parallel-size {best['layout']['tp']}" in out
    assert document["efficiency"][0] < 1  # a bound is not a forecast, and the answer says by how much


def test_nothing_fits_is_said_with_reasons_and_an_exit_code(capsys):
    code, out, _ = run(capsys, "deepseek-v3", "--gpu", "l4", "--gpus", "2")
    assert code == 1
    assert "Nothing fits" in out
    assert "GB a GPU for weights and work" in out


def test_aims_set_the_tokens_of_a_step(capsys):
    seen = {}
    for aim in ("tail", "balance", "cost"):
        _, out, _ = run(capsys, "llama-3.1-8b", "--aim", aim, "--json")
        seen[aim] = json.loads(out)["settings"]["batched_tokens"]
    assert seen == {"tail": 4096, "balance": 8192, "cost": 16384}


def test_a_file_that_is_not_there_and_one_that_is_no_model(capsys, tmp_path):
    code, _, err = run(capsys, str(tmp_path / "none.json"))
    assert code == 1
    assert "cannot read" in err
    assert "llama-3.1-70b" in err  # the bundled ones are named
    wrong = tmp_path / "config.json"
    wrong.write_text('{"a": 1}')
    code, _, err = run(capsys, str(wrong))
    assert code == 1
    assert "no num_hidden_layers" in err
