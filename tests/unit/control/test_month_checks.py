"""The checklist of a month is read by people who close books: gaps are named in words, not by codes."""

from __future__ import annotations

import pytest

from control.month_checks import GAPS, gap_words
from fleet.quality_kinds import MEANINGS, Kind


@pytest.mark.parametrize("kind", GAPS)
def test_a_gap_is_named_as_the_data_quality_page_names_it(kind: Kind) -> None:
    assert gap_words(kind, 1) == f"{MEANINGS[kind].title} at 1 source"
    assert gap_words(kind, 2).endswith(" at 2 sources")
    assert "_" not in gap_words(kind, 2)
