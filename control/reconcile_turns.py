"""Whom a pass of reconciling asks: who is not settled at once, the settled in turns. Pure.

A settled gateway runs what it should and said so; asking it again finds restarts and pushes by hand, which
may wait for its turn. Times are the wall clock's, which may be set back. Prevents: a controller that spends
its processor on hearing "as before" from hundreds of gateways, a change that waits for a turn, and one that
is asked no more until a clock that was wrong comes round again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from control.conditions import Known
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
    reachable = [place for place in places if _may_be_asked(place.known, now)]
    settled = [place for place in reachable if is_settled(place, epoch)]
    if len(settled) < sum(place.target is not None for place in reachable):
        return reachable
    asked = max(AT_LEAST, math.ceil(len(settled) / TURNS))
    turn = sorted(settled, key=lambda place: (_tried_at(place.known, now), place.name))[:asked]
    names = {place.name for place in turn} | {place.name for place in reachable if place.target is None}
    return [place for place in reachable if place.name in names]


def _may_be_asked(known: Known, now: datetime) -> bool:
    """Say whether its pause after a failure is over; one that began in the future counts as none."""
    return known.retry_at is None or known.retry_at <= now or _tried_at(known, now) is _NEVER


def _tried_at(known: Known, now: datetime) -> datetime:
    return _NEVER if known.tried_at is None or known.tried_at > now else known.tried_at


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
