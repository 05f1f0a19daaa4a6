"""Structured logs: one JSON object a line, secrets redacted.

A log line is a constant message; its data are fields (`extra={...}`). Control characters from names are
escaped by JSON. Prevents: a key or password in a log file, and a tenant name forging a log line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_SECRET_FIELD = re.compile(r"(password|secret|token|api_?key|authorization|cookie)$", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"(?P<url>://[^\s:/@]*:)[^\s/]+(?=@)"  # password in a URL; sought by the scheme, time squares
    r"|(?P<pair>\b(?:ssl)?password\s*=\s*)(?:'[^']*'|[^\s&'\"]+)"  # in its query, or in libpq's words
    r"|(?P<bearer>bearer\s+)\S+"
    r"|(?P<key>\brk-[a-z]+-)[A-Za-z0-9_-]{8,}",  # our own keys and tokens
    re.IGNORECASE,
)
MAX_FIELD_CHARACTERS = 2_000


def redact(text: str) -> str:
    """Return `text` with passwords in URLs, bearer tokens and our keys replaced by ***."""
    return _SECRET_TEXT.sub(lambda m: next(g for g in m.groups() if g is not None) + "***", text)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON line with process, level, time and fields."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": redact(record.getMessage())[:MAX_FIELD_CHARACTERS],
        }
        for name, value in record.__dict__.items():
            if name not in _PLAIN:
                line[name] = "***" if _SECRET_FIELD.search(name) else _plain(value)
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info))[-8_000:]
        return json.dumps(line, default=str)


def _plain(value: object) -> object:
    if isinstance(value, (int, float, bool)) or value is None:
        return value
    return redact(str(value))[:MAX_FIELD_CHARACTERS]


def configure(process: str, *, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send all logging of this process to `stream` (standard error) as JSON lines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for noisy in ("apscheduler", "httpx", "httpcore", "alembic.runtime.migration"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
