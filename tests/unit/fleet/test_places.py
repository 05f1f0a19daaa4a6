"""Things by age, whoever leaves, against a plain list; and no step that takes longer where more stand."""

from __future__ import annotations

import random
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from fleet.places import Places

Pick = Callable[[random.Random, int], int]

LEAVES: dict[str, Pick] = {
    "the oldest": lambda rng, count: 0,
    "the newest": lambda rng, count: count - 1,
    "any": lambda rng, count: rng.randrange(count),
    "one of the older half": lambda rng, count: rng.randrange((count + 1) // 2),
}


@pytest.mark.parametrize("most", [1, 3, 255, 256, 257, 1_500])
@pytest.mark.parametrize("leaves", LEAVES)
def test_things_stand_by_age_whoever_leaves_and_however_often_all_have_left(leaves: str, most: int):
    rng, pick, places = random.Random(most), LEAVES[leaves], Places[str]()
    standing: list[tuple[int, str]] = []  # (place, thing): the truth
    numbers: list[int] = []
    for step in range(8_000):
        grows = step % 4_000 < 2_400
        if len(standing) < most and (not standing or rng.random() < (0.8 if grows else 0.2)):
            numbers.append(places.add(f"r{step}"))
            standing.append((numbers[-1], f"r{step}"))
        else:
            place, _ = standing.pop(pick(rng, len(standing)))
            places.remove(place)
        assert places.taken == len(standing)
        if rng.random() < 0.1:  # not each time: a question tidies up, and hides what another left
            assert places.oldest() == (standing[0][1] if standing else None)
        if rng.random() < 0.01:
            assert list(places.oldest_first()) == [one for _, one in standing]
            assert list(places.newest_first()) == [one for _, one in reversed(standing)]
    assert numbers == sorted(set(numbers))  # no place is given twice


def remove_and_ask(places: Places[int], place: int) -> None:
    places.remove(place)
    places.oldest()


def lines_run(act: Callable[[Places[int], int], None], places: Places[int], place: int) -> int:
    """Return how many lines of Python run."""
    count = 0

    def trace(*_: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act(places, place)
    finally:
        sys.settrace(before)
    return count


def most_lines(size: int) -> int:
    """Return the most lines that one of 1,000 steps takes while as many as `size` leave in any order."""
    places = Places[int]()
    order = [places.add(one + 1) for one in range(size)]
    random.Random(4).shuffle(order)
    most = 0
    for at, place in enumerate(order):
        if at % (size // 1_000):
            places.remove(place)
        else:
            most = max(most, lines_run(remove_and_ask, places, place))
    assert places.taken == 0
    return most


def test_no_single_step_takes_longer_where_a_hundred_thousand_stand():
    # The oldest is sought from where it stood last: over the rest of a block, and one step for each
    # block that is gone since. 256 stand in a block; a handful of lines for each.
    assert most_lines(100_000) <= 6 * (256 + 100_000 / 256)


def test_what_is_kept_is_a_few_blocks_however_many_came_and_one_never_leaves():
    places = Places[str]()
    places.add("stays")
    tracemalloc.start()
    try:
        for _ in range(50_000):
            places.remove(places.add("leaves"))
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(places.oldest_first()) == ["stays"]
    assert (places.taken, places.oldest()) == (1, "stays")
    assert kept_bytes < 10 * 256 * 8  # 50,000 places would be 400,000 bytes
