"""The processes of one port: how long each has been silent, and what each knows of all of them.

Silence is counted in the supervisor's own ticks, seconds; one that comes late (a busy or suspended machine)
counts as one tick and no more. Prevents: a process whose event loop hangs keeping its part of the
connections, and one killed because its supervisor did not look.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass

from admission.metrics import Family

BEAT_EVERY_S = 1.0  # a process gives a sign of life
TICK_S = 0.25  # the supervisor looks
SILENT_RATIO = 1 / 3  # of the time until it is killed: then a neighbour accepts for it

_PREFIX = "rhodeck_gateway_process"


class Silence:
    """How long one process has said nothing, and what follows from it."""

    __slots__ = ("limit_s", "seconds")

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: a process that is silent for so long hangs."""
        self.limit_s, self.seconds = limit_s, 0.0

    def heard(self) -> None:
        """Note a sign of life."""
        self.seconds = 0.0

    def passed(self, seconds: float) -> None:
        """Count the time since the last look, at most two ticks of it."""
        self.seconds += min(max(seconds, 0.0), 2 * TICK_S)

    @property
    def is_long(self) -> bool:
        """Say whether somebody else should accept for it meanwhile."""
        return self.seconds >= SILENT_RATIO * self.limit_s

    @property
    def is_too_long(self) -> bool:
        """Say whether it hangs."""
        return self.seconds >= self.limit_s


@dataclass(frozen=True, slots=True)
class Siblings:
    """All processes of one port, as their supervisor said last. Counts since the supervisor began."""

    serving: int
    processes: int
    died: int  # ended without being asked to
    hung: int  # killed after their silence

    def words(self) -> str:
        """Return the line that tells a process."""
        return "siblings " + " ".join(map(str, astuple(self)))

    @classmethod
    def of(cls, numbers: list[bytes]) -> Siblings | None:
        """Return what the numbers of a line say; None if they are not four counts."""
        if len(numbers) != 4 or not all(number.isdigit() for number in numbers):
            return None
        return cls(*map(int, numbers))


def sibling_families(said: Siblings | None) -> Iterator[Family]:
    """Yield the families of one of several processes; none of one on its own."""
    if said is None:
        return
    states = {("serving",): said.serving, ("away",): said.processes - said.serving}
    yield Family(_PREFIX + "es", "Processes of this port by state.", ("state",), states)
    ends = {("died",): said.died, ("hung",): said.hung}
    help_text = "Ends of processes of this port that nobody asked for."
    yield Family(_PREFIX + "_ends_total", help_text, ("because",), ends, "counter")
