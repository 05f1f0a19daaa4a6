"""Where the traffic of an estimate comes from: a bundled profile, a file, or the fleet's own record.

Bundled profiles are read from the package, files from where the scenario stands or the current folder.
Files are somebody's: bounded and checked. Prevents: an estimate that cannot say whose traffic it used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from control.capacity_files import read_rows
from control.rate_profile_uploads import MAX_ROWS, MAX_UPLOAD_MB, uploaded_profile
from control.tables import GatewayRow, GatewaySampleRow
from fleet.errors import InvalidInput
from fleet.fluid import BIN_S, MONTH_BINS
from fleet.percentages import percent
from fleet.rate_profiles import RateProfile, read_profile, recorded_profile

FOLDER = Path(__file__).with_name("data") / "profiles"
#: Licences are in the folder's README.
BUNDLED = {
    "A": "four 36-minute bursts to 30 requests/s a day, else at most 15 (made)",
    "B": "one 90 s burst to 30 requests/s each hour (made)",
    "C": "ServeGen m-large: 14 days of production rates in 10-minute windows, scaled to mean 12",
    "D": "ServeGen deepseek-r1: a day of production rates in 10-minute windows, scaled to mean 12",
    "azure-conv": "Azure 2023, conversation: 58 minutes of requests, 5.5 a second (CC-BY-4.0)",
    "azure-code": "Azure 2023, code: 57 minutes of requests in heavy bursts, 2.6 a second (CC-BY-4.0)",
    "mooncake": "Mooncake, synthetic: 17 minutes of long requests, 3.9 a second (Apache-2.0)",
}
_SCALED = ("C", "D")
RECORDED = "recorded"
#: The recorded shapes are scaled to this mean, so that the four profiles can be compared.
BUNDLED_MEAN_RPS = 12.0


def bundled_profile(name: str) -> RateProfile:
    """Return one of the profiles that come with Rhodeck."""
    if name not in BUNDLED:
        raise InvalidInput(
            f"there is no bundled profile {name[:40]!r}", hint=f"Choose one of {', '.join(BUNDLED)}"
        )
    profile = read_profile(name, BUNDLED[name], read_rows(FOLDER / f"{name}.csv.gz"))
    return profile.scaled_to(BUNDLED_MEAN_RPS) if name in _SCALED else profile


def file_profile(path: Path) -> RateProfile:
    """Return the profile in a CSV file, compressed or not, or in a Parquet file."""
    if _is_parquet(path):
        return uploaded_profile(path.name, path.read_bytes(), f"file {path.name}")
    return read_profile(path.name, f"file {path.name}", read_rows(path, MAX_ROWS))


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1" and path.stat().st_size <= MAX_UPLOAD_MB * 1_000_000
    except OSError:
        return False  # whoever reads it as CSV says why it cannot be


def recorded_rates(session: Session, since: datetime, until: datetime) -> RateProfile:
    """Return the arrivals at the gateways in [since, until), refused ones included.

    Every round counts for the bins its covered time fills. A bin in which a gateway was not heard that was
    heard before is unknown, not less: until its last round, or the end of the range if it is still active.
    Raises InvalidInput when too little is known.
    """
    g = GatewaySampleRow
    rows = session.execute(
        select(g.at, g.gateway, g.covered_s, g.offered).where(g.at >= since, g.at < until).order_by(g.at)
    )
    bins = min(int((until - since).total_seconds() // BIN_S), MONTH_BINS)
    requests: dict[int, float] = defaultdict(float)
    seen: dict[str, set[int]] = defaultdict(set)
    for at, gateway, covered_s, offered in rows:
        if covered_s is None or offered is None or covered_s <= 0:
            continue
        first = (at - timedelta(seconds=covered_s) - since).total_seconds() / BIN_S
        last = (at - since).total_seconds() / BIN_S
        for place in range(max(0, int(first)), min(bins, int(last) + 1)):
            overlap = min(last, place + 1) - max(first, place)
            if overlap > 0:
                requests[place] += offered * overlap * BIN_S / covered_s
                seen[gateway].add(place)
    active = set(session.scalars(select(GatewayRow.name).where(GatewayRow.state == "active")))
    unheard = _partly_heard({name: places for name, places in seen.items() if places}, active, bins)
    known = set[int]().union(*seen.values()) - unheard
    counts = [(BIN_S, requests[place] if place in known else None) for place in range(bins)]
    if not counts:
        raise InvalidInput("the range is shorter than 10 s", field="/profile", hint="Give a longer range")
    name = f"gateways, {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC"
    if unheard:
        name += f"; {percent(len(unheard) / bins, 1)} of it unknown: not every gateway was heard"
    silent = sorted(active - {gateway for gateway, places in seen.items() if places})
    if silent:
        name += f"; without {len(silent)} active gateways that were never heard in it"
    return recorded_profile(name, counts)


def _partly_heard(seen: Mapping[str, Set[int]], active: Set[str], bins: int) -> set[int]:
    """Return the bins in which a gateway is missing that was there before and comes back or should."""
    missing: set[int] = set()
    for gateway, places in seen.items():
        # The last bin may end after the newest round: that is not known of anybody yet.
        end = max(max(own) for own in seen.values()) + 1 if gateway in active else max(places)
        missing |= set(range(min(places), min(end, bins))) - places
    return missing
