"""Notices on their way: claimed, posted, recorded; tried again with back-off, given up in sight.

At least once: a notice whose answer got lost is posted again under the same `webhook-id`. Notices about one
group reach a webhook in order; a webhook that hangs delays the others by one call's deadline at most.
Durations are seconds. Prevents: a resolved notice that overtakes the alarm, a receiver that is down for ten
minutes and misses the night, and a retry that never ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from sqlalchemy import and_, exists, func, select, tuple_
from sqlalchemy.orm import Session, aliased

from control.alert_notices import ALERTMANAGER_ENDS_AFTER_S, alert_entry, alertmanager_alerts, with_links
from control.alert_rule_store import rules_in_force
from control.alert_silences import active_silences, silencing
from control.database import session_scope
from control.deps import Deps
from control.fetch import Ask, FetchFailed, fetch_page
from control.lease import LeaseLost, require
from control.own_metrics import ControlMetrics
from control.tables import AlertDeliveryRow, AlertNoticeRow, AlertRow, WebhookRow
from control.webhooks import read_secret, signature
from fleet.errors import FleetError

log = logging.getLogger(__name__)

CALL_S = 10.0
#: A claimed delivery is taken up again after this long: the process that claimed it is gone.
CLAIM_S = 60.0
CALLS_AT_ONCE = 4  # to one webhook
MAX_ATTEMPTS = 12
#: While calls are open, so often it is looked what else fell due.
RECLAIM_S = 1.0
BACKOFF_S, BACKOFF_CAP_S = 5.0, 900.0
#: A receiver that asks to be left alone longer than this is asked again after this.
RETRY_AFTER_CAP_S = 3_600.0
#: Answers whose Retry-After counts: too many requests, not available.
_BUSY = frozenset({429, 503})
#: How often an Alertmanager is told what is open.
REFRESH_S = 60.0
MAX_REFRESHED = 2_000
_ANY = frozenset(range(100, 600))
_GONE = 410
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One call to make. `notice` None: an Alertmanager's refresh, which is not kept."""

    notice: str | None
    webhook: str
    kind: str
    url: str
    secret_name: str | None
    attempts: int  # this one included
    body: Any


@dataclass(frozen=True, slots=True)
class Answered:
    """How a call went. `error` None: it was taken."""

    call: Outgoing
    error: str | None
    is_final: bool = False  # the receiver wants no more of it
    wanted_s: float | None = None  # how long it asks to be left alone


