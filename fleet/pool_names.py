"""Under which names a node's room is placed: its models, or a part of their requests only.

Prefill nodes serve one phase of each request; pools that a size class is bound to serve that class. No
model has such a name: labels hold no line breaks. Prevents: long contexts and short requests meeting on a
node that was set aside for one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fleet.messages import NodeTarget
from fleet.policy import SizeClass

_CLASS = "class "


def prefill_of(model: str) -> str:
    """Return the name under which the prefill phase of a model is placed."""
    return f"{model}\nprefill"


def class_of(model: str, size_class: str) -> str:
    """Return the name under which a model's requests of a bound size class are placed."""
    return f"{model}\n{_CLASS}{size_class}"


def model_of(name: str) -> str:
    """Return the model whose requests are placed under a name."""
    return name.partition("\n")[0]


def placed_as(name: str, bound: Collection[str]) -> str:
    """Return the name under which what stands under `name` is placed now.

    `bound`: the size classes that are bound to a pool. One that is not any more goes by its model.
    """
    model, _, part = name.partition("\n")
    is_freed = part.startswith(_CLASS) and part.removeprefix(_CLASS) not in bound
    return model if is_freed else name


def classes_by_pool(classes: Iterable[SizeClass]) -> dict[str, list[str]]:
    """Return the names of the size classes that are bound to each pool."""
    found: dict[str, list[str]] = {}
    for one in classes:
        if one.pool is not None:
            found.setdefault(one.pool, []).append(one.name)
    return found


def pool_names(target: NodeTarget, bound: Mapping[str, list[str]]) -> list[str]:
    """Return the names a node's room is placed under. `bound`: size classes by pool."""
    if target.role == "prefill":
        return [prefill_of(model) for model in target.models]
    classes = bound.get(target.pool)
    if classes is None:
        return list(target.models)
    return [class_of(model, one) for model in target.models for one in classes]
