"""The Sizing page: without a fleet, with one, with input that is refused, and from a shared address."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

Show = Callable[..., AppTest]


def column(at: AppTest, name: str) -> list[object]:
    return next(list(d.value[name]) for d in at.dataframe if name in d.value.columns)


def said(at: AppTest) -> str:
    return " ".join(str(e.value) for e in (*at.markdown, *at.caption, *at.info, *at.error, *at.success))


def test_a_model_is_sized_before_any_node_is_known(empty: Show) -> None:
    at = empty("sizing")
    assert [e.message for e in at.exception] == []
    assert column(at, "spread")[0] == "TP 8"  # 141 GB in 16 bit over eight GPUs with NVLink
    assert "--tensor-parallel-size 8" in at.code[0].value
    assert "No pool is registered yet" in said(at)


def test_what_a_pool_runs_stands_beside_what_is_suggested(full: Show) -> None:
    at = full("sizing")
    assert [e.message for e in at.exception] == []
    assert column(at, "node")
    runs = dict(zip(column(at, "setting"), column(at, "runs"), strict=True))
    assert runs["max-num-seqs"] == "64"  # as the pool is registered


def test_an_address_reproduces_its_answer(empty: Show) -> None:
    at = empty("sizing", sizing_model="deepseek-v3", sizing_gpu="h100-sxm", sizing_gpus="8")
    assert "no spread over 8 x H100" in said(at)
    assert all("GB a GPU for weights" in str(why) for why in column(at, "reason"))
    at = empty("sizing", sizing_model="deepseek-v3", sizing_gpu="h200", sizing_gpus="8")
    assert "fits 8 x H200" in said(at)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"not json", "JSON"), (json.dumps({"hidden_size": "<b>"}).encode(), "has no num")],
)
def test_a_hostile_file_is_refused_in_words(empty: Show, content: bytes, reason: str) -> None:
    at = empty("sizing")
    at.file_uploader(key="sizing_file").set_value(("config.json", content, "application/json")).run()
    assert [e.message for e in at.exception] == []
    assert reason in " ".join(str(e.value) for e in at.error)
    assert not at.dataframe
