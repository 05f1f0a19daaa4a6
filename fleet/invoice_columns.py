"""Which column of a provider's invoice says what, and what its labels mean for us.

A mapping is guessed from header names and shown before it counts; what somebody says comes before a guess.
Prevents: a tax column added up as the amount, and a guess nobody saw.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from fleet.errors import InvalidInput
from fleet.invoice_numbers import DateOrder, DecimalMark
from fleet.messages import PRICE_CLASSES
from fleet.reconciliation import OTHER

#: What a column may be. Only `amount` is needed.
ROLES = ("day", "label", "hours", "price", "amount", "currency", "description")
MAX_LABELS = 2_000
#: Said of a role for which the file has no column, where a guess would find one.
NO_COLUMN = "-"

#: Header names, letters and digits only, best first. AWS Cost and Usage Report (CUR and CUR 2.0), Azure
#: usage details, Google Cloud's cost table, FinOps FOCUS 1.2, and plain words.
_KNOWN: dict[str, tuple[str, ...]] = {
    "day": (
        "lineitemusagestartdate",
        "usagestarttime",
        "chargeperiodstart",
        "usagedatetime",
        "usagedate",
        "usagestartdate",
        "servicedate",
        "startdate",
        "day",
        "date",
    ),
    "label": (
        "lineitemusagetype",
        "usagetype",
        "skudescription",
        "skuid",
        "metersubcategory",
        "metername",
        "nodeclass",
        "instancetype",
        "class",
        "sku",
        "product",
        "item",
    ),
    "hours": (
        "lineitemusageamount",
        "usageamountinpricingunits",
        "usageamount",
        "consumedquantity",
        "pricingquantity",
        "nodehours",
        "hours",
        "quantity",
    ),
    "price": (
        "lineitemunblendedrate",
        "contractedunitprice",
        "effectiveprice",
        "unitprice",
        "listunitprice",
        "usdperhour",
        "rate",
        "price",
    ),
    "amount": (
        "lineitemunblendedcost",
        "billedcost",
        "costinbillingcurrency",
        "pretaxcost",
        "cost",
        "amount",
        "total",
        "betrag",
    ),
    "currency": (
        "lineitemcurrencycode",
        "billingcurrencycode",
        "billingcurrency",
        "currencycode",
        "currency",
    ),
    "description": ("lineitemlineitemdescription", "chargedescription", "description"),
}
#: Words in a label that tell its price class.
_CLASS_WORDS: tuple[tuple[str, str], ...] = (
    ("spot", r"spot|preempt"),
    ("reserved", r"reserv|heavyusage|commit|savings"),
    ("on_demand", r"boxusage|on[-_ ]?demand"),
)


@dataclass(frozen=True, slots=True)
class FileMapping:
    """How one provider's file is read. Columns by role are header names.

    "" is not known yet, `NO_COLUMN` is none.
    """

    day: str = ""
    label: str = ""
    hours: str = ""
    price: str = ""
    amount: str = ""
    currency: str = ""
    description: str = ""
    zone: str = "UTC"  # whose days the invoice has
    decimal: DecimalMark | None = None  # None: told from the values
    dates: DateOrder | None = None
    classes: Mapping[str, str] = field(default_factory=dict[str, str])  # label -> node class

    @property
    def columns(self) -> dict[str, str]:
        """Return the column of each role that has one."""
        named = {role: str(getattr(self, role)) for role in ROLES}
        return {role: name for role, name in named.items() if name not in ("", NO_COLUMN)}

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        said = {f.name: getattr(self, f.name) for f in fields(self)}
        return said | {"classes": dict(self.classes)}

    @staticmethod
    def of_json(kept: Mapping[str, Any]) -> FileMapping:
        """Return what `as_json` gave; what a later release no longer knows is left out."""
        known = {f.name for f in fields(FileMapping)}
        return FileMapping(**{name: value for name, value in kept.items() if name in known})


def guessed(header: Sequence[str], given: FileMapping) -> FileMapping:
    """Return `given` with columns nobody named found by the header's names.

    Raises InvalidInput for a named column that is not there, and when there is no column of amounts.
    """
    for role, name in given.columns.items():
        if name not in header:
            raise InvalidInput(
                f"the file has no column {name[:80]!r} for {role}",
                hint=f"Name another or - for none; it has {', '.join(h[:40] for h in header[:20])}",
                field=role,
            )
    taken = set(given.columns.values())
    found: dict[str, Any] = {}
    bare = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in header]
    for role in ROLES:
        if getattr(given, role):
            continue
        for wanted in _KNOWN[role]:
            place = next((i for i, n in enumerate(bare) if n == wanted and header[i] not in taken), None)
            if place is not None:
                found[role] = header[place]
                taken.add(header[place])
                break
    made = replace(given, **found)
    if "amount" not in made.columns:
        raise InvalidInput(
            "no column of amounts was found",
            hint=f"Name it: --map amount=COLUMN, one of {', '.join(h[:40] for h in header[:20])}",
            field="amount",
        )
    return made


def class_of(label: str, classes: Mapping[str, str]) -> str | None:
    """Return the node class declared for a label, else what its words tell; None: nobody knows."""
    declared = classes.get(label)
    if declared is not None:
        return declared
    for node_class, words in _CLASS_WORDS:
        if re.search(words, label, re.IGNORECASE):
            return node_class
    bare = label.strip().lower().replace(" ", "_").replace("-", "_")
    return bare if bare in PRICE_CLASSES else None


def checked_classes(classes: Mapping[str, str]) -> dict[str, str]:
    """Return declared classes: a price class, a price class of a pool ("spot/burst"), or "other".

    Raises InvalidInput.
    """
    if len(classes) > MAX_LABELS:
        raise InvalidInput(
            f"{len(classes)} labels are declared", hint=f"At most {MAX_LABELS}", field="classes"
        )
    for label, node_class in classes.items():
        known, _, pool = node_class.partition("/")
        if node_class != OTHER and (known not in PRICE_CLASSES or len(pool) > 200):
            raise InvalidInput(
                f"{node_class[:60]!r} is no node class for {label[:60]!r}",
                hint=f"Use {', '.join(PRICE_CLASSES)}, one of them with /POOL, or {OTHER}",
                field="classes",
            )
    return dict(classes)


def checked_options(decimal: str | None, dates: str | None) -> tuple[DecimalMark | None, DateOrder | None]:
    """Return both as what they can be. Raises InvalidInput."""
    if decimal not in (None, ".", ","):
        raise InvalidInput(
            f"{decimal[:10]!r} is no decimal mark", hint="Write . or a comma", field="decimal"
        )
    if dates not in (None, "ymd", "mdy", "dmy"):
        raise InvalidInput(f"{dates[:10]!r} is no order", hint="Write ymd, mdy or dmy", field="dates")
    return decimal, dates
