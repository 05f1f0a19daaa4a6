"""Files with secrets: readable by their owner alone, written whole or not at all.

Prevents: a key file that was world-readable for a moment, and half a JSON document after a crash.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any, cast

from fleet.errors import InvalidInput


def write_secret(path: Path, text: str) -> None:
    """Write `text` to `path` with mode 0600; the folder is made with mode 0700."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, str]:
    """Return a JSON object of strings. Raises InvalidInput naming the file if it is not one."""
    try:
        found: object = json.loads(path.read_text())
    except (OSError, ValueError) as exc:
        raise InvalidInput(f"{path} cannot be read: {exc}", hint="Remove it; it is made again") from exc
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} is not a JSON object", hint="Remove it; it is made again")
    return {str(key): str(value) for key, value in cast("dict[Any, Any]", found).items()}


def secret_of(path: Path) -> str:
    """Return the token in `path`; a new random one is made if the file does not exist."""
    if not path.exists():
        write_secret(path, secrets.token_urlsafe(32) + "\n")
    return path.read_text().strip()
