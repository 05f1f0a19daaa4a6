"""Amounts and days as invoices write them: 1,234.56 and 1.234,56, 11/01/2026 and 01.11.2026.

How a file writes them is decided from all its values, never from one; where they leave it open, it has to
be said. Amounts are `Decimal`, days calendar days of the invoice's zone. Prevents: 1.234 read as a
thousand in one row and as one in the next, and the third of April taken for the fourth of March.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation
from typing import Literal
from zoneinfo import ZoneInfo

from fleet.errors import InvalidInput
from fleet.instants import FIRST_YEAR, LAST_YEAR

DecimalMark = Literal[".", ","]
DateOrder = Literal["ymd", "mdy", "dmy"]
MAX_AMOUNT = Decimal(10) ** 12
_MAX_CHARACTERS = 60
_PLACES = Decimal("1e-10")
#: What may stand before and behind a number: a currency's code or sign, and the unit hour. Never a word
#: that multiplies it, such as k, M or Mio.
_SIGN = "[$\u20ac\u00a3\u00a5\u20b9]"
_CODE = "(?!MIO|MRD|TSD|MLN|BLN)[A-Z]{3}"
_BEFORE = re.compile(rf"(?:{_CODE}|[A-Z]{{0,2}}{_SIGN})\s*")
_BEHIND = re.compile(rf"\s*(?:{_CODE}|{_SIGN}|[Hh](?:(?:ou)?rs?)?)$")
#: Thousands set apart by blanks or apostrophes, one before every three digits.
_BETWEEN = " \u00a0\u202f\u2009'\u2019"
_SET_APART = re.compile(rf"[0-9]{{1,3}}(?:[{_BETWEEN}][0-9]{{3}})+(?![0-9])[^{_BETWEEN}]*")
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<body>[0-9.,]*[0-9][0-9.,]*)(?P<power>[eE][+-]?[0-9]{1,2})?")
_DAY = re.compile(
    r"(?P<a>[0-9]{1,4})(?P<sep>[-/.])(?P<b>[0-9]{1,2})(?P=sep)(?P<c>[0-9]{1,4})(?:[T ]\s*(?P<time>.*))?"
)
_TIME = re.compile(
    r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.[0-9]{1,9})?)?"
    r"\s*(?P<half>[AaPp][Mm])?\s*(?P<zone>Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2})?"
)


def decimal_mark(texts: Iterable[str]) -> DecimalMark:
    """Return which of "." and "," stands before the decimals in all of `texts`.

    Raises InvalidInput where two values contradict each other, or every one could be read both ways.
    """
    seen: dict[str, str] = {}  # mark -> a text that proves it
    open_text = ""
    for text in texts:
        body = _body(text)
        if body is None:
            continue
        mark = _proof(body)
        if mark:
            seen.setdefault(mark, text)
        elif "." in body or "," in body:
            open_text = open_text or text
    if len(seen) == 2:
        raise InvalidInput(
            f"{seen['.'][:40]!r} and {seen[','][:40]!r} write decimals differently",
            hint="One file writes one way: say --decimal, or correct the file",
            field="decimal",
        )
    if not seen and open_text:
        raise InvalidInput(
            f"{open_text[:40]!r} may be thousands or decimals, and no other value tells",
            hint="Say --decimal . or --decimal ,",
            field="decimal",
        )
    return "," if "," in seen else "."


def amount_of(text: str, mark: DecimalMark) -> Decimal:
    """Return the amount `text` writes: 1,234.56, (12.00), 12-, $5, 1.0E-7. Raises InvalidInput."""
    bare, negative = _bare(text)
    found = _NUMBER.fullmatch(bare)
    thousands = "," if mark == "." else "."
    if found is not None and _is_grouped(found["body"], mark, thousands):
        digits = found["body"].replace(thousands, "").replace(mark, ".")
        try:
            amount = Decimal(f"{found['sign']}{digits}{found['power'] or ''}")
        except InvalidOperation:
            amount = Decimal("NaN")
        if amount.is_finite() and abs(amount) <= MAX_AMOUNT:
            return (-amount if negative else amount).quantize(_PLACES).normalize() + 0
    raise InvalidInput(
        f"{text[:40]!r} is not an amount",
        hint=f"Numbers are read with {mark!r} before decimals; formulas are not calculated",
    )


def date_order(texts: Iterable[str]) -> DateOrder:
    """Return in which order all of `texts` write a day. Raises InvalidInput where it cannot be told."""
    seen: dict[DateOrder, str] = {}
    open_text = ""
    for text in texts:
        found = _DAY.fullmatch(text.strip()[:_MAX_CHARACTERS])
        if found is None:
            continue
        order = _order_proof(found)
        if order is None:
            open_text = open_text or text
        else:
            seen.setdefault(order, text)
    if len(seen) > 1:
        first, second = list(seen.values())[:2]
        raise InvalidInput(
            f"{first[:40]!r} and {second[:40]!r} write days differently",
            hint="One file writes one way: say --dates, or correct the file",
            field="dates",
        )
    if not seen and open_text:
        raise InvalidInput(
            f"{open_text[:40]!r} may begin with the month or the day, and no other value tells",
            hint="Say --dates mdy or --dates dmy",
            field="dates",
        )
    for order in seen:
        return order
    return "ymd"


def day_of(text: str, order: DateOrder, zone: ZoneInfo) -> date:
    """Return the day `text` falls on in `zone`; a time without an offset is of that zone.

    Raises InvalidInput.
    """
    stripped = text.strip()
    found = _DAY.fullmatch(stripped) if len(stripped) <= _MAX_CHARACTERS else None
    try:
        if found is None:
            raise ValueError
        parts = (int(found["a"]), int(found["b"]), int(found["c"]))
        year, month, day = {
            "ymd": parts,
            "mdy": (parts[2], parts[0], parts[1]),
            "dmy": (parts[2], parts[1], parts[0]),
        }[order]
        if not FIRST_YEAR <= year <= LAST_YEAR:
            raise ValueError
        return _shifted(date(year, month, day), found["time"] or "", zone)
    except ValueError:
        raise InvalidInput(
            f"{text[:40]!r} is not a day written {order}",
            hint="Write days as 2026-11-30, or say --dates mdy or --dates dmy",
        ) from None


def _shifted(day: date, time: str, zone: ZoneInfo) -> date:
    if not time.strip():
        return day
    found = _TIME.fullmatch(time.strip())
    if found is None:
        raise ValueError
    hour = int(found["hour"])
    if found["half"]:
        hour = hour % 12 + (12 if found["half"].lower() == "pm" else 0)
    second = int(found["second"] or 0)
    offset = _offset(found["zone"]) if found["zone"] else zone
    at = datetime(day.year, day.month, day.day, hour, int(found["minute"]), second, tzinfo=offset)
    return at.astimezone(zone).date() if found["zone"] else day


def _offset(text: str) -> timezone:
    if text in ("Z", "UTC", "GMT"):
        return timezone.utc  # noqa: UP017 # the same thing as an offset of its own
    sign = -1 if text[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(text[1:3]), minutes=int(text[-2:])))


def _order_proof(found: re.Match[str]) -> DateOrder | None:
    if len(found["a"]) == 4:
        return "ymd"
    if found["sep"] == ".":
        return "dmy"
    if int(found["a"]) > 12:
        return "dmy"
    return "mdy" if int(found["b"]) > 12 else None


def _bare(text: str) -> tuple[str, bool]:
    """Return the number without currency, blanks and brackets, and whether brackets made it negative.

    "" for what is no number: a sign within brackets, and blanks that set no thousands apart.
    """
    bare = text.strip()[: _MAX_CHARACTERS + 1].replace("\u2212", "-")
    if len(bare) > _MAX_CHARACTERS:
        return "", False
    is_bracketed = bare.startswith("(") and bare.endswith(")")
    if is_bracketed:
        bare = bare[1:-1].strip()
    sign = ""
    if bare[:1] in ("+", "-"):
        sign, bare = bare[0], bare[1:].lstrip()
    elif bare.endswith("-"):
        sign, bare = "-", bare[:-1].rstrip()
    ahead = _BEFORE.match(bare)
    bare = _BEHIND.sub("", bare[ahead.end() if ahead else 0 :]).strip()
    if not sign and bare[:1] in ("+", "-"):  # $-5
        sign, bare = bare[0], bare[1:]
    if any(mark in bare for mark in _BETWEEN):
        if not _SET_APART.fullmatch(bare):
            return "", False
        bare = "".join(c for c in bare if c not in _BETWEEN)
    if (is_bracketed and sign) or bare[:1] in ("+", "-"):
        return "", False
    return sign + bare, is_bracketed


def _body(text: str) -> str | None:
    found = _NUMBER.fullmatch(_bare(text)[0])
    return None if found is None else found["body"]


def _proof(body: str) -> DecimalMark | None:
    """Return the mark that `body` can only have before its decimals, or None."""
    if "." in body and "," in body:
        return "." if body.rindex(".") > body.rindex(",") else ","
    mark: DecimalMark = "." if "." in body else ","
    other: DecimalMark = "," if mark == "." else "."
    count = body.count(mark)
    if count == 0:
        return None
    if count > 1:
        return other
    before, after = body.split(mark)
    is_open = len(after) == 3 and 1 <= len(before) <= 3 and not before.startswith("0")
    return None if is_open else mark


def _is_grouped(body: str, mark: str, thousands: str) -> bool:
    whole, _, rest = body.partition(mark)
    if mark in rest or thousands in rest:
        return False
    if thousands not in whole:
        return True
    groups = whole.split(thousands)  # 1,234,567 and 12,34,567
    is_whole = 1 <= len(groups[0]) <= 3 and len(groups[-1]) == 3
    return is_whole and all(len(group) in (2, 3) for group in groups[1:-1])
