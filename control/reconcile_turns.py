"""Whom a pass of reconciling asks: who is not settled at once, the settled in turns. Pure.

A settled gateway runs what it should and said so; asking it again finds restarts and pushes by hand, which
may wait for its turn. Prevents: a controller that spends its processor on hearing "as before" from hundreds
of gateways, and a change that waits for a turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from control.reconcile_store import Place

#: Of many settled gateways one in so many is asked a pass, those asked longest ago first. Passes come once
#: a second, so each is asked every three seconds.
TURNS = 3
#: At least so many are asked a pass: a fleet of this size is asked whole.
AT_LEAST = 16
_NEVER = datetime.min.replace(tzinfo=UTC)


def due(places: Sequence[Place], epoch: int, now: datetime) -> list[Place]:
    """Return the places to ask at `now` under `epoch`. One that waits after a failure is not among them.

    While any content is on its way, or no longer held where it was confirmed, everybody is asked: shares
    move between gateways, and what each holds is to be known, not remembered.
    """
    reachable = [place for place in places if place.known.retry_at is None or place.known.retry_at <= now]
    settled = [place for place in reachable if is_settled(place, epoch)]
    if len(settled) < sum(place.target is not None for place in reachable):
        return reachable
    asked = max(AT_LEAST, math.ceil(len(settled) / TURNS))
    turn = sorted(settled, key=lambda place: (place.known.tried_at or _NEVER, place.name))[:asked]
    names = {place.name for place in turn} | {place.name for place in reachable if place.target is None}
    return [place for place in reachable if place.name in names]


def is_settled(place: Place, epoch: int) -> bool:
    """Say whether a gateway confirmed all that is wanted of it, under the epoch that leads now."""
    known = place.known
    return (
        place.target is not None
        and known.condition == "converged"
        and known.epoch == epoch
        and (known.generation, known.digest) == (place.generation, place.digest)
        and place.given_digest == place.digest
        and known.status is not None
        and not known.status.get("from_disk", True)
    )
