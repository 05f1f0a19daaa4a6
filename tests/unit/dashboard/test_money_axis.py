"""An axis of dollars never repeats a label: its decimals follow its range."""

from __future__ import annotations

import pytest

from dashboard import money_axis


@pytest.mark.parametrize(
    ("top", "decimals"),
    [(201_600.0, 0), (10.0, 0), (9.99, 2), (1.0, 2), (0.1, 2), (0.04, 4), (0.0, 4)],
)
def test_an_axis_of_five_steps_has_five_different_labels(top: float, decimals: int) -> None:
    assert money_axis.digits([None, top]) == decimals
    if top:  # an axis is cut into at least five steps, whatever they are
        labels = {f"{top * step / 5:,.{decimals}f}" for step in range(6)}
        assert len(labels) == 6


def test_an_axis_that_does_not_begin_at_zero_is_told_by_what_it_spans() -> None:
    assert money_axis.axis([100.5, 104.0], least=100.0) == {"tickprefix": "$", "tickformat": ",.2f"}
    assert money_axis.axis([-20.0, 3.0])["tickformat"] == ",.0f"  # an adjustment in somebody's favour
