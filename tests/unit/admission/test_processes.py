"""Who accepts for whom while gateway processes are away, and which settings of several processes go."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from admission.processes import PAUSES_S, cover
from admission.settings import load
from fleet.errors import InvalidInput


@pytest.mark.parametrize("listening", list(itertools.product([True, False], repeat=4)))
def test_every_process_that_is_away_has_one_that_listens_while_any_does(listening: list[bool]) -> None:
    made = cover(listening)
    away = {place for place, one in enumerate(listening) if not one}
    assert set(made) == (away if any(listening) else set())
    assert all(listening[neighbour] for neighbour in made.values())


def test_the_next_one_that_listens_takes_over() -> None:
    assert cover([True, False, False, True]) == {1: 3, 2: 3}
    assert cover([False, True]) == {0: 1}


def test_a_process_that_keeps_dying_is_started_less_and_less_often() -> None:
    assert list(PAUSES_S) == sorted(PAUSES_S)
    assert PAUSES_S[-1] == 30


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"processes": "0"}, "--processes"),
        ({"processes": "65"}, "--processes"),
        ({"processes": "3", "port": "8402", "admin_port": "8400"}, "--admin-port"),  # 8400 to 8402
        ({"processes": "3", "admin_port": "65534"}, "--admin-port"),
        ({"admin_port": "8400"}, "--admin-port"),
        ({"admin_host": "127.0.0.1"}, "--admin-port"),
        ({"admin_port": "0", "admin_host": "0.0.0.0"}, "--admin-host"),  # open, without a token
    ],
)
def test_settings_of_ports_that_do_not_go_together_are_refused(given: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load({"name": "gw", "state_dir": str(Path("state")), **given})
    assert caught.value.field == field