@dataclass(frozen=True, slots=True)
class Courier:
    """Everything the delivering step touches."""

    deps: Deps
    http: aiohttp.ClientSession
    metrics: ControlMetrics
    secrets: Path
    public_url: str | None = None
    call_s: float = CALL_S

    async def tick(self) -> str:
        """Deliver what is due and return the line to log. Needs the lease."""
        epoch = self.deps.leadership.current(self.deps.clock)
        if epoch is None:
            return ""
        try:
            answers = await self._deliver(epoch)
        except LeaseLost:
            self.deps.leadership.step_down()
            raise
        if not answers:
            return ""
        failed = [answer for answer in answers if answer.error is not None]
        said = f"{len(answers) - len(failed)} notices delivered"
        return said + (f", {len(failed)} failed: {failed[0].error}" if failed else "")

    async def _deliver(self, epoch: int) -> list[Answered]:
        """Make the calls that are due, recording each answer as it comes.

        While a receiver keeps its call open, what falls due for the others is claimed and called all the
        same, for as long as a call may take.
        """
        began_s = self.deps.clock.monotonic_s()
        running: dict[asyncio.Task[Answered], str] = {}
        answers: list[Answered] = []
        is_claim_due = True
        try:
            while is_claim_due or running:
                if is_claim_due:
                    for call in await asyncio.to_thread(self._claim, epoch, frozenset(running.values())):
                        running[asyncio.create_task(self._call(call))] = call.webhook
                if not running:
                    break
                done, _ = await asyncio.wait(running, timeout=RECLAIM_S)
                for task in done:
                    del running[task]
                if done:
                    came = [task.result() for task in done]
                    await asyncio.to_thread(self._record, epoch, came)
                    answers += came
                in_time = self.deps.clock.monotonic_s() - began_s < self.call_s
                is_claim_due = bool(running) and in_time
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return answers

    # ---- claiming --------------------------------------------------------------------------------------

    def _claim(self, epoch: int, busy: frozenset[str]) -> list[Outgoing]:
        """Claim what is due of every webhook but those in `busy`, which have calls open."""
        now = self.deps.clock.now()
        with session_scope(self.deps.engine) as session:
            hooks = session.scalars(
                select(WebhookRow).where(WebhookRow.removed_at.is_(None)).order_by(WebhookRow.name)
            ).all()
            self._count(session)
            wanting = [hook for hook in hooks if hook.name not in busy and _is_wanting(session, hook, now)]
            if not wanting:
                return []
            require(session, epoch, role=self.deps.leadership.role)
            calls: list[Outgoing] = []
            for hook in wanting:
                calls += _claim_notices(session, hook, now)
                calls += self._refresh(session, hook, now)
            return calls

    def _count(self, session: Session) -> None:
        d = AlertDeliveryRow
        rows = session.execute(
            select(d.state, func.count()).where(d.state != "delivered").group_by(d.state)
        )
        counts = {state: count for state, count in rows}
        for state in ("pending", "dead"):
            self.metrics.notices.labels(state=state).set(counts.get(state, 0))

    def _refresh(self, session: Session, hook: WebhookRow, now: datetime) -> list[Outgoing]:
        if not _is_refresh_due(hook, now):
            return []
        hook.refreshed_at = now
        entries = _standing(session, now)
        if not entries:
            return []
        return [Outgoing(None, hook.name, hook.kind, hook.url, hook.secret_name, 1, entries)]

    # ---- calling ---------------------------------------------------------------------------------------

    async def _call(self, call: Outgoing) -> Answered:
        now = self.deps.clock.now()
        try:
            url, content, headers = self._message(call, now)
            answer = await fetch_page(
                self.http,
                url,
                clock=self.deps.clock,
                deadline_s=self.call_s,
                ask=Ask(headers=headers, content=content, is_answer_wanted=False, statuses=_ANY),
            )
        except FetchFailed as problem:
            return Answered(call, f"{problem.reason.value}: {problem.detail}"[:_SHOWN])
        except FleetError as problem:
            return Answered(call, problem.message[:_SHOWN])
        if 200 <= answer.status < 300:
            return Answered(call, None)
        if 300 <= answer.status < 400:
            return Answered(call, f"status {answer.status}: redirects are not followed")
        said = " ".join(answer.body.decode("utf-8", "replace").split())
        if token := headers.get("Authorization", "").removeprefix("Bearer "):
            said = said.replace(token, "***")  # some receivers repeat what they refuse; this is stored
        shown = "".join(c for c in said if c.isprintable())[:_SHOWN]
        wanted_s = answer.retry_after_s if answer.status in _BUSY else None
        said = f"status {answer.status}: {shown}".rstrip(": ")
        return Answered(call, said, answer.status == _GONE, wanted_s)

    def _message(self, call: Outgoing, now: datetime) -> tuple[str, bytes, dict[str, str]]:
        """Return address, body and headers of one call."""
        headers = {"Content-Type": "application/json", "Accept": "*/*", "User-Agent": "rhodeck"}
        secret = None if call.secret_name is None else read_secret(self.secrets, call.secret_name)
        if call.kind == "alertmanager":
            entries = call.body if call.notice is None else call.body["data"]["alerts"]
            content = orjson.dumps(alertmanager_alerts(entries, now, self.public_url))
            if secret is not None:
                headers["Authorization"] = f"Bearer {secret}"
            return f"{call.url.rstrip('/')}/api/v2/alerts", content, headers
        content = orjson.dumps(with_links(call.body, self.public_url))
        stamp_s, number = int(now.timestamp()), call.notice or ""
        headers |= {
            "webhook-id": number,
            "webhook-timestamp": str(stamp_s),
            "webhook-signature": signature(secret or "", number, stamp_s, content),
        }
        return call.url, content, headers

    # ---- recording -------------------------------------------------------------------------------------

    def _record(self, epoch: int, answers: Sequence[Answered]) -> None:
        now = self.deps.clock.now()
        results: Counter[str] = Counter()
        with session_scope(self.deps.engine) as session:
            require(session, epoch, role=self.deps.leadership.role)
            for answer in answers:
                results[self._settle(session, answer, now)] += 1
        for result, count in results.items():
            self.metrics.deliveries.labels(result=result).inc(count)

    def _settle(self, session: Session, answer: Answered, now: datetime) -> str:
        call = answer.call
        hook = session.get(WebhookRow, call.webhook, with_for_update=True)
        if hook is not None and answer.error is None:
            hook.last_ok_at = now
        elif hook is not None:
            hook.last_error, hook.last_error_at = answer.error, now
        if call.notice is None:
            return "refreshed" if answer.error is None else "failed"
        row = session.get(AlertDeliveryRow, (call.notice, call.webhook), with_for_update=True)
        if row is None or row.state != "pending":  # the webhook was removed meanwhile
            return "failed" if answer.error else "delivered"
        row.error = answer.error
        if answer.error is None:
            row.state, row.done_at = "delivered", now
        elif answer.is_final or call.attempts >= MAX_ATTEMPTS:
            row.state, row.done_at = "dead", now
            log.error(
                "notice given up",
                extra={"webhook": call.webhook, "notice": call.notice, "reason": answer.error},
            )
        else:
            pause_s = pause_after_s(call.attempts, self.deps.rng.random(), answer.wanted_s)
            row.next_at = now + timedelta(seconds=pause_s)
            return "failed"
        return row.state


