"""Who is told what and when: groups, repeats, acknowledgements, silences, other leaders, lost rounds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from control import alerts
from control.alert_groups import GROUP_INTERVAL_S, GROUP_WAIT_S, REPEAT_S
from control.alert_observations import Observation
from control.alert_rule_store import change_rule, reset_rule, rule_views
from control.alert_silences import add_silence, end_silence
from control.commands_fleet import acknowledge_alert, add_pool, rest_node
from control.queries_alerts import alert_count, unresolved_alerts
from control.roles import Actor, Role
from control.tables import (
    AlertDeliveryRow,
    AlertNoticeRow,
    AlertRow,
    AlertTimerRow,
    AuditRow,
    NodeRow,
    WebhookRow,
)
from control.webhooks import add_webhook
from fleet.errors import Conflict, Forbidden, InvalidInput, NotFound

pytestmark = pytest.mark.postgres

T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
ADA = Actor("ada", Role.OPERATOR, "cli")
EVE = Actor("eve", Role.VIEWER, "page")
PERIOD_S = 10.0


def silent(node: str, value: float | None = 1.0, pool: str = "h100") -> Observation:
    return Observation("node_silent", "node", node, value, f"{node} gives no metrics: refused", pool=pool)


def frozen(node: str, value: float | None = 1.0) -> Observation:
    return Observation("node_frozen", "node", node, value, f"{node} stands still", pool="h100")


class Rounds:
    """Rounds of observations applied one after another, each in a transaction of its own."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.now = T0
        for pool, first, last in (("h100", 0, 40), ("a100", 40, 45)):
            add_pool(session, ADA, name=pool, models=["m"], now=T0)
            session.add_all(
                NodeRow(
                    name=f"n{i}", pool=pool, base_url=f"http://10.0.0.{i + 1}:8000",
                    price_class="on_demand", state="active", created_at=T0,
                )
                for i in range(first, last)
            )  # fmt: skip
        session.commit()

    def run(self, seconds: float, observations: Sequence[Observation]) -> list[AlertNoticeRow]:
        """Apply the same observations for `seconds`; return the notices made."""
        since = self.now
        for _ in range(round(seconds / PERIOD_S)):
            self.now += timedelta(seconds=PERIOD_S)
            alerts.apply(self.session, self.now, PERIOD_S, observations)
            self.session.commit()
        return self.notices(since)

    def notices(self, since: datetime = T0) -> list[AlertNoticeRow]:
        n = AlertNoticeRow
        return list(self.session.scalars(select(n).where(n.at > since).order_by(n.at, n.rule, n.pool)))

    def alert(self, subject: str) -> AlertRow:
        return self.session.scalars(
            select(AlertRow).where(AlertRow.subject == subject).order_by(AlertRow.id.desc()).limit(1)
        ).one()


@pytest.fixture
def rounds(session: Session) -> Rounds:
    return Rounds(session)


def test_forty_silent_nodes_of_a_pool_are_one_notice_and_another_pool_is_another(rounds: Rounds) -> None:
    everything = [silent(f"n{i}") for i in range(40)] + [
        silent(f"n{i}", pool="a100") for i in range(40, 45)
    ]
    # open after more than 60 s (the 7th round), told 30 s later (the 10th)
    assert rounds.run(90, everything) == []
    a100, h100 = rounds.run(10, everything)
    assert (a100.kind, a100.pool, a100.body["data"]["firing"]) == ("open", "a100", 5)
    assert (h100.kind, h100.pool, h100.body["data"]["firing"]) == ("open", "h100", 40)
    assert h100.body["data"]["summary"] == "40 firing: n0, n1, n2, n3, n4 and 35 more"
    assert rounds.run(600, everything) == []
    back = [silent(o.subject, 0.0, o.pool or "") for o in everything]
    over = rounds.run(60, back)
    assert [(n.kind, n.pool, n.body["data"]["resolved"]) for n in over] == [
        ("resolved", "a100", 5),
        ("resolved", "h100", 40),
    ]
    assert rounds.run(400, back) == []


def test_one_that_ends_within_the_wait_is_told_to_nobody(rounds: Rounds) -> None:
    rounds.run(70, [silent("n1")])
    assert rounds.alert("n1").state == "open"
    assert rounds.run(300, [silent("n1", 0.0)]) == []
    assert rounds.alert("n1").state == "resolved"


