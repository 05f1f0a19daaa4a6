"""The usage record of a request as JSON, and what of it is known when the request goes to an engine.

Times are seconds (`finished_at_s`: Unix), tokens counts. Most of a record is the same for every request of
one key to one node: that part is encoded once. Prevents: half of what a record costs spent on encoding the
same names again, and a name of a tenant or node that breaks out of its quotes.
"""

from __future__ import annotations

from typing import Final

import orjson

from fleet.outcomes import Outcome, Tier

_MOST_KEPT: Final = 20_000
_dumps: Final = orjson.dumps
_OUTCOMES: Final = {outcome: orjson.dumps(outcome) for outcome in Outcome}


class UsageForms:
    """The parts of records that do not change, by whose request it is and where it went."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str, str, str, str, Tier], bytes] = {}

    def names(
        self, tenant: str, key_id: str, model: str, endpoint: str, node: str, pool: str, tier: Tier
    ) -> bytes:
        """Return the members that name them, as an object that is still open: `{"tenant":"acme",`."""
        key = (tenant, key_id, model, endpoint, node, pool, tier)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            named = {"tenant": tenant, "key_id": key_id, "model": model, "endpoint": endpoint}
            known = _opened(orjson.dumps({**named, "node": node, "pool": pool, "tier": tier}))
            self._known[key] = known
        return known


def sent_json(names: bytes, request_id: str, queued_s: float) -> bytes:
    """Return what is known for good once a request is sent, as an object that is still open."""
    # The id is ours: nothing in it needs to be escaped.
    return b'%s"request_id":"%s","queued_s":%s,' % (names, request_id.encode(), _dumps(queued_s))


def draft_json(sent: bytes, prompt_tokens: int, reserved_tokens: int) -> bytes:
    """Return what is known before the answer, on one line."""
    return b'%s"prompt_tokens":%d,"reserved_tokens":%d}' % (sent, prompt_tokens, reserved_tokens)


def record_json(
    sent: bytes,
    prompt_tokens: int,
    reserved_tokens: int,
    seq: int,
    outcome: Outcome,
    cached_tokens: int | None,
    output_tokens: int,
    is_exact: bool,
    ttft_s: float | None,
    engine_s: float,
    finished_at_s: float,
) -> bytes:
    """Return the whole record (`fleet.messages.UsageRecord`): what was sent, and how it ended."""
    counted = b'%s"prompt_tokens":%d,"reserved_tokens":%d,"seq":%d,"output_tokens":%d,' % (
        sent,
        prompt_tokens,
        reserved_tokens,
        seq,
        output_tokens,
    )
    ending = b'"outcome":%s,"cached_tokens":%s,"exact":%s,"ttft_s":%s,"engine_s":%s,"finished_at_s":%s}' % (
        _OUTCOMES[outcome],
        b"null" if cached_tokens is None else b"%d" % cached_tokens,
        b"true" if is_exact else b"false",
        b"null" if ttft_s is None else _dumps(ttft_s),
        _dumps(engine_s),
        _dumps(finished_at_s),
    )
    return counted + ending


def _opened(document: bytes) -> bytes:
    """Return a JSON object with members so that others can follow."""
    return document[:-1] + b","
