"""Numbers as people read them, with their unit; a dash where nobody knows.

Ratios come in as 0..1 and leave as percent, here and nowhere else. Prevents: "0" for "not known", digits
nobody measured, and a number without its unit.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from dashboard.times import UNKNOWN
from fleet import percentages
from fleet.histograms import Quantile
from fleet.outcomes import Tier

Tone = Literal["good", "watch", "act", "unknown", "plain"]
#: How a tone looks: badge colour and icon. The word beside it says the same.
LOOKS: dict[Tone, tuple[str, str]] = {
    "good": ("green", ":material/check_circle:"),
    "watch": ("orange", ":material/visibility:"),
    "act": ("red", ":material/error:"),
    "unknown": ("gray", ":material/help:"),
    "plain": ("blue", ":material/info:"),
}


def number(value: float | None, digits: int = 3) -> str:
    """Return `value` with `digits` significant digits and thousands apart."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{float(f'{value:.{digits}g}'):,.{digits}g}"


def count(value: int | None) -> str:
    """Return a whole number with thousands apart."""
    return UNKNOWN if value is None else f"{value:,}"


def ratio(value: float | None) -> str:
    """Return rho and its like with two decimals: they may pass 1, so they are no percentage."""
    return UNKNOWN if value is None else f"{value:.2f}"


def percent(value: float | None, digits: int = 1) -> str:
    """Return a 0..1 share as percent."""
    return UNKNOWN if value is None else percentages.percent(value, digits)


def rate(value: float | None, unit: str = "req/s") -> str:
    """Return a rate with its unit."""
    return UNKNOWN if value is None else f"{number(value)} {unit}"


def seconds(value: float | None) -> str:
    """Return a latency: "420 ms", "1.25 s"."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{number(1000 * value)} ms"
    return f"{number(value)} s"


def quantile(found: Quantile | None) -> str:
    """Return a quantile with its honesty: "> 60 s", "<= 1 ms", "420 ms", "few" when hardly measured."""
    if found is None:
        return UNKNOWN
    if found.is_censored:
        words = f"> {seconds(found.lo)}"
    elif found.is_below_first_edge:
        words = f"\u2264 {seconds(found.hi)}"
    else:
        words = seconds(found.estimate)
    return f"{words} (few)" if found.too_few else words


def interval(low: float | None, high: float | None) -> str:
    """Return "0.61 to 0.74", or nothing when no interval is known."""
    return "" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def dollars(amount: Decimal | None) -> str:
    """Return money to the dollar: "$105,800"."""
    return UNKNOWN if amount is None else f"{'-' if amount < 0 else ''}${abs(round(amount)):,}"


def cents(amount: Decimal | None) -> str:
    """Return money to the cent: "$1,234.56"."""
    return UNKNOWN if amount is None else f"{'-' if amount < 0 else ''}${abs(amount):,.2f}"


def plural(number_of: int, noun: str) -> str:
    """Return "1 node", "3 nodes"."""
    return f"{number_of:,} {noun}{'' if number_of == 1 else 's'}"


def tier(name: str) -> str:
    """Return a tier, or a text of ours that names some, as people write it: "best-effort"."""
    return name.replace(Tier.BEST_EFFORT, Tier.BEST_EFFORT.words)


def tier_or_name(scope: str, subject: str) -> str:
    """Return a subject's name: of a tier as people write it, of all else as it is."""
    return tier(subject) if scope == "tier" else subject


def plain(text: str) -> str:
    """Return text of others (names, messages, notes) so that Markdown shows it as it is."""
    escaped = "".join(f"\\{c}" if c in "\\`*_{}[]()#+-.!|<>~$:" else c for c in text)
    return " ".join(escaped.splitlines())


def with_code(text: str) -> str:
    """Return text of ours as Markdown: what stands between backticks stays code, the rest is plain."""
    parts = " ".join(text.splitlines()).split("`")  # an empty line would end the code and begin markup
    if len(parts) % 2 == 0:
        return plain(text)
    return "`".join(part if i % 2 else plain(part) for i, part in enumerate(parts))
