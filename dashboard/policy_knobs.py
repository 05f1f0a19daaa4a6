"""The policy's knobs as the editor draws them, read from the policy itself, and changes in words. Pure.

A knob is a field with its bounds, choices and meaning; a new field of the policy needs no new form.
Prevents: a knob that can only be turned by whoever edits JSON, and a change nobody could say the effect of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dashboard.drafts import Difference
from fleet.limiters import Limiters, Mode
from fleet.policy import Policy, Routing

Kind = Literal["choice", "choices", "flag", "whole", "real"]
Path = tuple[str, ...]
MODES = tuple(mode.value for mode in Mode)
_MODE_WORDS = {
    Mode.ENFORCE.value: "refuses what exceeds it",
    Mode.SHADOW.value: "lets everything through and counts what it would have refused",
    Mode.OFF.value: "is switched off: nothing is held against it",
}
_QUOTA_WORDS = {
    "leases": "its quota is lent between gateways as they need it",
    "exact": "its quota is counted in one store at each request",
}


LIMITERS_HELP = (
    "Enforce refuses; shadow lets through and counts what it would have refused; off is the kill switch of "
    "one limit. Access by keys and tiers is no limit and always holds."
)


def shadow_text(count: int | None) -> str:
    """Return what a limit in shadow would have refused in the last hour."""
    if count is None:
        return "What it would have refused is not known yet"
    return f"would have refused {count:,} in the last hour"


@dataclass(frozen=True, slots=True)
class Knob:
    """One field of the policy with what an editor needs to draw it."""

    path: Path
    kind: Kind
    help: str
    default: Any
    options: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None

    @property
    def label(self) -> str:
        """Return the field's name with blanks, after that of the part it stands in."""
        return " ".join(self.path[1:]).replace("_", " ")

    def value_in(self, document: Mapping[str, Any]) -> Any:
        """Return what `document` says, or the default where it says nothing."""
        here: Any = document
        for part in self.path:
            if not isinstance(here, Mapping) or part not in here:
                return self.default
            here = cast("Mapping[str, Any]", here)[part]
        return here


def limiter_knobs() -> list[Knob]:
    """Return the switches of the limits."""
    return list(_knobs(Limiters, ("limiters",)))


def routing_knobs() -> list[Knob]:
    """Return the knobs of routing, those of its parts included."""
    return list(_knobs(Routing, ("routing",)))


def changed(
    document: Mapping[str, Any], knobs: Sequence[Knob], values: Mapping[Path, Any]
) -> dict[Path, Any]:
    """Return the values that differ from `document`; what it lacks and is at its default is not written."""
    return {
        knob.path: values[knob.path]
        for knob in knobs
        if knob.path in values and values[knob.path] != knob.value_in(document)
    }


def change_words(change: Difference) -> str:
    """Return what a change does: of a limit what it does from then on, else what the field means."""
    path = [part.replace("~1", "/").replace("~0", "~") for part in change.pointer.split("/")[1:]]
    if path[:1] == ["limiters"] and len(path) == 2:
        doing = _MODE_WORDS.get(str(change.new or Mode.ENFORCE.value), "")
        return f"{path[1].replace('_', ' ')} {doing}"
    if path[:1] == ["tenants"] and path[2:] == ["quota_mode"]:
        return f"{path[1]}: {_QUOTA_WORDS.get(str(change.new or 'leases'), '')}"
    meaning = _meaning(Policy, path)
    return f"{_verb(change)}: {meaning}" if meaning else _verb(change)


def _verb(change: Difference) -> str:
    old, new = change.old, change.new
    if old is None:
        return "Set"
    if new is None:
        return "Removed"
    if isinstance(old, (int, float)) and isinstance(new, (int, float)) and not isinstance(new, bool):
        return "Raised" if new > old else "Lowered"
    return "Changed"


def _knobs(model: type[BaseModel], path: Path) -> Iterator[Knob]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _knobs(inner, (*path, name))
        elif (knob := _knob(field, (*path, name))) is not None:
            yield knob


def _knob(field: FieldInfo, path: Path) -> Knob | None:
    """Return a field as a knob; None for what only JSON can say (lists of parts, names)."""
    kind, options = _kind(field.annotation)
    if kind is None or field.is_required():
        return None
    low = next((float(str(m.ge)) for m in field.metadata if isinstance(m, Ge)), None)
    high = next((float(str(m.le)) for m in field.metadata if isinstance(m, Le)), None)
    if any(isinstance(m, (Gt, Lt)) for m in field.metadata):
        return None
    return Knob(path, kind, field.description or "", _plain(field.get_default()), options, low, high)


def _kind(annotation: Any) -> tuple[Kind | None, tuple[str, ...]]:
    if get_origin(annotation) is Literal:
        return "choice", tuple(map(str, get_args(annotation)))
    if get_origin(annotation) is tuple:
        _, options = _kind(get_args(annotation)[0])
        return ("choices", options) if options else (None, ())
    if not isinstance(annotation, type):
        return None, ()
    if issubclass(annotation, Enum):
        return "choice", tuple(str(member.value) for member in annotation)
    if annotation is bool:
        return "flag", ()
    return ("whole", ()) if annotation is int else ("real", ()) if annotation is float else (None, ())


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(each) for each in cast("tuple[object, ...]", value)]
    return value


def _meaning(model: type[BaseModel], path: Sequence[str]) -> str:
    """Return what the field at `path` means, the first sentence of it; "" for an unknown one."""
    field = model.model_fields.get(path[0]) if path else None
    if field is None:
        return ""
    rest = path[1:]
    part = _part(field.annotation)
    if get_origin(field.annotation) is dict:
        rest = rest[1:]  # the tenant's name
    if part is not None and rest:
        return _meaning(part, rest)
    return field.description or ""


def _part(annotation: Any) -> type[BaseModel] | None:
    """Return the part of the policy a field holds, looking into options, lists and dictionaries."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (dict, tuple, Union, UnionType, Annotated):
        for inner in get_args(annotation):
            if inner is not NoneType and (found := _part(inner)) is not None:
                return found
    return None
