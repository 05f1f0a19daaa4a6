"""Which requests are tries of an earlier one: what a client sends again after a refusal or a failure.

Seconds on the clock's monotonic scale. A request is a repetition when the client says so (the retry count
that OpenAI's client libraries send), or when it has the idempotency key, or else the body, of one of the
same tenant that was refused, failed or left by its client within two minutes. Only lost requests are
remembered, as digests, at most 20,000: a gateway that loses nothing computes nothing. Prevents: a retry
storm read as demand.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

from admission.identity import Headers
from fleet.outcomes import SHED, Outcome

WINDOW_S = 120.0
MAX_REMEMBERED = 20_000
#: Sent by the OpenAI client libraries with every request, 0 for the first try (openai-python).
RETRY_COUNT_HEADER: Final = b"x-stainless-retry-count"
IDEMPOTENCY_HEADER = b"idempotency-key"
_HEAD_BYTES, _TAIL_BYTES = 65_536, 4_096
#: A client whose patience ends before the answer comes hangs up and tries again: that is how storms begin.
LOST: Final = SHED | {
    Outcome.UPSTREAM_ERROR,
    Outcome.UPSTREAM_TIMEOUT,
    Outcome.DRAINING,
    Outcome.CLIENT_GONE,
}


class RepeatWatch:
    """What was lost lately. One event loop owns it."""

    def __init__(self, *, window_s: float = WINDOW_S, max_remembered: int = MAX_REMEMBERED) -> None:
        self._window_s = window_s
        self._max_remembered = max_remembered
        self._lost: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lost)

    def is_repeat(self, tenant: str, headers: Headers, raw: bytes, now_s: float) -> bool:
        """Say whether this was tried before. What it repeats is forgotten until it is lost again."""
        pairs = list(headers)
        found = False
        if self._lost:
            self._forget(now_s)
            found = self._lost.pop(request_key(tenant, pairs, raw), None) is not None
        return found or _retry_count(pairs) > 0

    def lost(self, tenant: str, headers: Headers, raw: bytes, now_s: float) -> None:
        """Remember a request that was refused, failed or was left."""
        self._forget(now_s)
        key = request_key(tenant, list(headers), raw)
        self._lost[key] = now_s + self._window_s
        self._lost.move_to_end(key)
        if len(self._lost) > self._max_remembered:
            self._lost.popitem(last=False)

    def _forget(self, now_s: float) -> None:
        while self._lost:
            key, until_s = next(iter(self._lost.items()))
            if until_s > now_s:
                return
            del self._lost[key]


def request_key(tenant: str, headers: Headers, raw: bytes) -> bytes:
    """Return a digest by which a tenant's request is known again: its idempotency key, or its body.

    Of a large body the head, the tail and the length count.
    """
    given = next((value for name, value in headers if name == IDEMPOTENCY_HEADER), None)
    digest = hashlib.blake2b(digest_size=16, key=tenant.encode()[:64])
    if given is not None:
        digest.update(b"key" + given)
    else:
        digest.update(b"body%d" % len(raw))
        digest.update(raw[:_HEAD_BYTES])
        digest.update(raw[_HEAD_BYTES:][-_TAIL_BYTES:])
    return digest.digest()


def _retry_count(headers: list[tuple[bytes, bytes]]) -> int:
    value = next((value for name, value in headers if name == RETRY_COUNT_HEADER), b"")
    return int(value) if value.isdigit() and len(value) <= 4 else 0
