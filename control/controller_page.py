"""What a controller says of the rounds that wait for Postgres, read from its own metrics page.

Bytes and counts. Prevents: an outage of the database in which nobody can tell whether rounds are kept or
lost, because the only place that knew was the database.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

DEADLINE_S = 3.0
_PREFIX = "rhodeck_control_"


@dataclass(frozen=True, slots=True)
class Waiting:
    """The rounds a controller holds back. None: its page does not say."""

    address: str
    rounds: int | None
    bytes: int | None
    dropped: int | None  # since it started, for any reason

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return asdict(self)

    def __str__(self) -> str:
        if self.rounds is None:
            return f"{self.address} is no controller's page"
        size = "" if self.bytes is None else f" ({self.bytes / 1_048_576:.1f} MiB)"
        lost = "none lost" if not self.dropped else f"{self.dropped} lost since it started"
        held = f"{self.rounds} round{'' if self.rounds == 1 else 's'}"
        return f"{self.address} holds {held}{size} for Postgres, {lost}"


def waiting_rounds(host: str, port: int) -> Waiting | None:
    """Return what the controller listening on `host` and `port` holds back; None where none answers."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 # read, not listened on
    address = f"{reached}:{port}"
    if not port:
        return None
    try:
        with httpx.Client(trust_env=False, timeout=DEADLINE_S) as http:
            page = http.get(f"http://{address}/metrics")
            page.raise_for_status()
    except httpx.HTTPError:
        return None
    return read_waiting(page.text, address)


def read_waiting(page: str, address: str) -> Waiting:
    """Return what a metrics page says of waiting rounds."""
    totals: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    except ValueError:  # some other server's page
        totals = {}

    def count(name: str) -> int | None:
        found = totals.get(_PREFIX + name)
        return None if found is None else int(found)

    rounds = count("rounds_buffered")
    dropped = count("rounds_dropped_total")
    return Waiting(
        address, rounds, count("buffer_bytes"), 0 if rounds is not None and dropped is None else dropped
    )
