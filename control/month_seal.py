"""Checksum and signature of a closed month. The key is a file, never in the database.

SHA-256 over the canonical file; HMAC-SHA256 over month, zone, rows, total and that checksum (version 1),
what the lines were made of and later adjustments are made from (from version 2 on), and everything else
that is kept of the month: its number and ends, how far use was taken, who closed it, and the signature of
the month closed before (version 3). Months sealed before verify as what they are. Whoever can write to the
database but not read the key file cannot make a month that verifies. Prevents: a closed month that was
rewritten in the database, triggers and all, unseen.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any

from control.tables import MonthCloseRow
from fleet.errors import Unavailable
from fleet.policy import canonical_json, digest_of

KEY_BYTES = 32
VERSION = 3  # of the seals made now
_FIRST = "zone, rows, total, file and lines"
ABOUT = {
    1: f"{_FIRST}; not what they were made of, number, ends, who closed it",
    2: f"{_FIRST}, what they were made of; not number, ends, who closed it",
    3: "all that is kept of the month",
}


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a signature is about."""

    month: str
    zone: str
    rows: int
    total_usd: Decimal
    sha256: str
    basis: Mapping[str, Any]
    version: int = VERSION
    rest: Mapping[str, Any] = field(default_factory=dict[str, Any])  # from version 3 on

    def signed_by(self, key: bytes) -> str:
        """Return the HMAC-SHA256 over all fields of the version, hex. Source: RFC 2104."""
        said: dict[str, Any] = {
            "month": self.month,
            "zone": self.zone,
            "rows": self.rows,
            "total_usd": f"{self.total_usd:.2f}",
            "sha256": self.sha256,
        }
        if self.version >= 2:
            said |= {
                "version": self.version,
                "basis_sha256": digest_of(self.basis),
            }
        if self.version >= 3:
            said["rest"] = self.rest
        return sign(key, said)

    def holds(self, key: bytes, signature: str) -> bool:
        """Say whether `signature` was made with `key`."""
        return hmac.compare_digest(self.signed_by(key), signature)


def sign(key: bytes, said: Mapping[str, Any]) -> str:
    """Return the HMAC-SHA256 over a document in canonical JSON, hex. Source: RFC 2104."""
    return hmac.new(key, canonical_json(said), hashlib.sha256).hexdigest()


def sealed(row: MonthCloseRow, before: str, version: int | None = None) -> Sealed:
    """Return what the signature of `row` is about; `before` is the signature of the month closed before.

    `version`: another than the row's own.
    """
    rest = {
        "number": row.number,
        "before": before,
        "starts_at": row.starts_at.astimezone(UTC).isoformat(),
        "ends_at": row.ends_at.astimezone(UTC).isoformat(),
        "method": row.method,
        "idle_usd": f"{row.idle_usd:.2f}",
        "node_hours": f"{row.node_hours:.6f}",
        "watermark_sha256": digest_of(row.watermark),
        "checklist_sha256": digest_of(row.checklist),
        "closed_at": row.closed_at.astimezone(UTC).isoformat(),
        "closed_by": row.closed_by,
        "note": row.note,
        "key_id": row.key_id,
    }
    return Sealed(
        row.month,
        row.zone,
        row.rows,
        row.total_usd,
        row.sha256,
        row.basis,
        row.seal_version if version is None else version,
        rest,
    )


def key_id(key: bytes) -> str:
    """Return the public name of a key: 16 characters that do not give it away."""
    return hashlib.sha256(b"rhodeck month key\n" + key).hexdigest()[:16]


def make_key(path: Path) -> bytes:
    """Return the key in `path`, made (readable by its owner alone) if there is none. Raises Unavailable."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        if not path.exists():
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(KEY_BYTES) + "\n")
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # another process was first: its key counts
                os.link(beside, path)
            beside.unlink()
    except OSError as exc:
        raise Unavailable(
            f"the key file {path} cannot be made: {exc.strerror}",
            hint="Set RHODECK_FINANCE_KEY_FILE to a file this account may write",
        ) from exc
    return read_key(path)


def read_key(path: Path) -> bytes:
    """Return the key in `path`. Raises Unavailable naming the file, never its content."""
    hint = "Restore it from its backup: months are signed with it"
    try:
        found = bytes.fromhex(path.read_text("ascii").strip())
    except OSError as exc:
        raise Unavailable(f"the key file {path} cannot be read: {exc.strerror}", hint=hint) from exc
    except ValueError as exc:
        raise Unavailable(f"the key file {path} holds no key in hex", hint=hint) from exc
    if len(found) != KEY_BYTES:
        raise Unavailable(f"the key file {path} holds {len(found)} bytes, not {KEY_BYTES}", hint=hint)
    return found