def test_one_that_joins_later_waits_for_the_interval(rounds: Rounds) -> None:
    (first,) = rounds.run(100, [silent("n1"), silent("n2", 0.0)])
    both = [silent("n1"), silent("n2")]
    assert rounds.run(GROUP_INTERVAL_S - 10, both) == []
    (second,) = rounds.run(30, both)
    assert second.at == first.at + timedelta(seconds=GROUP_INTERVAL_S)
    assert second.body["data"]["summary"] == "2 firing: n2, n1"


def test_what_nobody_acknowledges_is_repeated_and_what_somebody_does_is_not(rounds: Rounds) -> None:
    seen = [frozen("n1")]
    (first,) = rounds.run(60, seen)
    rounds.now = first.at + timedelta(seconds=REPEAT_S - 5)
    (again,) = rounds.run(10, seen)
    assert (again.kind, again.body["data"]["alerts"][0]["id"]) == ("repeat", rounds.alert("n1").id)
    acknowledge_alert(rounds.session, ADA, alert_id=rounds.alert("n1").id, now=rounds.now)
    rounds.session.commit()
    rounds.now += timedelta(seconds=REPEAT_S)
    assert rounds.run(100, seen) == []
    (over,) = rounds.run(90, [frozen("n1", 0.0)])  # whoever was told hears the end
    assert over.kind == "resolved"


def test_an_alert_without_data_goes_stale_and_neither_ends_nor_is_told_again(rounds: Rounds) -> None:
    rounds.run(60, [frozen("n1")])
    # unknown, then not observed at all: both are "nobody knows"
    assert rounds.run(200, [frozen("n1", None)]) == []
    assert rounds.run(200, []) == []
    assert rounds.alert("n1").state == "stale"
    assert rounds.run(60, [frozen("n1")]) == []
    assert rounds.alert("n1").state == "open"


def test_a_pending_timer_survives_rounds_in_which_nobody_observed_it(rounds: Rounds) -> None:
    rounds.run(50, [silent("n1")])
    rounds.run(20, [])  # a gap of two rounds freezes the timer at 50 s
    rounds.run(10, [silent("n1")])
    assert rounds.session.scalars(select(AlertRow)).all() == []
    rounds.run(10, [silent("n1")])  # 70 s without the gap
    assert rounds.alert("n1").state == "open"


def test_maintenance_and_a_rule_that_is_off_end_alerts(rounds: Rounds) -> None:
    rounds.run(60, [frozen("n1"), frozen("n2")])
    rest_node(rounds.session, ADA, name="n1", now=rounds.now)
    rounds.session.commit()
    rounds.run(10, [frozen("n2")])
    assert rounds.alert("n1").detail["resolved"] == "no longer watched"
    change_rule(rounds.session, ADA, name="node_frozen", values={"is_enabled": False}, now=rounds.now)
    rounds.session.commit()
    rounds.run(10, [frozen("n2")])
    assert rounds.alert("n2").detail["resolved"] == "the rule is off"


def silence_all_frozen(rounds: Rounds, length_s: float) -> int:
    number = add_silence(
        rounds.session, ADA, length_s=length_s, reason="moving racks", now=rounds.now, rule="node_frozen"
    )
    rounds.session.commit()
    return number


def test_a_silenced_alert_opens_unheard_and_is_told_when_the_silence_ends(rounds: Rounds) -> None:
    silence_all_frozen(rounds, 600.0)
    expires = rounds.now + timedelta(seconds=600)
    assert rounds.run(590, [frozen("n1"), silent("n2")])[0].rule == "node_silent"  # others are told
    entry = next(e for e in unresolved_alerts(rounds.session, rounds.now) if e.subject == "n1")
    assert entry.silence is not None
    assert entry.silence.reason == "moving racks"
    assert alert_count(rounds.session, rounds.now).critical == 0
    (late,) = rounds.run(60, [frozen("n1"), silent("n2")])
    assert (late.kind, late.rule) == ("open", "node_frozen")
    assert late.at == expires + timedelta(seconds=GROUP_WAIT_S)
    assert alert_count(rounds.session, rounds.now).critical == 1


def test_one_that_opens_and_ends_under_a_silence_is_told_to_nobody(rounds: Rounds) -> None:
    silence_all_frozen(rounds, 600.0)
    rounds.run(100, [frozen("n1")])
    assert rounds.run(600, [frozen("n1", 0.0)]) == []


