"""The Goodput page tries no more sequences at once than the engine's KV cache holds."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from control.database import session_scope
from control.tables import CapacityEstimateRow
from tests.pages.conftest import Show, column, text
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres


def test_no_more_at_once_is_advised_than_the_cache_holds(full: Show, dashboard_on: FreshDatabase) -> None:
    curve = {"intercept_s": 0.01, "slope_s": 0.001, "knee": None, "last_slope_s": 0.001}
    with session_scope(dashboard_on.engine) as session:
        session.execute(
            update(CapacityEstimateRow).values(
                detail={"curve": curve, "limits": {"kv": 40.7, "slots": 64.0}}
            )
        )
    at = full("goodput")
    assert [e.message for e in at.exception] == []
    assert "holds 40 sequences" in text(at)
    # what is in use is shown whatever it is; the batches to choose from end at the cache
    tried = [int(str(batch)) for batch in column(at, "batch")]
    assert max(batch for batch in tried if batch != 64) <= 40
