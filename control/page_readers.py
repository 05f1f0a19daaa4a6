"""Which node a page is read for: as its own, or as a further one of its engines.

Prevents: an engine that counts twice because its page belongs to two nodes.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import exists, or_, select
from sqlalchemy.orm import Session

from control.tables import NodeEndpointRow, NodeRow


def reader_of(session: Session, page: str, *, besides: Collection[str] = ()) -> str | None:
    """Return the node that this engine's page is read for; None if it is free. `besides` do not count.

    A further page counts for every node but its own; removed nodes read nothing.
    """
    n, e = NodeRow, NodeEndpointRow
    further = exists().where(e.node == n.name, e.url == page, e.kind == "engine")
    is_own = n.base_url + n.metrics_path == page
    return session.scalar(
        select(n.name)
        .where(n.state != "removed", n.name.not_in(list(besides)), or_(is_own, further))
        .order_by(n.name)
        .limit(1)
    )