def test_whoever_was_told_before_a_silence_hears_the_end_within_it(rounds: Rounds) -> None:
    rounds.run(60, [frozen("n1")])
    silence_all_frozen(rounds, 6000.0)
    (over,) = rounds.run(90, [frozen("n1", 0.0)])
    assert over.kind == "resolved"


def test_a_silence_ended_by_hand_lets_people_hear(rounds: Rounds) -> None:
    number = silence_all_frozen(rounds, 6000.0)
    assert rounds.run(100, [frozen("n1")]) == []
    end_silence(rounds.session, ADA, silence_id=number, now=rounds.now)
    rounds.session.commit()
    assert [n.kind for n in rounds.run(50, [frozen("n1")])] == ["open"]
    with pytest.raises(Conflict, match="is over"):
        end_silence(rounds.session, ADA, silence_id=number, now=rounds.now)


def test_a_silence_hides_only_what_all_of_its_matchers_name(rounds: Rounds) -> None:
    add_silence(rounds.session, ADA, length_s=6000, reason="x", now=T0, rule="node_silent", pool="a100")
    rounds.session.commit()
    seen = [silent("n1"), silent("n41", pool="a100")]
    assert [n.pool for n in rounds.run(200, seen)] == ["h100"]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "rule"),
        ({"rule": "node_silent", "length_s": 59.0}, "length_s"),
        ({"rule": "node_silent", "length_s": 31 * 86_400.0}, "length_s"),
        ({"rule": "node_silent", "length_s": float("nan")}, "length_s"),
        ({"rule": "node_silent", "reason": " \n "}, "reason"),
        ({"rule": "node_silent", "reason": "x" * 501}, "reason"),
        ({"scope": "planet"}, "scope"),
        ({"subject": ""}, "subject"),
        ({"subject": "a\x00b"}, "subject"),
    ],
)
def test_a_silence_that_cannot_be_is_refused_at_its_field(
    session: Session, values: dict[str, object], field: str
) -> None:
    given = {"length_s": 600.0, "reason": "x", "now": T0} | values
    with pytest.raises(InvalidInput) as caught:
        add_silence(session, ADA, **given)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_only_who_may_silences_and_changes_rules(session: Session) -> None:
    with pytest.raises(Forbidden):
        add_silence(session, EVE, length_s=600, reason="x", now=T0, rule="node_silent")
    with pytest.raises(Forbidden):
        change_rule(session, EVE, name="rho_high", values={"open_at": 0.9}, now=T0)
    with pytest.raises(NotFound):
        add_silence(session, ADA, length_s=600, reason="x", now=T0, rule="no_such_rule")


def test_a_changed_threshold_holds_from_the_next_round_and_is_on_record(rounds: Rounds) -> None:
    def hot(value: float) -> list[Observation]:
        return [Observation("rho_high", "node", "n1", value, "rho of n1", pool="h100")]

    change_rule(
        rounds.session, ADA, name="rho_high", values={"open_at": 0.95, "open_after_s": 30},
        now=T0, note="batch fleet",
    )  # fmt: skip
    rounds.session.commit()
    rounds.run(300, hot(0.9))
    assert rounds.session.scalars(select(AlertRow)).all() == []
    rounds.run(40, hot(0.96))
    assert (rounds.alert("n1").state, rounds.alert("n1").threshold) == ("open", 0.95)
    row = rounds.session.scalars(select(AuditRow).where(AuditRow.action == "alert_rule.change")).one()
    assert row.detail == {"from": {}, "to": {"open_at": 0.95, "open_after_s": 30.0}}
    assert (row.actor, row.note) == ("ada", "batch fleet")
    reset_rule(rounds.session, ADA, name="rho_high", now=rounds.now)
    rounds.session.commit()
    assert [v for v in rule_views(rounds.session) if v.changes] == []


def test_a_stored_change_of_another_release_leaves_the_rule_as_delivered(session: Session) -> None:
    session.execute(
        text(
            "INSERT INTO alert_rule (name, changes, updated_at, updated_by) "
            "VALUES ('rho_high', '{\"colour\": \"red\"}', now(), 'x'), ('gone_rule', '{}', now(), 'x')"
        )
    )
    views = {view.rule.name: view for view in rule_views(session)}
    assert views["rho_high"].rule.open_at == 0.85
    assert "gone_rule" not in views


