"""The usage record of a request as JSON, and what of it is known when the request goes to an engine.

Times are seconds (`finished_at_s`: Unix), tokens counts. Most of a record is the same for every request of
one key to one node: that part is encoded once. Prevents: half of what a record costs spent on encoding the
same names again, and a name of a tenant or node that breaks out of its quotes.
"""

from __future__ import annotations

import orjson

from fleet.outcomes import Outcome, Tier

_MOST_KEPT = 20_000


class UsageForms:
    """The parts of records that do not change, by whose request it is and where it went."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str, str, str, str], str] = {}

    def names(self, tenant: str, key_id: str, model: str, endpoint: str, node: str, pool: str) -> str:
        """Return the members that name them, as JSON without the closing brace."""
        key = (tenant, key_id, model, endpoint, node, pool)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            named = {"tenant": tenant, "key_id": key_id, "model": model, "endpoint": endpoint}
            known = orjson.dumps({**named, "node": node, "pool": pool}).decode()[:-1]
            self._known[key] = known
        return known


def draft_json(
    names: str, request_id: str, tier: Tier, prompt_tokens: int, reserved_tokens: int, queued_s: float
) -> bytes:
    """Return what is known before the answer, on one line. `request_id` is ours: it needs no quoting."""
    return (
        f'{names},"tier":"{tier}","request_id":"{request_id}","prompt_tokens":{prompt_tokens},'
        f'"reserved_tokens":{reserved_tokens},"queued_s":{queued_s!r}}}'
    ).encode()


def record_json(
    draft: bytes,
    seq: int,
    outcome: Outcome,
    cached_tokens: int | None,
    output_tokens: int,
    is_exact: bool,
    ttft_s: float | None,
    engine_s: float,
    finished_at_s: float,
) -> bytes:
    """Return the whole record (`fleet.messages.UsageRecord`): a draft, and how the request ended."""
    cached = "null" if cached_tokens is None else str(cached_tokens)
    ttft = "null" if ttft_s is None else repr(ttft_s)
    exact = "true" if is_exact else "false"
    return (
        draft[:-1]
        + (
            f',"seq":{seq},"outcome":"{outcome}","cached_tokens":{cached},"output_tokens":{output_tokens},'
            f'"exact":{exact},"ttft_s":{ttft},"engine_s":{engine_s!r},"finished_at_s":{finished_at_s!r}}}'
        ).encode()
    )
