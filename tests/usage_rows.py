"""Records of one tenant's use, as the controller stores them. Times are seconds, sizes tokens."""

from __future__ import annotations

from datetime import datetime, timedelta

from control.tables import UsageRecordRow

PROMPT, OUTPUT, ENGINE_S = 500, 300, 6.0


def served(number: int, arrived_at: datetime, *, queued_s: float = 0.0) -> UsageRecordRow:
    """Return the record of `acme`'s interactive request `number`: queued, then served in `ENGINE_S`."""
    finished_at = arrived_at + timedelta(seconds=queued_s + ENGINE_S)
    return UsageRecordRow(
        gateway="gw-1",
        spool="s",
        seq=number + 1,
        request_id=f"r{number}",
        tenant="acme",
        key_id="k",
        tier="interactive",
        model="llama",
        endpoint="chat",
        node="n1",
        pool="main",
        outcome="completed",
        prompt_tokens=PROMPT,
        cached_tokens=None,
        output_tokens=OUTPUT,
        exact=True,
        reserved_tokens=PROMPT + OUTPUT,
        queued_s=queued_s,
        ttft_s=0.2,
        engine_s=ENGINE_S,
        finished_at=finished_at,
        received_at=finished_at,
    )
