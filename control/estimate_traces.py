"""Traffic for estimates kept in the database, by its content: uploaded, or recorded at the gateways.

Rates are requests/s in 10 s bins, at most a month of them. Prevents: an estimate whose traffic changed or
went away under its link, and an upload of any size.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control import audit
from control.rate_profile_files import BUNDLED, bundled_profile
from control.roles import Actor, Permission, require
from control.tables import EstimateTraceRow
from fleet.errors import Conflict, InvalidInput, NotFound
from fleet.fluid import MONTH_BINS
from fleet.rate_profiles import RateProfile

PREFIX = "trace:"
MAX_TRACES = 200
MAX_NAME, MAX_SOURCE = 80, 200
_BYTES_A_BIN = 8
_NAME = re.compile(f"{PREFIX}[0-9a-f]{{64}}")


@dataclass(frozen=True, slots=True)
class TraceView:
    """A kept traffic, without its rates. `name` is what documents call it."""

    name: str
    title: str
    source: str
    hours: float
    created_at: datetime
    created_by: str


def keep_trace(session: Session, profile: RateProfile, *, actor: Actor, now: datetime) -> str:
    """Keep a traffic and return the name documents call it by; the same content keeps its first title.

    Only the first 720 hours are kept: more are never used. Raises Forbidden, InvalidInput, Conflict when
    there are too many.
    """
    require(actor, Permission.RUN_ESTIMATES)
    rates = np.ascontiguousarray(profile.rates_rps[:MONTH_BINS], dtype="<f8")
    if rates.size == 0 or not np.all(np.isfinite(rates)) or rates.min() < 0 or rates.sum() <= 0:
        raise InvalidInput("the traffic has no requests, or rates that cannot be", field="/traffic")
    body = rates.tobytes()
    sha256 = hashlib.sha256(body).hexdigest()
    t = EstimateTraceRow
    if session.get(t, sha256) is not None:
        return PREFIX + sha256
    if session.scalars(select(func.count()).select_from(t)).one() >= MAX_TRACES:
        raise Conflict(
            f"there are {MAX_TRACES} kept traffics already",
            hint="Remove some with `rhodeck estimate traces remove`",
        )
    session.execute(
        insert(t)
        .values(
            sha256=sha256,
            name=_words(profile.name, MAX_NAME),
            source=_words(profile.source, MAX_SOURCE),
            bins=rates.size,
            rates=zlib.compress(body, 6),
            tokens_in=profile.tokens_in,
            tokens_out=profile.tokens_out,
            requests=profile.requests,
            filled_share=profile.filled_share,
            created_at=now,
            created_by=actor.name,
        )
        .on_conflict_do_nothing()
    )
    detail = {"sha256": sha256, "bins": rates.size, "source": _words(profile.source, MAX_SOURCE)}
    audit.append(session, actor, "estimate.trace", f"traffic {sha256[:12]}", "", detail, now)
    return PREFIX + sha256


def _words(text: str, most: int) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:most]


def traces(session: Session) -> list[TraceView]:
    """Return the kept traffics, newest first."""
    t = EstimateTraceRow
    rows = session.execute(
        select(t.sha256, t.name, t.source, t.bins, t.created_at, t.created_by).order_by(
            t.created_at.desc(), t.sha256
        )
    )
    return [
        TraceView(PREFIX + sha256, name, source, bins * 10 / 3600, at, by)
        for sha256, name, source, bins, at, by in rows
    ]


def stored_traffic(session: Session, name: str) -> RateProfile:
    """Return a bundled traffic or a kept one. Never a file. Raises InvalidInput for another name."""
    if name in BUNDLED:
        return bundled_profile(name)
    row = session.get(EstimateTraceRow, name.removeprefix(PREFIX)) if _NAME.fullmatch(name) else None
    if row is None:
        raise InvalidInput(
            f"there is no traffic {name[:80]!r}",
            field="/traffic",
            hint=f"Choose one of {', '.join(BUNDLED)}, or of `rhodeck estimate traces list`",
        )
    raw = zlib.decompressobj().decompress(row.rates, MONTH_BINS * _BYTES_A_BIN + 1)
    if hashlib.sha256(raw).hexdigest() != row.sha256:
        raise InvalidInput(f"the kept traffic {name[:20]} is damaged", field="/traffic")
    return RateProfile(
        name=row.name,
        rates_rps=np.frombuffer(raw, dtype="<f8").astype(np.float64),
        source=f"{row.source}; kept {row.created_at:%Y-%m-%d}",
        tokens_in=row.tokens_in,
        tokens_out=row.tokens_out,
        requests=row.requests,
        filled_share=row.filled_share,
    )


def remove_trace(session: Session, name: str, *, actor: Actor, now: datetime) -> None:
    """Remove a kept traffic; links that name it say so from then on. Raises Forbidden, NotFound."""
    require(actor, Permission.RUN_ESTIMATES)
    sha256 = name.removeprefix(PREFIX)
    t = EstimateTraceRow
    known = delete(t).where(t.sha256 == sha256).returning(t.sha256)
    if not _NAME.fullmatch(PREFIX + sha256) or session.execute(known).one_or_none() is None:
        raise NotFound(f"there is no kept traffic {name[:80]!r}", hint="`rhodeck estimate traces list`")
    audit.append(session, actor, "estimate.trace.remove", f"traffic {sha256[:12]}", "", {}, now)
