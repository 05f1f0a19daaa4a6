"""Names for requests: 96 random bits each, from the kernel's generator, taken for many at once.

Prevents: a call into the kernel for each request, and an id that could be guessed from another.
"""

from __future__ import annotations

import os
from typing import Final

_BYTES: Final = 12
_AT_ONCE: Final = 256
_ready: Final[list[str]] = []


def new_request_id() -> str:
    """Return an id that no other request has: `req-` and 24 hex digits."""
    if not _ready:
        drawn = os.urandom(_BYTES * _AT_ONCE).hex()
        _ready.extend(f"req-{drawn[at : at + 2 * _BYTES]}" for at in range(0, len(drawn), 2 * _BYTES))
    return _ready.pop()