def test_each_notice_goes_once_to_each_webhook_whoever_leads(rounds: Rounds) -> None:
    for name in ("pager", "chat"):
        add_webhook(
            rounds.session, ADA, name=name, url=f"https://{name}.example.org/", secret_name=name, now=T0
        )
    rounds.session.commit()
    seen = [frozen("n1")]
    rounds.run(30, seen)
    # another leader goes on: all it has is the database
    with Session(rounds.session.get_bind()) as other:
        successor = Rounds.__new__(Rounds)
        successor.session, successor.now = other, rounds.now
        (notice,) = successor.run(60, seen)
        # and the old one's last round, come late or twice, tells nothing more
        alerts.apply(other, successor.now, PERIOD_S, seen)
        other.commit()
        assert [n.id for n in successor.notices()] == [notice.id]
        d = AlertDeliveryRow
        rows = other.execute(select(d.webhook, d.notice, d.state).order_by(d.webhook)).all()
        assert [tuple(row) for row in rows] == [
            ("chat", notice.id, "pending"),
            ("pager", notice.id, "pending"),
        ]


def test_a_round_that_fails_leaves_neither_alert_nor_notice(rounds: Rounds) -> None:
    rounds.run(30, [frozen("n1")])
    at = rounds.now + timedelta(seconds=10)
    alerts.apply(rounds.session, at, PERIOD_S, [frozen("n1")])
    assert len(rounds.notices()) == 1  # in this transaction
    rounds.session.rollback()
    assert rounds.notices() == []
    (notice,) = rounds.run(10, [frozen("n1")])  # the next attempt tells it, once
    assert notice.kind == "open"


def test_the_database_refuses_a_silence_without_an_end(session: Session) -> None:
    with pytest.raises(IntegrityError):
        session.execute(
            text(
                "INSERT INTO alert_silence (rule, reason, created_at, created_by, expires_at) "
                "VALUES ('x', 'x', now(), 'x', NULL)"
            )
        )


def test_a_webhook_added_later_gets_what_comes_later(rounds: Rounds) -> None:
    rounds.run(60, [frozen("n1")])
    add_webhook(rounds.session, ADA, name="pager", url="https://p.example.org/", secret_name="p", now=T0)
    rounds.session.commit()
    assert rounds.session.scalars(select(WebhookRow.name)).all() == ["pager"]
    assert rounds.session.scalars(select(AlertDeliveryRow)).all() == []
    (over,) = rounds.run(90, [frozen("n1", 0.0)])
    assert rounds.session.scalars(select(AlertDeliveryRow.notice)).all() == [over.id]


def test_more_timers_than_one_statement_can_carry_are_kept_and_forgotten(session: Session) -> None:
    # five values a timer: 13,107 of them are the 65,535 parameters Postgres takes in one statement
    add_pool(session, ADA, name="h100", models=["m"], now=T0)
    session.commit()
    many = [silent(f"n{i}") for i in range(20_000)]
    assert alerts.apply(session, T0, PERIOD_S, many) == []
    session.commit()
    count = select(func.count()).select_from(AlertTimerRow)
    assert session.scalar(count) == 20_000
    back = [silent(o.subject, 0.0) for o in many]
    alerts.apply(session, T0 + timedelta(seconds=PERIOD_S), PERIOD_S, back)
    session.commit()
    assert session.scalar(count) == 0


def test_a_pool_is_not_told_of_beside_the_whole_fleet_and_is_when_it_alone_is_left(rounds: Rounds) -> None:
    def high(scope: str, subject: str, value: float) -> Observation:
        pool = subject or None
        return Observation("rho_high", scope, subject, value, f"rho of {subject or 'all'}", pool=pool)

    both = [high("fleet", "", 0.95), high("pool", "h100", 0.99), high("pool", "a100", 0.5)]
    told = rounds.run(300, both)
    assert [(n.rule, n.scope, n.kind) for n in told] == [("rho_high", "fleet", "open")]
    assert rounds.alert("h100").state == "open"  # it shows, and says who tells of it
    entries = {e.scope: e for e in unresolved_alerts(rounds.session, rounds.now)}
    assert (entries["pool"].is_inhibited, entries["fleet"].is_inhibited) == (True, False)
    left = [high("fleet", "", 0.5), high("pool", "h100", 0.99)]
    told = rounds.run(300, left)
    assert {(n.scope, n.kind) for n in told} == {("fleet", "resolved"), ("pool", "open")}
    over = rounds.run(300, [high("fleet", "", 0.5), high("pool", "h100", 0.5)])
    assert [(n.scope, n.kind) for n in over] == [("pool", "resolved")]
