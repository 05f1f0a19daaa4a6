"""Which assignment a gateway takes: the newer one, and the same one again. Pure.

Prevents: a stalled controller's late push that wins over a newer one, and two contents under one number.
"""

from __future__ import annotations

from fleet.errors import StaleAssignment
from fleet.messages import Assignment


def is_news(assignment: Assignment, digest: str, held: Assignment | None, held_digest: str | None) -> bool:
    """Say whether a push changes what is in force; False for the same again, which confirms it.

    `held` is in force now with `held_digest`; None before the first. Raises StaleAssignment when the push
    must not be taken: it is older, or has the number of what is held and another content.
    """
    if held is None or assignment.is_newer_than(held.epoch, held.generation):
        return True
    pushed = f"epoch {assignment.epoch}, generation {assignment.generation}"
    if (assignment.epoch, assignment.generation) != (held.epoch, held.generation):
        raise StaleAssignment(
            f"{pushed} is older than what is in force: epoch {held.epoch}, generation {held.generation}",
            hint="A newer controller has taken over; do not push again from this one",
        )
    if digest != held_digest:
        raise StaleAssignment(
            f"{pushed} is in force with another content: {str(held_digest)[:12]}, pushed {digest[:12]}",
            hint="Two controllers share an epoch, or one changed content without a new generation",
        )
    return False
