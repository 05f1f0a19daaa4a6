"""A month's spend as a file: plain CSV, whole or refused, with a manifest that can be checked.

RFC 4180, UTF-8, fixed-point decimals, rows in a fixed order. Text that a spreadsheet would run as a
formula gets a leading apostrophe. Prevents: an export that stops half-way, and a tenant's name that runs
code on finance's machine.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from fleet.errors import Conflict
from fleet.spend import MonthSpend, SpendLine

COLUMNS = (
    "month",
    "time_zone",
    "status",
    "line",
    "tenant",
    "tier",
    "model",
    "pool",
    "requests",
    "prompt_tokens",
    "output_tokens",
    "engine_seconds",
    "node_hours",
    "amount_usd",
    "method",
    "adjusts",
    "note",
)
#: Leading characters a spreadsheet takes for a formula, full-width forms included.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


@dataclass(frozen=True, slots=True)
class Export:
    """A finished file and what to check it by."""

    file_name: str
    body: bytes
    sha256: str
    rows: int
    total_usd: Decimal
    generated_at: datetime

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers of a download: name, checksum, and what the file must add up to."""
        return {
            "Content-Disposition": f'attachment; filename="{self.file_name}"',
            "ETag": f'"{self.sha256}"',
            "X-Rhodeck-Rows": str(self.rows),
            "X-Rhodeck-Total-USD": str(self.total_usd),
            "Cache-Control": "no-store",
        }

    def manifest(self) -> dict[str, str | int]:
        """Return what a receiver needs to verify the file."""
        return {
            "file": self.file_name,
            "sha256": self.sha256,
            "rows": self.rows,
            "total_usd": str(self.total_usd),
            "generated_at": self.generated_at.isoformat(),
        }


def spend_csv(spend: MonthSpend, now: datetime) -> Export:
    """Return the month as CSV. Raises Conflict when node time has no price: a partial file would lie."""
    if spend.unpriced_node_hours:
        raise Conflict(
            f"{spend.unpriced_node_hours:.2f} node-hours of {spend.month.name} have no price",
            hint="Add one with `rhodeck prices add`, effective from the start of the month",
        )
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    writer.writerows(_row(spend, line) for line in spend.lines)
    body = out.getvalue().encode()
    return Export(
        file_name=f"spend_{spend.month.name}_{status_of(spend)}.csv",
        body=body,
        sha256=hashlib.sha256(body).hexdigest(),
        rows=len(spend.lines),
        total_usd=spend.total_usd,
        generated_at=now,
    )


def closed_csv(spend: MonthSpend, body: bytes, now: datetime) -> Export:
    """Return a closed month's file: the bytes kept when it was closed."""
    return Export(
        file_name=f"spend_{spend.month.name}_closed.csv",
        body=body,
        sha256=hashlib.sha256(body).hexdigest(),
        rows=len(spend.lines),
        total_usd=spend.total_usd,
        generated_at=now,
    )


def status_of(spend: MonthSpend) -> str:
    """Return what the file says of the month: closed, not_recorded, estimated or complete."""
    if spend.state in ("closed", "not recorded"):
        return spend.state.replace(" ", "_")
    return "estimated" if spend.is_estimated else "complete"


def neutralised(text: str) -> str:
    """Return `text` so that no spreadsheet runs it: a leading apostrophe where it would."""
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA_STARTS) else text


def _row(spend: MonthSpend, line: SpendLine) -> Sequence[str | int]:
    return (
        spend.month.name,
        spend.month.zone,
        status_of(spend),
        line.kind,
        neutralised(line.tenant),
        line.tier,
        neutralised(line.model),
        neutralised(line.pool),
        line.requests,
        line.prompt_tokens,
        line.output_tokens,
        f"{line.engine_s:.3f}",
        f"{line.node_hours:.6f}",
        f"{line.amount_usd:.2f}",
        spend.method,
        line.adjusts,
        neutralised(line.note),
    )