def pause_after_s(attempts: int, chance: float, wanted_s: float | None) -> float:
    """Return the wait after a failed call: the back-off, or longer where the receiver asks for it.

    A receiver's wish never shortens the back-off and counts up to an hour, so that none is forgotten.
    """
    return max(backoff_s(attempts, chance), min(wanted_s or 0.0, RETRY_AFTER_CAP_S))


def backoff_s(attempts: int, chance: float) -> float:
    """Return the wait after `attempts` failed calls: 5 s doubled each time, at most 900 s, less a jitter.

    `chance` in [0, 1) takes away up to a quarter, so that what failed together does not return together.
    """
    return float(min(BACKOFF_CAP_S, BACKOFF_S * 2.0 ** (attempts - 1))) * (1 - 0.25 * chance)


def _is_refresh_due(hook: WebhookRow, now: datetime) -> bool:
    last = hook.refreshed_at
    if hook.kind != "alertmanager":
        return False
    # told in the future: the clock was set back, and alerts that nobody renews end by themselves
    return last is None or not timedelta(0) <= now - last < timedelta(seconds=REFRESH_S)


def _is_wanting(session: Session, hook: WebhookRow, now: datetime) -> bool:
    d = AlertDeliveryRow
    due = select(exists().where(d.webhook == hook.name, d.state == "pending", d.next_at <= now))
    return _is_refresh_due(hook, now) or bool(session.scalar(due))


def _claim_notices(session: Session, hook: WebhookRow, now: datetime) -> list[Outgoing]:
    """Claim the due notices of one webhook, the oldest of each group first."""
    d, n = AlertDeliveryRow, AlertNoticeRow
    earlier, before = aliased(AlertDeliveryRow), aliased(AlertNoticeRow)
    is_blocked = exists().where(
        and_(
            earlier.webhook == d.webhook,
            earlier.state == "pending",
            before.id == earlier.notice,
            before.rule == n.rule,
            before.scope == n.scope,
            before.pool == n.pool,
            tuple_(before.at, before.id) < tuple_(n.at, n.id),
        )
    )
    rows = session.execute(
        select(d, n.body)
        .join(n, n.id == d.notice)
        .where(d.webhook == hook.name, d.state == "pending", d.next_at <= now, ~is_blocked)
        .order_by(n.at, n.id)
        .limit(CALLS_AT_ONCE)
        .with_for_update(of=d, skip_locked=True)
    ).all()
    calls: list[Outgoing] = []
    for row, body in rows:
        row.attempts += 1
        row.next_at = now + timedelta(seconds=CLAIM_S)
        calls.append(
            Outgoing(row.notice, hook.name, hook.kind, hook.url, hook.secret_name, row.attempts, body)
        )
    return calls


def _standing(session: Session, now: datetime) -> list[dict[str, Any]]:
    """Return what an Alertmanager should know now: alerts people were told of, and what ended lately."""
    a, rules, active = AlertRow, rules_in_force(session), active_silences(session, now)
    lately = now - timedelta(seconds=ALERTMANAGER_ENDS_AFTER_S)
    rows = session.scalars(
        select(a)
        .where(
            a.notified_at.is_not(None),
            (a.state != "resolved") | (a.resolved_notified_at > lately),
        )
        .order_by(a.id)
        .limit(MAX_REFRESHED)
    )
    return [
        alert_entry(row, rules.get(row.rule))
        for row in rows
        if row.state == "resolved" or silencing(row, active) is None
    ]
