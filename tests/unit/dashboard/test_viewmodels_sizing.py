"""Sizing in words: the verdict follows the answer, unknown is not equal, and the chart holds its limit."""

from __future__ import annotations

from typing import Any

from control.model_config_files import bundled, config_bytes
from dashboard import viewmodels_sizing as vm
from fleet.gpus import gpu
from fleet.model_config import read_model_config
from fleet.sizing import Demand, Sizing, size
from fleet.sizing_flags import Launch
from fleet.sizing_layout import EngineSettings


def sized(model: str, card: str, gpus: int, **demand: Any) -> Sizing:
    shape = read_model_config(config_bytes(model))
    return size(shape, gpu(card), gpus, EngineSettings(max_context=8192), Demand(**demand))


def test_the_tone_follows_the_answer():
    assert vm.headline(sized("llama-3.1-8b", "h100-sxm", 1))[0] == "good"
    assert (
        vm.headline(sized("llama-3.1-8b", "h100-sxm", 1, token_s=0.001))[0] == "watch"
    )  # 16 GB take 4.5 ms
    assert vm.headline(sized("deepseek-v3", "l4", 8))[0] == "act"


def test_a_spread_without_a_token_in_time_is_too_slow_not_possible():
    found = sized("llama-3.1-8b", "h100-sxm", 1, token_s=0.001)
    (verdict,), (batch,) = vm.choice_rows(found)["verdict"], vm.choice_rows(found)["batch"]
    assert verdict == "none"
    (why,) = [line for line in vm.minds(found) if "one sequence alone takes about " in line]
    assert why.endswith("allowed are 1 ms.")
    assert batch == "none"
    assert vm.choice_rows(found)["rate"] == ["\u2014"]  # no batch is in time: no rate, not a rate of 0
    assert next(card.value for card in vm.cards(found) if card.label == "Output") == "\u2014"
    assert "one sequence alone" in vm.headline(found)[1]


def test_the_largest_batch_is_that_of_one_replica():
    found = sized("llama-3.1-8b", "h100-sxm", 8)
    rows = vm.choice_rows(found)
    batches = dict(zip(rows["spread"], rows["batch"], strict=True))
    possible = {c.layout.words: c for c in found.choices if c.is_possible}
    assert any(c.layout.dp > 1 for c in possible.values())
    for words, choice in possible.items():
        assert int(batches[words]) * choice.layout.dp == choice.batch
        assert int(batches[words]) <= EngineSettings().max_seqs  # what `max_num_seqs` of a replica allows


def test_nothing_is_drawn_of_what_does_not_fit():
    found = sized("deepseek-v3", "l4", 8)
    assert vm.cards(found) == []
    assert vm.batch_figure(found) is None
    assert vm.difference_rows(found, {"a": Launch()}) == {}


def test_a_silent_node_is_unknown_and_a_different_one_stands_first():
    found = sized("llama-3.1-8b", "h100-sxm", 1)
    rows = vm.difference_rows(found, {"silent": Launch(), "old": Launch(max_num_batched_tokens=2048)})
    assert (rows["node"][0], rows["setting"][0], rows["verdict"][0]) == (
        "old",
        "max-num-batched-tokens",
        "differs",
    )
    assert {v for n, v in zip(rows["node"], rows["verdict"], strict=True) if n == "silent"} == {"unknown"}


def test_the_plan_crosses_the_limit_where_the_batch_ends():
    found = sized("llama-3.1-70b", "h100-sxm", 8)
    assert found.best is not None
    figure = vm.batch_figure(found)
    assert figure is not None
    plan = figure.spec["data"][0]
    each = found.best.batch // found.best.layout.dp
    inside = [y for x, y in zip(plan["x"], plan["y"], strict=True) if x <= each]
    assert inside
    assert max(inside) <= 1000 * found.demand.token_s


def test_every_bundled_model_is_read():
    assert len(bundled()) >= 7
    for name in bundled():
        assert read_model_config(config_bytes(name)).layers
