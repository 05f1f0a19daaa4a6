"""View models: verdicts, order, sums and countdowns, from plain values."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.audit import BrokenRow
from control.freshness import Freshness
from control.queries_fleet import AlertView, RoundView
from control.queries_gateway_traffic import TenantTraffic
from control.queries_latency import LatencyView, latency_view
from control.queries_policy import AuditEntry, GatewayState, Rollout
from dashboard import (
    drafts,
    viewmodels,
    viewmodels_audit,
    viewmodels_policy,
    viewmodels_rollout,
    viewmodels_spend,
)
from dashboard import viewmodels_attention as attention
from dashboard import viewmodels_fleet as fleet
from dashboard.data import FleetNow, Pulse, RolloutNow, Traffic
from dashboard.times import UTC_ZONE
from dashboard.viewmodels_changes import changes
from dashboard.viewmodels_frame import stale_after, who
from fleet.allocation import allocate
from fleet.errors import InvalidPolicy
from fleet.messages import PromptFit
from fleet.months import month_of
from fleet.readings import Histogram, Reason
from fleet.spend import NodeTime, Use

NOW = datetime(2026, 11, 29, 15, 0, tzinfo=UTC)
NOTHING = LatencyView("ttft_s", 0, None, None, None, None, None, edges_differ=False)


def traffic(offered: int | None, refused: int, tokens: int | None = 0) -> TenantTraffic:
    return TenantTraffic(
        "acme",
        "interactive",
        offered,
        0,
        {"rejected_quota_rate": refused},
        {},
        0,
        tokens,
        0,
        0,
        0,
        NOTHING,
        NOTHING,
    )


def gateway(condition: str, *, observed: int | None = 2, message: str = "") -> GatewayState:
    return GatewayState(
        name=f"gw-{condition}",
        url="http://gw",
        condition=condition,  # type: ignore[arg-type]
        age_s=1.0,
        observed_generation=1,
        desired_generation=1,
        revision_observed=observed,
        revision_desired=2,
        boot_id="b",
        message=message,
        pointer="/tiers" if condition == "rejected" else None,
        in_flight=0,
        in_flight_tokens=0,
        queues={},
        nodes_usable=1,
        nodes_total=1,
        unsupported=(),
        acked_at=None,
        draining=False,
    )


def rollout(state: str, *, started: datetime | None = None) -> Rollout:
    return Rollout(
        id=1,
        revision=2,
        base_revision=1,
        state=state,  # type: ignore[arg-type]
        strategy="staged",
        first_gateway="gw-1",
        bake_s=60.0,
        bake_started_at=started,
        reason="",
        started_at=NOW,
        updated_at=NOW,
    )


@pytest.mark.parametrize(
    ("rho", "low", "tone"),
    [
        (None, None, "unknown"),
        (0.0, 0.0, "good"),
        (0.85, 0.8, "good"),  # strictly above the target is past it
        (0.90, 0.80, "watch"),  # only the estimate is past it, the interval is not
        (0.90, 0.86, "act"),
        (1.07, 1.05, "act"),
    ],
)
def test_rho_is_judged_with_its_interval(rho: float | None, low: float | None, tone: str) -> None:
    assert fleet.rho_tone(rho, low)[0] == tone


def test_a_refused_share_needs_every_part() -> None:
    assert fleet.refused_share([traffic(100, 5), traffic(100, 15)]) == (20, 200)
    assert fleet.refused_share([traffic(100, 5), traffic(None, 0)]) is None
    assert fleet.refused_share([]) is None


def test_refusals_by_tenants_own_limits_are_told_from_those_for_want_of_room() -> None:
    def note(refused: dict[str, int]) -> str:
        shown = fleet.cards(
            FleetNow(None, (), (), (), (), (), {}, (replace(traffic(200, 0), refused=refused),))
        )
        return next(c.note for c in shown if c.label == "Refused, 10 min")

    assert note({"rejected_quota_rate": 20}) == "20 of 200 requests, all by tenants' own limits"
    assert note({"rejected_quota_rate": 5, "evicted_wait": 15}).endswith(
        ", 5 of them by tenants' own limits"
    )
    assert note({"evicted_wait": 20}) == "20 of 200 requests"


def test_tokens_per_second_are_over_the_time_that_was_counted() -> None:
    rows = fleet.traffic_rows(Traffic((traffic(10, 0, 6_000),), {("acme", "interactive"): 300.0}))
    assert rows["tokens/s"] == [20.0]
    assert fleet.traffic_rows(Traffic((traffic(10, 0, 6_000),), {}))["tokens/s"] == [None]


def test_what_needs_attention_comes_worst_first_with_a_reason() -> None:
    alert = AlertView(
        1,
        "rho_high",
        "pool",
        "main",
        "open",
        "warning",
        NOW,
        NOW,
        0.0,
        None,
        None,
        None,
        0.9,
        0.85,
        "rho is 0.90",
        {},
    )
    gateways = (gateway("converged"), gateway("behind"), gateway("rejected", message="bad weights"))
    now = FleetNow(None, (), (alert,), gateways, (), (), {}, ())
    notices = attention.attention(now, NOW, UTC_ZONE)
    assert [n.tone for n in notices] == ["act", "watch", "watch"]
    assert "bad weights" in notices[0].text
    assert all("converged" not in n.text for n in notices)


def test_the_first_token_is_named_by_where_it_was_measured() -> None:
    def seen(at_s: float) -> LatencyView:
        return latency_view("ttft_s", [Histogram((at_s / 2, at_s), (0, 1_000, 0), at_s * 1_000)])

    now = FleetNow(None, (), (), (), (), (), {"ttft_s": seen(0.24)}, (), seen(2.0))
    # within one bucket, p95 lies at 95 % of its width: 0.975 of the upper bound
    both = fleet.cards(now)[1]
    assert (both.label, both.value, both.tone) == ("TTFT p95 at gateways, 10 min", "1.95 s", "watch")
    assert "at the engines 234 ms" in both.note
    engines = fleet.cards(replace(now, door_ttft=NOTHING))[1]
    assert (engines.label, engines.value, engines.tone) == ("TTFT p95 at engines, 10 min", "234 ms", "good")


def test_lost_nodes_of_a_round_are_said_in_words() -> None:
    newest = RoundView(NOW, 10.0, 0.2, 0.0, 4, 2, {"refused": 1, "timeout": 1, "odd": 1})
    said = fleet.coverage(FleetNow(None, (), (), (), (newest,), (), {}, ()), NOW)
    assert "2 of 4 nodes answered" in said
    assert "1 node refused the connection, 1 node did not answer in time" in said
    assert "1 node gave no sample (odd)" in said
    assert set(fleet.FAILURES) == {reason.value for reason in Reason} - {"no_gpu_series"}


def alert(number: int, rule: str, scope: str, subject: str, severity: str = "critical") -> AlertView:
    return AlertView(
        number, rule, scope, subject, "open", severity, NOW, NOW, 0.0, None, None, None, 0.9, 0.85,
        f"{rule} of {subject or 'the fleet'}", {},
    )  # fmt: skip


def test_one_overload_does_not_push_a_dead_node_out_of_sight() -> None:
    loud = [
        alert(n, "slo_burn", "tier", tier) for n, tier in enumerate(("interactive", "batch", "best_effort"))
    ]
    loud += [alert(n, "rho_high", "node", f"n{n}") for n in range(10, 20)]
    loud += [alert(30, "slo_burn", "fleet", "")]
    dead = alert(40, "node_silent", "node", "n7", "warning")
    found = attention.attention(FleetNow(None, (), (*loud, dead), (), (), (), {}, ()), NOW, UTC_ZONE)
    assert [n.text for n in found] == [
        "slo_burn of the fleet; the same of interactive, batch, best-effort",
        "rho_high of n10; the same of n11, n12, n13 and 6 more",
        "node_silent of n7",
    ]
    assert [n.alert for n in found] == [None, None, 40]  # several are acknowledged on the Alerts page


def test_kinds_of_alerts_beyond_the_list_are_counted() -> None:
    many = [alert(n, f"rule_{n}", "pool", "main") for n in range(9)]
    dead = alert(40, "node_silent", "node", "n7", "warning")
    found = attention.attention(FleetNow(None, (), (*many, dead), (), (), (), {}, ()), NOW, UTC_ZONE)
    assert len(found) == fleet.ALERTS_SHOWN + 2
    assert [n.text.partition(":")[0] for n in found[-2:]] == [
        "node_silent of n7",
        "3 more alerts of other kinds",
    ]


def test_a_reason_is_cut_between_words_and_says_so() -> None:
    note = "cannot tell after 55 s: 119 of 506 requests were in time, and the other gateways were late too"
    entry = AuditEntry(
        1, NOW, "controller", "operator", "controller", "rollout.paused", "revision 2", note, {}
    )
    (line,) = changes([entry], NOW, UTC_ZONE)
    assert "and the other \u2026" in line.replace("\\", "")


def test_a_rollout_on_another_stage_has_other_buttons() -> None:
    def now(of: Rollout | None) -> RolloutNow:
        return RolloutNow(of, (), None)

    baking = viewmodels_rollout.stage(now(rollout("baking", started=NOW)))
    assert viewmodels_rollout.stage(now(rollout("baking", started=NOW - timedelta(seconds=9)))) == baking
    assert viewmodels_rollout.stage(now(rollout("paused"))) != baking
    assert viewmodels_rollout.stage(now(replace(rollout("baking"), id=2, revision=3))) != baking
    assert viewmodels_rollout.stage(now(None)) is None


def test_what_was_so_when_a_revision_went_live_is_not_said_of_now() -> None:
    said = viewmodels_rollout.reason(replace(rollout("live"), reason="every gateway runs it (2)"))
    assert said is not None
    assert said.replace("\\", "") == "as it went live: every gateway runs it (2)"
    assert viewmodels_rollout.reason(replace(rollout("paused"), reason="why")) == "why"


def test_while_nobody_judges_alerts_are_unknown_and_the_controller_comes_first() -> None:
    last = NOW - timedelta(minutes=10)
    alert = AlertView(
        1, "rho_high", "pool", "main", "open", "critical", last, last, 0.0, None, None, None, 0.9, 0.85,
        "rho is 0.90", {},
    )  # fmt: skip
    rounds = (RoundView(last, 10.0, 0.2, 0.0, 4, 4, {}),)
    now = FleetNow(None, (), (alert,), (), rounds, (), {}, ())
    first, second = attention.attention(now, NOW, UTC_ZONE)
    assert first.word == "stopped"
    assert (second.tone, second.word) == ("unknown", "critical, then")
    assert "unknown since 10 min ago" in second.since


def test_states_and_conditions_have_a_sign_and_a_word() -> None:
    assert viewmodels.node_state_text(Freshness.STALE, 43.0, "draining") == "\u25b2 stale, 43 s, draining"
    signs = {viewmodels.SIGNS[tone] for tone, _ in viewmodels.CONDITION_LOOKS.values()}
    assert len(signs) == 4  # good, watch, act, unknown differ without colour
    assert all(word for _, word in viewmodels.CONDITION_LOOKS.values())


def test_only_a_converged_gateway_on_the_revision_counts_as_done() -> None:
    assert viewmodels_rollout.is_done(gateway("converged"), rollout("all"))
    assert not viewmodels_rollout.is_done(gateway("converged", observed=1), rollout("all"))
    assert not viewmodels_rollout.is_done(gateway("unreachable"), rollout("all"))


def test_the_bake_counts_down_and_then_says_that_it_is_over() -> None:
    begun = NOW - timedelta(seconds=45)  # of 60
    baking = rollout("baking", started=begun)
    assert viewmodels_rollout.bake_text(baking, NOW) == "15 s left"
    assert viewmodels_rollout.bake_text(baking, NOW + timedelta(seconds=14.9)) == "1 s left"
    assert viewmodels_rollout.bake_text(baking, NOW + timedelta(hours=1)) == "over"


def test_a_rejected_gateway_says_field_and_reason_first() -> None:
    rows = viewmodels_rollout.gateway_rows([gateway("converged"), gateway("rejected", message="sum is 95")])
    assert rows["gateway"] == ["gw-rejected", "gw-converged"]
    whys = viewmodels_rollout.why_lines([gateway("converged"), gateway("rejected", message="sum is 95")])
    assert whys == ["gw-rejected: field /tiers; sum is 95"]


def test_the_models_whose_prompts_are_estimated_worst_come_first_and_old_words_are_left_out() -> None:
    good, bad = (
        PromptFit(bytes_per_token=4.1, error_ratio=0.03),
        PromptFit(bytes_per_token=2, error_ratio=1.5),
    )
    told = replace(gateway("converged"), prompts={"m-8b": good, "m-70b": bad})
    silent = replace(gateway("unreachable"), prompts={"m-1b": bad})
    rows = viewmodels_rollout.prompt_rows([told, silent])
    assert rows["model"] == ["m-70b", "m-8b"]
    assert rows["bytes"] == [2, 4.1]
    assert rows["off"] == ["150.0 %", "3.0 %"]
    assert viewmodels_rollout.prompt_rows([gateway("converged")])["model"] == []  # nothing known: no table


SLOTS = {"main": 64, "other": None}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["acme", "beta", "gamma"]),
            st.sampled_from(["interactive", "batch"]),
            st.sampled_from(["main", "other"]),
            st.integers(0, 10**6),
        ),
        max_size=12,
    ),
    st.integers(1, 10**6),
)
def test_every_level_of_a_month_adds_up_to_its_total(
    uses: list[tuple[str, str, str, int]], up_s: int
) -> None:
    month = allocate(
        month_of("2026-11", ZoneInfo("UTC")),
        [NodeTime(pool, "on_demand", Decimal(up_s), Decimal(28)) for pool in SLOTS],
        [Use(tenant, tier, "llama", pool, 1, 1, 1, Decimal(s)) for tenant, tier, pool, s in uses],
        SLOTS,
        is_estimated=True,
    )
    for by in ("tenant", "tier", "model"):
        rows = viewmodels_spend.subtotal_rows(month, by)
        amounts = [Decimal(usd.replace("$", "").replace(",", "")) for usd in rows["usd"]]
        assert rows["of"][-1] == "total"
        assert sum(amounts[:-1]) == amounts[-1] == month.total_usd


def test_the_cards_of_a_month_and_the_lines_of_nobody_leave_no_dollar_unnamed() -> None:
    # 1 h on demand at 28, used for 10 of its 64 places' 3,600 s each; 1 h of spot beside it at 16, unused
    month = allocate(
        month_of("2026-11", ZoneInfo("UTC")),
        [
            NodeTime("main", "on_demand", Decimal(3600), Decimal(28)),
            NodeTime("main", "spot", Decimal(3600), Decimal(16)),
        ],
        [Use("acme", "batch", "llama", "main", 1, 1, 1, Decimal(36_000))],
        {"main": 64},
        is_estimated=True,
    )
    kinds = {line.kind for line in month.lines}
    assert kinds == {"usage", "idle", "burst"}
    spend, used, idle, _ = viewmodels_spend.cards(month)
    burst = next(line.amount_usd for line in month.lines if line.kind == "burst")
    assert idle.note.endswith(f"; beside it ${burst:,.2f} burst")
    shown = [Decimal(card.value.replace("$", "")) for card in (spend, used, idle)]
    assert shown[0] == shown[1] + shown[2] + burst
    assert viewmodels_spend.subtotal_rows(month, "tenant")["of"][0] == "nobody's"
    assert "burst (nobody's)" in viewmodels_spend.line_rows(month)["tenant"]


def test_weights_say_what_is_missing() -> None:
    assert viewmodels_policy.weights_text({"a": 70, "b": 25, "c": 5}) == "The weights sum to 100 %."
    assert "give 5 more" in viewmodels_policy.weights_text({"a": 70, "b": 20, "c": 5})
    assert "take 5 away" in viewmodels_policy.weights_text({"a": 75, "b": 25, "c": 5})


def test_a_problem_stands_beside_its_section_only() -> None:
    problem = InvalidPolicy("bad", field="/tenants/acme/weight", hint="fix it")
    shown = {s: viewmodels_policy.problem_for(problem, s) for s in ("tiers", "tenants", "")}
    assert [s for s, said in shown.items() if said] == ["tenants"]
    assert viewmodels_policy.problem_for(InvalidPolicy("bad", field="/slo/ttft_s"), "") is not None
    assert viewmodels_policy.problem_for(None, "") is None


def test_a_conflict_shows_their_value_beside_mine() -> None:
    mine = drafts.Difference("/tenants/acme/weight", 1, 3, 2, is_conflict=True)
    rows = viewmodels_policy.difference_rows([mine, drafts.Difference("/slo/ttft_s", 0.5, 1.0)])
    assert rows["field"][0] == "tenants \u203a acme \u203a weight"
    assert rows["theirs"] == ["2", ""]
    assert "theirs" not in viewmodels_policy.difference_rows([drafts.Difference("/slo/ttft_s", 0.5, 1.0)])


def test_a_command_line_quotes_the_reason() -> None:
    assert viewmodels_policy.command_text(3, "it's $(rm)").endswith("--note 'it'\\''s $(rm)'")


def test_the_record_is_searched_in_any_case_and_its_verdict_names_the_row() -> None:
    entry = AuditEntry(
        7, NOW, "Ana", "admin", "page", "policy.publish", "revision 2", "more", {"x": "y" * 900}
    )
    assert viewmodels_audit.matching([entry], "ANA") == [entry]
    assert viewmodels_audit.matching([entry], "bob") == []
    assert "characters)" in viewmodels_audit.rows([entry], UTC_ZONE)["detail"][0]
    assert viewmodels_audit.verdict(BrokenRow(5, "row 5 was changed"), 9)[0] == "act"
    assert viewmodels_audit.verdict(None, 9)[0] == "good"
    assert viewmodels_audit.older_than([entry]) == 7


def test_freshness_follows_the_rule_nodes_are_judged_by() -> None:
    assert stale_after(Pulse(NOW, 10.0)) == 30.0  # three rounds
    assert stale_after(Pulse(NOW, 300.0)) == 450.0  # but never less than one and a half
    assert "admin" in who("x", "admin", signed_in=False)


def entry(number: int, action: str, subject: str, *, via: str = "page", note: str = "") -> AuditEntry:
    actor = "controller" if via == "controller" else "ana"
    return AuditEntry(number, NOW, actor, "operator", via, action, subject, note, {})


def test_rows_of_machines_push_no_persons_change_off_the_page() -> None:
    steps = [
        entry(100 - i, f"rollout.{i}", f"revision {i // 20}", via="controller", note="on its way")
        for i in range(60)
    ]
    said = changes([*steps, entry(1, "policy.publish", "revision 0", note="more for acme")], NOW, UTC_ZONE)
    # three revisions rolled out in 20 steps each: a line for each, its newest step, then the person's
    assert [line.split("**")[1] for line in said] == [
        *("rollout\\.0", "rollout\\.20", "rollout\\.40"),
        "policy\\.publish",
    ]


def test_like_acts_are_one_line_and_a_reason_stands_alone() -> None:
    entries = [
        entry(5, "node.drain", "node n3"),
        entry(4, "node.drain", "node n2"),
        entry(3, "node.drain", "node n1", note="bad fan"),
        entry(2, "node.drain", "node n0"),
    ]
    said = changes(entries, NOW, UTC_ZONE)
    assert ["and 1 more" in line for line in said] == [True, False, False]
    assert "bad fan" in said[1]


def test_what_a_silent_gateway_said_last_is_no_present_value() -> None:
    rows = viewmodels_rollout.gateway_rows([gateway("converged"), gateway("unreachable")])
    assert rows["gateway"] == ["gw-unreachable", "gw-converged"]
    assert rows["in flight"] == [None, 0]
    assert rows["nodes"] == ["\u2014", "1 of 1"]
    assert rows["queued"][0] == "\u2014"


def test_a_fresh_node_whose_engine_hangs_is_not_marked_good() -> None:
    hanging = viewmodels.node_state_text(Freshness.FRESH, 4.0, "active", ("frozen",))
    assert hanging == "\u25b2 fresh, 4 s"
    assert viewmodels.node_state_text(Freshness.FRESH, 4.0, "active", ("restart",)) == "\u2713 fresh, 4 s"


def test_a_problem_is_said_in_words_without_the_pointer_twice() -> None:
    problem = InvalidPolicy("/tiers: weights sum to 90", field="/tiers", hint="Correct /tiers")
    assert viewmodels_policy.problem_for(problem, "tiers") == "tiers: weights sum to 90"


def test_many_refusals_want_attention_and_name_whose_and_why() -> None:
    def wanting(offered: int, refused: int) -> list[viewmodels.Notice]:
        flows = (traffic(offered, refused), traffic(100, 0))
        return attention.attention(FleetNow(None, (), (), (), (), (), {}, flows), NOW, UTC_ZONE)

    assert wanting(100, 19) == []  # 19 of 200: 9.5 %, below the limit of 10 %
    (notice,) = wanting(100, 50)  # 50 of 200
    assert notice.text == "25.0 % of requests are refused, most of them of acme"
    assert notice.since == "in 10 min: quota rate 50"
    assert notice.page == viewmodels.POLICY_PAGE
