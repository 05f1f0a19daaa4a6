"""Names for requests: 96 random bits each, from the kernel's generator, taken for many at once.

Prevents: a call into the kernel for each request, and an id that could be guessed from another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain

_BYTES = 12
_AT_ONCE = 256


def _lots() -> Iterator[list[str]]:
    while True:
        drawn = os.urandom(_BYTES * _AT_ONCE).hex()
        yield [f"req-{drawn[at : at + 2 * _BYTES]}" for at in range(0, len(drawn), 2 * _BYTES)]


_IDS = chain.from_iterable(_lots())


def new_request_id() -> str:
    """Return an id that no other request has: `req-` and 24 hex digits."""
    return next(_IDS)
