"""Files over HTTP: a month of spend in every format and layout, with the headers to check it by.

Prevents: a download without a checksum, and a 200 with part of a file: files are whole before the first
byte is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import orjson
from sqlalchemy.orm import Session
from starlette.responses import Response

from control.export_month import month_in
from control.exports import FORMATS, LAYOUTS, Export, format_named, layout_named
from fleet.focus import Issuer

SPEND_PATH = "/api/v1/spend/{month}.{format}"
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
