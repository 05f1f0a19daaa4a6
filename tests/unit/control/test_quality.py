"""Findings of rounds become intervals: they begin once, outlive a gap, and end when nothing shows them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from control.fleet_facts import FleetFacts, Node
from control.gateway_scrape import FlowWindow
from control.page_book import PageBook
from control.quality import OPENINGS_MAX, QualityBook, RoundQuality
from control.rounds import GatewayResult, NodeResult, PageResult, Round, Target
from fleet.dialects import read_page
from fleet.quality_kinds import Finding, Kind
from fleet.readings import Reason
from tests.small_node import page

T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
PERIOD_S = 10.0
CLAMPED = Finding(Kind.CLAMPED, "0", "kv_used_ratio")


def at(number: float) -> datetime:
    return T0 + timedelta(seconds=PERIOD_S * number)


FACTS = FleetFacts((Node("n", "p", "http://n/metrics", "active", T0),), (), ())


def round_of(
    number: float, *results: NodeResult, gateways: tuple[GatewayResult, ...] = (), lag_s: float = 0.0
) -> Round:
    return Round(at(number), PERIOD_S, 0.1, lag_s, results, gateways)


def good(*findings: Finding, node: str = "n") -> NodeResult:
    seen = PageResult("http://n/metrics", "engine", "vllm")
    return NodeResult(node, "p", 0.01, findings=findings, pages=(seen,))


def bad(reason: Reason = Reason.TIMEOUT) -> NodeResult:
    return NodeResult("n", "p", None, (), reason, "no complete answer within 5 s")


def open_kinds(quality: RoundQuality) -> set[Kind]:
    return {standing.finding.kind for standing in quality.standing}


def test_a_finding_begins_with_its_first_round_and_keeps_its_beginning():
    book = QualityBook()
    for number in range(5):
        quality = book.take(round_of(number, good(CLAMPED)), FACTS)
    (standing,) = quality.standing
    assert (standing.since, standing.seen) == (at(0), at(4))


def test_it_ends_with_the_last_round_that_showed_it_after_three_that_did_not():
    book = QualityBook()
    book.take(round_of(0, good(CLAMPED)), FACTS)
    book.take(round_of(1, good(CLAMPED)), FACTS)
    for number in (2, 3, 4):
        assert open_kinds(book.take(round_of(number, good()), FACTS)) == {Kind.CLAMPED}
    quality = book.take(round_of(5, good()), FACTS)
    assert quality.standing == ()
    (ended,) = quality.ended
    assert (ended.since, ended.seen) == (at(0), at(1))


def test_a_node_that_falls_silent_keeps_what_was_wrong_with_it():
    book = QualityBook()
    book.take(round_of(0, good(CLAMPED)), FACTS)
    for number in range(1, 50):
        quality = book.take(round_of(number, bad()), FACTS)
    assert open_kinds(quality) == {Kind.CLAMPED, Kind.NO_PAGE}
    no_page = next(s for s in quality.standing if s.finding.kind is Kind.NO_PAGE)
    assert (no_page.since, no_page.finding.metric) == (at(1), "timeout")
    assert no_page.finding.detail == "timeout: no complete answer within 5 s"
    book.take(round_of(50, good()), FACTS)
    assert open_kinds(book.take(round_of(51, good()), FACTS)) == set()


def test_another_reason_is_another_finding():
    book = QualityBook()
    book.take(round_of(0, bad(Reason.TIMEOUT)), FACTS)
    for number in (1, 2, 3):
        quality = book.take(round_of(number, bad(Reason.REFUSED)), FACTS)
    assert {s.finding.metric for s in quality.standing} == {"refused"}


def test_a_restart_is_an_event():
    book = QualityBook()
    book.take(round_of(0, good(Finding(Kind.RESTART, "0"))), FACTS)
    quality = book.take(round_of(1, good()), FACTS)
    (ended,) = quality.ended
    assert (ended.since, ended.seen) == (at(0), at(0))


def test_findings_of_a_node_that_left_end_with_it():
    book = QualityBook()
    book.take(round_of(0, good(CLAMPED)), FACTS)
    quality = book.take(round_of(1), FleetFacts())
    assert quality.standing == ()
    assert [e.finding for e in quality.ended] == [CLAMPED]


def test_a_hostile_page_with_new_labels_each_round_cannot_fill_the_record():
    book, begun = QualityBook(), set()
    for number in range(60):  # 10 minutes, 40 findings a round
        findings = [Finding(Kind.CLAMPED, f"{number}-{i}", "kv_used_ratio") for i in range(40)]
        quality = book.take(round_of(number, good(*findings)), FACTS)
        begun |= {s.key for s in quality.standing if s.finding.kind is Kind.CLAMPED}
    assert len(begun) == OPENINGS_MAX
    assert open_kinds(quality) == {Kind.TOO_MANY}
    later = 60 + 3_600 / PERIOD_S  # an hour on, findings begin again
    assert Kind.CLAMPED in open_kinds(book.take(round_of(later, good(CLAMPED)), FACTS))


def test_texts_of_a_page_are_cut_to_what_the_record_holds():
    nasty = Finding(Kind.CLAMPED, "e\x00" * 5_000, "kv_used_ratio", "d\ud800" * 5_000)
    (standing,) = QualityBook().take(round_of(0, good(nasty)), FACTS).standing
    assert "\x00" not in standing.finding.engine
    assert len(standing.finding.engine) <= 200
    assert len(standing.finding.detail) <= 400
    standing.finding.detail.encode()


def test_rounds_that_did_not_run_and_started_late_are_told():
    book = QualityBook()
    book.take(round_of(0), FACTS)
    quality = book.take(round_of(4), FACTS)
    (missed,) = quality.standing
    assert missed.finding.kind is Kind.ROUNDS_MISSED
    assert missed.finding.detail.startswith("3 rounds after 12:00:00")
    assert Kind.ROUND_LATE in open_kinds(book.take(round_of(5, lag_s=4.0), FACTS))
    assert Kind.ROUNDS_MISSED not in open_kinds(book.take(round_of(6), FACTS))


def test_rounds_the_buffer_lost_are_told_once():
    book = QualityBook()
    book.take(round_of(0), FACTS, dropped=2)
    quality = book.take(round_of(1), FACTS, dropped=2)
    assert Kind.ROUNDS_DROPPED not in open_kinds(quality)
    quality = book.take(round_of(2), FACTS, dropped=7)
    assert [s.finding.detail for s in quality.standing if s.finding.kind is Kind.ROUNDS_DROPPED] == [
        "5 rounds were lost"
    ]


def arrivals(number: int, count: int, pages: PageBook) -> NodeResult:
    """A node at which `count` requests a round finish, through the real reader."""
    body = page(finished=count * number)
    taken = pages.take("n", "u", read_page(body, source="n"), 10.0 * number, unix_s=0.0)
    return NodeResult("n", "p", 0.01, taken.samples)


def sent(count: int | None) -> tuple[GatewayResult, ...]:
    flow = FlowWindow("acme", "interactive", 10.0, offered=count)
    return (GatewayResult("g", None if count is None else (flow,), None if count else Reason.TIMEOUT),)


def bypassed(counts: Sequence[int | None]) -> bool:
    facts = FleetFacts(FACTS.nodes, (), (Target("g", "http://g/metrics"),))
    book, pages = QualityBook(), PageBook(period_s=PERIOD_S)
    for number, count in enumerate(counts):
        quality = book.take(round_of(number, arrivals(number, 20, pages), gateways=sent(count)), facts)
    return Kind.GATEWAY_BYPASSED in open_kinds(quality)


def test_engines_that_receive_what_no_gateway_sent_are_being_reached_past_them():
    # 20 requests a round reach the node; six rounds are 120, and 0.9 x 120 - 3 x sqrt(120) = 75
    assert not bypassed([20] * 8)
    assert not bypassed([15] * 8)  # 90 counted: within what chance allows
    assert bypassed([10] * 8)  # 60 counted
    assert not bypassed([10] * 5)  # too few rounds
    assert not bypassed([10] * 5 + [None] + [10] * 5)  # never six rounds in which all were heard
    assert bypassed([10] * 8 + [None] * 9)  # not heard any more: what stood stands, for nobody knows
    assert not bypassed([10] * 8 + [20] * 12)


def test_a_gateway_seen_for_the_first_time_has_counted_nothing_yet():
    facts = FleetFacts(FACTS.nodes, (), (Target("g", "http://g/metrics"),))
    book, pages = QualityBook(), PageBook(period_s=PERIOD_S)
    book.take(round_of(0, arrivals(0, 2_000, pages)), FACTS)  # before there was a gateway
    first = (GatewayResult("g", (FlowWindow("acme", "interactive", None),)),)
    for number in range(1, 12):  # 5 of 6 rounds would be 83 % of what the node received
        gateways = first if number == 1 else sent(2_000)
        quality = book.take(round_of(number, arrivals(number, 2_000, pages), gateways=gateways), facts)
        assert Kind.GATEWAY_BYPASSED not in open_kinds(quality), number


def test_a_standby_goes_on_with_what_stands():
    book = QualityBook()
    first = book.take(round_of(0, good(CLAMPED)), FACTS)
    other = QualityBook()
    other.refill(first.standing, at(30))
    quality = other.take(round_of(30, good()), FACTS)
    (standing,) = [s for s in quality.standing if s.finding == CLAMPED]
    assert standing.since == at(0)


def test_a_dead_gpu_exporter_is_named_beside_engines_that_answer():
    lost = PageResult("http://n:9400/metrics?k=secret", "gpu", None, Reason.REFUSED, "connection refused")
    own = PageResult("http://n/metrics", "engine", "vllm")
    quality = QualityBook().take(round_of(0, NodeResult("n", "p", 0.01, pages=(own, lost))), FACTS)
    (standing,) = quality.standing
    assert (standing.finding.kind, standing.finding.metric) == (Kind.PART_MISSING, "gpu")
    assert standing.finding.detail == "http://n:9400/metrics: refused, connection refused"


def test_a_source_without_a_newer_page_is_not_judged():
    book = QualityBook()
    book.take(round_of(0, good(CLAMPED)), FACTS)
    for number in range(1, 20):
        quality = book.take(round_of(number, NodeResult("n", "p", None)), FACTS)
    assert open_kinds(quality) == {Kind.CLAMPED}
