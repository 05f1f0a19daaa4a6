"""Files over HTTP: a month of spend in every format and layout, its usage records, and their pages.

A file is whole before its first byte is sent: usage records wait in an unnamed temporary file. Prevents: a
download without a checksum, a 200 with part of a file, and a disk full of exports nobody fetched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from datetime import datetime
from threading import BoundedSemaphore
from typing import IO, Any
from zoneinfo import ZoneInfo

import orjson
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.responses import Response, StreamingResponse

from control.api_calls import Asked, Call
from control.export_month import month_in
from control.exports import FORMATS, LAYOUTS, Export, format_named, layout_named
from control.tokens import Scope
from control.usage_pages import usage_page
from fleet.errors import Unavailable
from fleet.focus import Issuer

SPEND_PATH = "/api/v1/spend/{month}.{format}"
USAGE_PATH = "/api/v1/usage/{month}.{format}"
USAGE_FORMAT: dict[str, Any] = {
    "name": "format",
    "in": "path",
    "required": True,
    "schema": {"enum": ["csv", "parquet"]},
}
#: Files of usage records made at once by one process: each reads and sorts a whole month.
AT_ONCE = 2
_CHUNK_BYTES = 1024 * 1024
_room = BoundedSemaphore(AT_ONCE)
#: The query parameters of a file, as OpenAPI has them.
SPEND_PARAMETERS: list[dict[str, Any]] = [
    {"name": "format", "in": "path", "required": True, "schema": {"enum": list(FORMATS)}},
    {
        "name": "layout",
        "in": "query",
        "schema": {"enum": list(LAYOUTS), "default": "plain"},
        "description": "Plain lines, or the columns of FOCUS (the newest version, or 1.2)",
    },
    {
        "name": "manifest",
        "in": "query",
        "schema": {"type": "boolean", "default": False},
        "description": "Answer the file's manifest instead of the file",
    },
]


def spend_file(
    session: Session,
    path: Mapping[str, str],
    query: Mapping[str, str],
    *,
    zone: ZoneInfo,
    now: datetime,
    issuer: Issuer,
) -> tuple[Export, Response]:
    """Return a month's file and the answer that carries it, or its manifest. Raises as `month_in` does."""
    fmt = format_named(path["format"])
    layout = layout_named(query.get("layout", "plain"))
    made = month_in(session, path["month"], fmt, layout, zone=zone, now=now, issuer=issuer)
    if query.get("manifest", "") in ("1", "true"):
        return made, Response(orjson.dumps(made.manifest()), media_type="application/json")
    return made, Response(made.body, media_type=made.media_type, headers=made.headers())


def usage_file(
    engine: Engine, path: Mapping[str, str], *, zone: ZoneInfo, now: datetime
) -> tuple[dict[str, str | int], Response]:
    """Return the manifest of a month's usage records and the answer that carries them.

    Raises as `write_usage` does, and Unavailable while two are being made or the disk is full.
    """
    from control.export_usage import usage_format, write_usage  # Arrow is loaded by whoever asks for a file

    fmt = usage_format(path["format"])
    if not _room.acquire(blocking=False):
        raise Unavailable(f"{AT_ONCE} exports are being made", hint="Try again in a minute")
    try:
        out = tempfile.TemporaryFile()  # noqa: SIM115 # closed by whoever sends it
        try:
            made = write_usage(engine, path["month"], fmt, out, zone=zone, now=now)
        except OSError as exc:
            out.close()
            raise Unavailable(
                f"the file could not be kept until it is sent: {exc.strerror}",
                hint="Set TMPDIR of the process to a folder with room",
            ) from exc
        except BaseException:
            out.close()
            raise
    finally:
        _room.release()
    out.seek(0)
    return made.manifest(), StreamingResponse(
        _sent(out), media_type=made.media_type, headers=made.headers()
    )


def _sent(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _usage_page(asked: Asked) -> dict[str, Any]:
    return usage_page(asked.session, asked.path["month"], asked.query, zone=asked.zone, now=asked.now)


CALLS: tuple[Call, ...] = (
    Call(
        "GET",
        "/api/v1/usage/{month}",
        "A month's usage records page by page, as of the first page's moment",
        _usage_page,
        reads=Scope.SPEND_READ,
        query={
            "limit": "Rows of a page, 1 to 5000 (default 1000)",
            "after": "`next` of the page before; without it, the first page",
        },
    ),
)
