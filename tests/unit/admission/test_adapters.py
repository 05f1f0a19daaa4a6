"""What counts as an adapter in what a node says, and what does not."""

from __future__ import annotations

import json

import pytest

from admission.adapters import MAX_ADAPTERS, adapters_in


def said(*models: tuple[object, object]) -> bytes:
    return json.dumps({"data": [{"id": name, "parent": parent} for name, parent in models]}).encode()


def test_adapters_of_the_nodes_own_models_count() -> None:
    answer = said(("base", None), ("sql", "base"), ("chat", "base"), ("other", "elsewhere"))
    assert adapters_in(answer, ("base",), {"base"}) == ("chat", "sql")


def test_a_name_that_is_registered_anywhere_is_not_taken_over() -> None:
    assert adapters_in(said(("victim", "base")), ("base",), {"base", "victim"}) == ()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b'{"data": 3}',
        b'{"data": [1, null, []]}',
        said((3, "base"), (None, "base"), ("x", 7)),
        said(("", "base"), ("a\nb", "base"), ("a" * 201, "base")),
    ],
)
def test_what_is_no_list_of_adapters_names_none(answer: bytes) -> None:
    assert adapters_in(answer, ("base",), {"base"}) == ()


def test_so_many_are_taken_and_no_more() -> None:
    many = said(*((f"a{n:05}", "base") for n in range(5_000)))
    assert len(adapters_in(many, ("base",), {"base"})) == MAX_ADAPTERS
