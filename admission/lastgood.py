"""The last good assignment on disk: what a gateway admits by when nobody else is alive.

Owns one file, `assignment.json`: a line with the sha256 of the rest, then the assignment. Written before
the assignment takes effect, so an acknowledged push is never lost. Prevents: a restart during an outage
of the control plane that serves nothing, or worse, serves without limits.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from admission.durable import write_whole
from fleet.errors import FleetError, InvalidPolicy
from fleet.messages import MAX_ASSIGNMENT_BYTES, Assignment, parse_assignment

FILE_NAME = "assignment.json"
_DIGEST_LINE_BYTES = 65  # 64 hex digits and a newline


class DamagedLastGood(FleetError):
    """The file on disk is not what was written. The gateway stays not ready until it is pushed to."""


def save(folder: Path, assignment: Assignment) -> None:
    """Put the assignment on disk so that it survives a power cut. Raises OSError; the old file stays."""
    content = assignment.model_dump_json(by_alias=True).encode()
    digest = hashlib.sha256(content).hexdigest().encode()
    write_whole(folder / FILE_NAME, digest + b"\n" + content)


def load(folder: Path, gateway: str) -> Assignment | None:
    """Return the assignment on disk, or None when there is none yet.

    Raises DamagedLastGood if the file is cut, changed, not an assignment, or another gateway's.
    """
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            content = file.read(MAX_ASSIGNMENT_BYTES * 2)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _damaged(f"{FILE_NAME} cannot be read: {exc.strerror}") from exc
    line, body = content[:_DIGEST_LINE_BYTES], content[_DIGEST_LINE_BYTES:]
    expected = hashlib.sha256(body).hexdigest().encode() + b"\n"
    if not hmac.compare_digest(line, expected):
        raise _damaged(f"{FILE_NAME} holds {len(body)} bytes that do not match their sha256")
    try:
        assignment = parse_assignment(body)
    except InvalidPolicy as exc:
        raise _damaged(f"{FILE_NAME}: {exc.message}") from exc
    if assignment.gateway != gateway:
        raise _damaged(f"{FILE_NAME} is of gateway {assignment.gateway!r}, this one is {gateway!r}")
    return assignment


def _damaged(message: str) -> DamagedLastGood:
    return DamagedLastGood(
        message,
        hint="The gateway is not ready until its controller pushes an assignment; nothing to repair",
    )
