"""A policy draft: what an operator changed, on which revision, and how it meets what others published.

Pure. A draft is a base document and the edited one; both are policy documents as `Policy.as_document`
gives them. Prevents: a draft that silently undoes what somebody else published meanwhile.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.errors import InvalidPolicy
from fleet.outcomes import TIERS
from fleet.policy import Policy, differences, parse

Document = dict[str, Any]
#: What a row of the quota table holds, beside the tenant's name.
QUOTA_FIELDS = (
    "tier",
    "tokens_per_minute",
    "burst_tokens",
    "max_in_flight_tokens",
    "max_concurrent_requests",
    "weight",
    "monthly_budget_usd",
    "over_budget",
    "quota_mode",
)
#: Fields that documents of earlier releases lack, with what their absence means.
_DEFAULTS = {"quota_mode": "leases"}
WHOLE_FIELDS = frozenset(
    {"tokens_per_minute", "burst_tokens", "max_in_flight_tokens", "max_concurrent_requests", "weight"}
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One changed field. `theirs` is set where somebody else changed it meanwhile to something else."""

    pointer: str
    old: Any
    new: Any
    theirs: Any = None
    is_conflict: bool = False


@dataclass(frozen=True, slots=True)
class Review:
    """What publishing a draft would do."""

    changes: tuple[Difference, ...]
    problem: InvalidPolicy | None  # why it cannot be published
    policy: Policy | None


def review(base: Mapping[str, Any], draft: Mapping[str, Any], head: Mapping[str, Any]) -> Review:
    """Return what `draft` changes against `base`, what of it others changed in `head`, and its validity."""
    theirs = {pointer: new for pointer, _, new in differences(base, head)}
    changes = tuple(
        Difference(
            pointer,
            old,
            new,
            theirs.get(pointer),
            is_conflict=pointer in theirs and theirs[pointer] != new,
        )
        for pointer, old, new in differences(base, draft)
    )
    try:
        return Review(changes, None, parse(dict(draft)))
    except InvalidPolicy as problem:
        return Review(changes, problem, None)


def moved_to(head: Mapping[str, Any], base: Mapping[str, Any], draft: Mapping[str, Any]) -> Document:
    """Return `head` with the draft's own changes made again on it; the draft wins where both changed."""
    result: Document = copy.deepcopy(dict(head))
    for pointer, _, _ in differences(base, draft):
        path = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        found, value = _at(draft, path)
        if found:
            _put(result, path, copy.deepcopy(value))
        else:
            _take(result, path)
    for name in set(base.get("tenants", {})) - set(draft.get("tenants", {})):
        result["tenants"].pop(name, None)  # with what `differences` cannot list: a field that was null
    return result


def _at(document: Mapping[str, Any], path: Sequence[str]) -> tuple[bool, Any]:
    here: Any = document
    for part in path:
        if not isinstance(here, Mapping) or part not in here:
            return False, None
        here = here[part]
    return True, here


def _put(document: Document, path: Sequence[str], value: Any) -> None:
    here = document
    for part in path[:-1]:
        if not isinstance(here.get(part), dict):
            here[part] = {}
        here = here[part]
    here[path[-1]] = value


def _take(document: Document, path: Sequence[str]) -> None:
    """Remove what the path leads to, and what is empty then; the top level stays."""
    parents: list[Document] = [document]
    for part in path[:-1]:
        child = parents[-1].get(part)
        if not isinstance(child, dict):
            return
        parents.append(child)
    parents[-1].pop(path[-1], None)
    for depth in range(len(parents) - 1, 1, -1):
        if not parents[depth]:
            parents[depth - 1].pop(path[depth - 1], None)


def with_tiers(draft: Mapping[str, Any], values: Mapping[tuple[str, str], Any]) -> Document:
    """Return the draft with (tier, field) values set."""
    result: Document = copy.deepcopy(dict(draft))
    for (tier, field), value in values.items():
        result["tiers"][tier][field] = value
    return result


def with_values(draft: Mapping[str, Any], values: Mapping[tuple[str, ...], Any]) -> Document:
    """Return the draft with the values at their paths set."""
    result: Document = copy.deepcopy(dict(draft))
    for path, value in values.items():
        _put(result, path, value)
    return result


def quota_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the quota table's rows, one a tenant, by name."""
    return [
        {"tenant": name, **{field: quota.get(field, _DEFAULTS.get(field)) for field in QUOTA_FIELDS}}
        for name, quota in sorted(document.get("tenants", {}).items())
    ]


def with_quotas(draft: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Document:
    """Return the draft with the tenants of the table, and no others.

    A new tenant may ask for every tier. Raises InvalidPolicy for a row without a name, or a name twice.
    """
    result: Document = copy.deepcopy(dict(draft))
    known = result.get("tenants", {})
    tenants: dict[str, Any] = {}
    for number, row in enumerate(rows, start=1):
        name = str(row.get("tenant") or "").strip()
        if not name:
            raise InvalidPolicy(
                f"row {number} of the quotas has no tenant",
                field="/tenants",
                hint="Name it, or remove the row",
            )
        if name in tenants:
            raise InvalidPolicy(
                f"tenant {name} stands twice in the quotas", field=f"/tenants/{name}", hint="Remove one row"
            )
        before = known.get(name, {})
        quota = {**before, **{field: _cell(field, row.get(field)) for field in QUOTA_FIELDS}}
        quota = {
            field: value
            for field, value in quota.items()
            if field in before or (value is not None and value != _DEFAULTS.get(field))
        }
        quota.setdefault("allowed_tiers", [str(tier) for tier in TIERS])
        if quota.get("tier") and quota["tier"] not in quota["allowed_tiers"]:
            quota["allowed_tiers"] = [*quota["allowed_tiers"], quota["tier"]]
        tenants[name] = quota
    result["tenants"] = tenants
    return result


def _cell(field: str, value: Any) -> Any:
    """Return a cell's value as the document has it: whole numbers whole, empty as None."""
    if value is None or value != value or (isinstance(value, str) and not value.strip()):  # NaN
        return None
    if field in WHOLE_FIELDS and isinstance(value, float) and value.is_integer():
        return int(value)
    return value.strip() if isinstance(value, str) else value
