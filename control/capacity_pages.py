"""A captured series of metrics pages for `rhodeck capacity fit`: a folder with `scrapes.csv` and the pages.

`scrapes.csv` lists one scrape a row: `t_start` (seconds), `file`, and where known `status`; the pages lie
beside it or in `scrapes.tar.xz`. Pages at least 10 s apart are paired, so that a window holds enough decode
steps. Prevents: a path in a list or an archive reaching outside its folder, and an archive that unpacks to
more than it may.
"""

from __future__ import annotations

import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from control.capacity_files import EngineScrapes, read_rows
from fleet.capacity_learner import point_of
from fleet.dialects import read_page
from fleet.errors import InvalidInput, NotMeasured
from fleet.exposition import DEFAULT_CAPS
from fleet.readings import PageReading, PageState
from fleet.saturation import EngineLimits
from fleet.windows import window

MIN_SPACING_S = 10.0
LISTING, ARCHIVE = "scrapes.csv", "scrapes.tar.xz"
MAX_ARCHIVE_BYTES = 500_000_000

PageBytes = Callable[[str], bytes | None]


def read_series(folder: Path) -> list[EngineScrapes]:
    """Return the engines of a captured series. Raises InvalidInput when it is none, or holds no windows."""
    listing = folder / LISTING
    if not listing.is_file():
        raise InvalidInput(
            f"{folder} has no {LISTING}", field="FILE", hint="Give a CSV file or a folder of scrapes"
        )
    pages = _archived(folder / ARCHIVE) if (folder / ARCHIVE).is_file() else _loose(folder)
    engines: dict[tuple[str, str], EngineScrapes] = {}
    before: tuple[float, PageReading] | None = None
    for row in read_rows(listing):
        at_s, page = _listed(row, pages, listing)
        if page is None or (before is not None and at_s - before[0] < MIN_SPACING_S):
            continue
        if before is not None:
            _append(engines, before, (at_s, page))
        before = at_s, page
    if not engines:
        raise InvalidInput(f"{folder}: no two readable pages 10 s apart", field="FILE")
    return list(engines.values())


def _listed(row: dict[str, str], pages: PageBytes, listing: Path) -> tuple[float, PageReading | None]:
    try:
        at_s, name = float(row["t_start"]), row["file"]
    except (KeyError, ValueError) as exc:
        raise InvalidInput(f"{listing}: t_start and file are needed in each row", field="FILE") from exc
    if not name or row.get("status", "200") != "200":
        return at_s, None
    if PurePosixPath(name).name != name or name in (".", ".."):
        raise InvalidInput(f"{listing}: {name[:80]!r} is not a plain file name", field="FILE")
    body = pages(name)
    if body is None:
        return at_s, None
    page = read_page(body, source=name)
    return at_s, page if page.state is PageState.OK else None


def _loose(folder: Path) -> PageBytes:
    def read(name: str) -> bytes | None:
        path = folder / name
        if not path.is_file() or path.stat().st_size > DEFAULT_CAPS.body_bytes:
            return None
        return path.read_bytes()

    return read


def _archived(archive: Path) -> PageBytes:
    """Return the archive's pages; only plain files of bounded size are taken, and nothing is unpacked."""
    held: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(archive, "r:xz") as opened:
            for member in opened:
                total += member.size
                if total > MAX_ARCHIVE_BYTES:
                    raise InvalidInput(f"{archive} unpacks to over {MAX_ARCHIVE_BYTES} bytes", field="FILE")
                stream = opened.extractfile(member) if member.isfile() else None
                if stream is not None and member.size <= DEFAULT_CAPS.body_bytes:
                    held[PurePosixPath(member.name).name] = stream.read()
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError) as exc:
        raise InvalidInput(f"{archive} is not a readable archive: {exc}", field="FILE") from exc
    return held.get


def _append(
    engines: dict[tuple[str, str], EngineScrapes],
    before: tuple[float, PageReading],
    after: tuple[float, PageReading],
) -> None:
    try:
        windows = window(before[1], after[1], after[0] - before[0])
    except NotMeasured:
        return
    for seen in windows:
        model = seen.model or ""
        name = (("engine", seen.engine), ("model", model))
        engine = engines.setdefault((seen.engine, model), EngineScrapes(name))
        engine.restarts += seen.restarted
        if engine.limits.kv_capacity_tokens is None and seen.kv_capacity_tokens:
            engine.limits = EngineLimits(kv_capacity_tokens=seen.kv_capacity_tokens)
        point = point_of(after[0], seen)
        if point is not None:
            engine.points.append(point)
