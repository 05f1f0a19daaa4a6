"""What a month's money is made of, read from the books: node time at its prices, charges, use, the rule.

USD as `Decimal`, node time and engine time in seconds. Prevents: totals by day, tenant and month that
disagree because they were read apart: there is one way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, cast

from sqlalchemy import ColumnElement, Numeric, func, select
from sqlalchemy import cast as sql_cast
from sqlalchemy.orm import Session

from control.prices import Price, in_force, prices
from control.tables import (
    AllocationRuleRow,
    CommitmentRow,
    NodeQuarterRow,
    PoolRow,
    UsageQuarterRow,
    UsageRecordRow,
)
from fleet.allocation import Basis, Rule, Share, allocate
from fleet.commitments import Commitment, settle
from fleet.months import Month
from fleet.spend import Charge, MonthSpend, NodeTime, Use

Key = tuple[str, str, str, str]  # tenant, tier, model, pool


@dataclass(frozen=True, slots=True)
class Basics:
    """What a closed month keeps of its inputs: everything but use, which may still come."""

    node_time: tuple[NodeTime, ...]
    charges: tuple[Charge, ...]
    slots: dict[str, int | None]
    rule: Rule

    def spend(self, month: Month, use: Sequence[Use], *, is_estimated: bool) -> MonthSpend:
        """Return the month's lines for `use`."""
        return allocate(
            month,
            self.node_time,
            use,
            self.slots,
            is_estimated=is_estimated,
            charges=self.charges,
            rule=self.rule,
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON; amounts as text, so that none is rounded."""
        return {
            "node_time": [
                [
                    t.pool,
                    t.price_class,
                    str(t.up_s),
                    None if t.usd_per_node_hour is None else str(t.usd_per_node_hour),
                ]
                for t in self.node_time
            ],
            "charges": [[c.kind, c.pool, str(c.usd), c.note] for c in self.charges],
            "slots": self.slots,
            "rule": [self.rule.basis, self.rule.share, str(self.rule.output_weight)],
        }

    @staticmethod
    def of_json(kept: dict[str, Any]) -> Basics:
        """Return what `as_json` gave."""
        basis, share, weight = kept["rule"]
        return Basics(
            tuple(
                NodeTime(pool, price_class, Decimal(up_s), None if usd is None else Decimal(usd))
                for pool, price_class, up_s, usd in kept["node_time"]
            ),
            tuple(Charge(kind, pool, Decimal(usd), note) for kind, pool, usd, note in kept["charges"]),
            kept["slots"],
            Rule(basis, share, Decimal(weight)),
        )


def basics(session: Session, month: Month, now: datetime) -> Basics:
    """Return node time, charges, slots and rule of `month` as the books have them now."""
    node_time, charges = costs(session, month, now)
    slots = {pool: slots for pool, slots in session.execute(select(PoolRow.name, PoolRow.max_num_seqs))}
    return Basics(tuple(node_time), tuple(charges), slots, rule_of(session, month.name))


def rule_of(session: Session, month: str) -> Rule:
    """Return the rule in force in `month` ("2026-11"): the newest of those that begin by then."""
    r = AllocationRuleRow
    row = session.scalars(
        select(r).where(r.from_month <= month).order_by(r.from_month.desc(), r.id.desc()).limit(1)
    ).first()
    if row is None:
        return Rule()
    return Rule(cast("Basis", row.basis), cast("Share", row.share), row.output_weight)


def commitments(session: Session) -> list[Commitment]:
    """Return every commitment, the one made first first."""
    rows = session.scalars(select(CommitmentRow).order_by(CommitmentRow.id))
    return [
        Commitment(
            r.id,
            "platform" if r.pool is None else "nodes",
            r.pool,
            r.nodes,
            r.usd_per_hour,
            r.upfront_usd,
            r.starts_at,
            r.ends_at,
        )
        for r in rows
    ]


def use(session: Session, month: Month, rule: Rule) -> list[Use]:
    """Return metered use of `month` by tenant, tier, model and pool."""
    q = UsageQuarterRow
    rows = session.execute(
        select(
            q.tenant,
            q.tier,
            q.model,
            q.pool,
            func.sum(q.requests),
            func.sum(q.prompt_tokens),
            func.sum(q.output_tokens),
            func.sum(q.engine_s),
        )
        .where(q.quarter >= month.start, q.quarter < month.end)
        .group_by(q.tenant, q.tier, q.model, q.pool)
    )
    held = _kv_token_s(session, month) if rule.basis == "kv_token_seconds" else {}
    return [
        Use(
            tenant,
            tier,
            model,
            pool,
            int(requests),
            int(prompt),
            int(output),
            engine_s,
            held.get((tenant, tier, model, pool), Decimal(0)),
        )
        for tenant, tier, model, pool, requests, prompt, output, engine_s in rows
    ]


def node_seconds(session: Session, month: Month) -> dict[tuple[str, str, datetime], Decimal]:
    """Return observed node-seconds of `month` by pool, price class and quarter-hour."""
    n = NodeQuarterRow
    rows = session.execute(
        select(n.pool, n.price_class, n.quarter, func.sum(n.up_s))
        .where(n.quarter >= month.start, n.quarter < month.end)
        .group_by(n.pool, n.price_class, n.quarter)
    )
    return {(pool, price_class, quarter): up_s for pool, price_class, quarter, up_s in rows}


def costs(session: Session, month: Month, now: datetime) -> tuple[list[NodeTime], list[Charge]]:
    """Return priced node time and charges of `month` up to `now` as the books have them now."""
    known = prices(session)
    reserved: dict[tuple[str, datetime], Decimal] = {}
    others: dict[tuple[str, str, datetime], Decimal] = {}
    for (pool, price_class, quarter), up_s in node_seconds(session, month).items():
        if price_class == "reserved":
            reserved[pool, quarter] = up_s
        else:
            others[pool, price_class, quarter] = up_s
    settled = settle(commitments(session), reserved, month, now)
    others |= {(pool, "reserved", quarter): up_s for (pool, quarter), up_s in settled.left.items()}
    return [*settled.used, *_priced(known, others)], list(settled.charges)


def _kv_token_s(session: Session, month: Month) -> dict[Key, Decimal]:
    """Return KV-token-seconds: each request held its prompt all the time and half its answer on average."""
    u = UsageRecordRow
    held: ColumnElement[Decimal] = sql_cast(u.engine_s, Numeric) * (
        u.prompt_tokens + u.output_tokens / Decimal(2)
    )
    rows = session.execute(
        select(u.tenant, u.tier, u.model, u.pool, func.sum(held))
        .where(u.finished_at >= month.start, u.finished_at < month.end)
        .group_by(u.tenant, u.tier, u.model, u.pool)
    )
    return {(tenant, tier, model, pool): held for tenant, tier, model, pool, held in rows}


def _priced(known: Sequence[Price], seconds: dict[tuple[str, str, datetime], Decimal]) -> list[NodeTime]:
    sums: dict[tuple[str, str, Decimal | None], Decimal] = defaultdict(Decimal)
    for (pool, price_class, quarter), up_s in seconds.items():
        sums[pool, price_class, in_force(known, price_class, pool, quarter)] += up_s
    return [NodeTime(pool, price_class, up_s, price) for (pool, price_class, price), up_s in sums.items()]
