"""Findings in words: which numbers suffer is read in full, also beside the menu of a narrow window."""

from __future__ import annotations

import textwrap
from datetime import UTC, datetime, timedelta

import pytest

from control.queries_quality import FindingView
from dashboard import tables
from dashboard import viewmodels_quality as vm
from dashboard.data import Pulse
from dashboard.times import UTC_ZONE
from fleet.quality_kinds import MEANINGS, METRIC_EFFECTS, Finding, Kind

AT = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
#: A cell that wraps has three lines; its edges take 16 pixels, a letter about 6.7.
LINES, EDGES_PX, LETTER_PX = 3, 16, 6.7


def view(finding: Finding, *, of_gateway: bool = False) -> FindingView:
    meaning = MEANINGS[finding.kind]
    return FindingView(
        id=1, scope="gateway" if of_gateway else "node", source="n1", engine="", metric=finding.metric,
        kind=finding.kind, title=meaning.title, severity=meaning.severity, since=AT - timedelta(minutes=1),
        until=None, detail="", affects=finding.affects(of_gateway=of_gateway), do=meaning.do,
    )  # fmt: skip


@pytest.mark.parametrize("of_gateway", [False, True])
def test_what_suffers_is_read_in_full_at_every_kind_and_metric(*, of_gateway: bool) -> None:
    found = [Finding(kind, metric=metric) for kind in Kind for metric in ("", *METRIC_EFFECTS)]
    letters = int((tables.QUALITY["affects"]["width"] - EDGES_PX) / LETTER_PX)
    cells = vm.rows([view(f, of_gateway=of_gateway) for f in found], AT, UTC_ZONE)["affects"]
    assert {cell for cell in cells if len(textwrap.wrap(cell, letters)) > LINES} == set()


def test_a_list_of_everything_is_called_that_and_keeps_what_is_beside_it() -> None:
    rows = vm.rows([view(Finding(Kind.NO_PAGE)), view(Finding(Kind.GAP))], AT, UTC_ZONE)
    assert rows["affects"] == [
        "every number from it, silent-node alert",
        "arrivals, throughput, rho",  # a part of everything is listed
    ]


def test_a_verdict_that_all_is_well_still_names_its_notes() -> None:
    pulse = Pulse(AT, 10.0)
    said = vm.summary([view(Finding(Kind.CAPACITY_UNKNOWN))], pulse, AT)
    assert said[0] == "good"
    assert said[1].endswith("1 note worth knowing below.")
    assert vm.summary([], pulse, AT)[1].endswith("contradicts itself.")
