"""What finance declared, as pages and scripts read it: rules of allocation and commitments, newest first.

USD as `Decimal`, times timezone-aware. Prevents: a rule or contract that only whoever entered it knows of.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import select
from sqlalchemy.orm import Session

from control.tables import AllocationRuleRow, CommitmentRow

MAX_LISTED = 200


@dataclass(frozen=True, slots=True)
class RuleView:
    """One rule: the newest one entered for a month holds from there on."""

    from_month: str
    basis: str
    share: str
    output_weight: Decimal
    reason: str
    created_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class CommitmentView:
    """Nodes paid for whether used or not; `pool` None: the platform's own cost."""

    pool: str | None
    nodes: int
    usd_per_hour: Decimal  # of each node
    upfront_usd: Decimal  # of all of them
    starts_at: datetime
    ends_at: datetime
    source: str
    created_by: str


def rule_views(session: Session) -> list[RuleView]:
    """Return the rules ever declared, the latest month first and within it the newest entry."""
    r = AllocationRuleRow
    rows = session.scalars(select(r).order_by(r.from_month.desc(), r.id.desc()).limit(MAX_LISTED))
    return [
        RuleView(
            row.from_month,
            row.basis,
            row.share,
            row.output_weight,
            row.reason,
            row.created_by,
            row.created_at,
        )
        for row in rows
    ]


def commitment_views(session: Session) -> list[CommitmentView]:
    """Return the commitments ever entered, the one that ends last first."""
    c = CommitmentRow
    rows = session.scalars(select(c).order_by(c.ends_at.desc(), c.id.desc()).limit(MAX_LISTED))
    return [
        CommitmentView(
            row.pool,
            row.nodes,
            row.usd_per_hour,
            row.upfront_usd,
            row.starts_at,
            row.ends_at,
            row.source,
            row.created_by,
        )
        for row in rows
    ]
