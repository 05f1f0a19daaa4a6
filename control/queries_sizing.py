"""What the nodes of a pool run, as sizing compares it: launch settings and the cache they reported.

Prevents: advice compared with a pool's registration although its nodes say otherwise.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.tables import NodeRow, PoolRow, SampleRow
from fleet.errors import NotFound
from fleet.sizing_flags import Launch

#: A cache reported longer ago than this may belong to an engine that was started differently since.
RECENT = timedelta(minutes=10)


def launches(session: Session, pool: str, *, now: datetime) -> dict[str, Launch]:
    """Return what each node of `pool` that is not removed runs, by name. Raises NotFound.

    `kv_tokens` is the smallest engine's newest capacity of the last ten minutes; None if it did not say.
    """
    row = session.get(PoolRow, pool)
    if row is None:
        raise NotFound(
            f"there is no pool {pool[:60]!r}", field="pool", hint="`rhodeck pools list` names them"
        )
    newest = (
        select(SampleRow.node, SampleRow.engine, func.max(SampleRow.at).label("at"))
        .where(SampleRow.at > now - RECENT, SampleRow.kv_capacity_tokens.is_not(None))
        .group_by(SampleRow.node, SampleRow.engine)
        .subquery()
    )
    said = session.execute(
        select(SampleRow.node, func.min(SampleRow.kv_capacity_tokens))
        .join(
            newest,
            (SampleRow.node == newest.c.node)
            & (SampleRow.engine == newest.c.engine)
            & (SampleRow.at == newest.c.at),
        )
        .where(SampleRow.at > now - RECENT)
        .group_by(SampleRow.node)
    )
    tokens = {node: found for node, found in said}
    nodes = session.scalars(
        select(NodeRow.name).where(NodeRow.pool == pool, NodeRow.state != "removed").order_by(NodeRow.name)
    )
    return {
        node: Launch(
            max_num_seqs=row.max_num_seqs,
            max_num_batched_tokens=row.max_num_batched_tokens,
            chunked_prefill=row.chunked_prefill,
            kv_tokens=tokens.get(node),
        )
        for node in nodes
    }
