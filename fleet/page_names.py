"""Under which name each quantity was read from a page, and which ones the page should have and has not.

Pure. `read_as` maps our short names to names on the wire. Prevents: a renamed metric that nobody notices
until its old name goes away, and a missing one that looks like an idle engine.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleet.dialect_names import Dialect
from fleet.exposition import Families
from fleet.readings import NamesRead

#: What verdicts are made of. A page of an engine that can say it should say it.
CORE = (
    "running",
    "waiting",
    "kv_used_ratio",
    "finished",
    "prompt_tokens",
    "generation_tokens",
    "e2e_s",
    "ttft_s",
    "itl_s",
    "queue_wait_s",
)


def names_read(families: Families, dialect: Dialect) -> NamesRead:
    """Return how the quantities of `dialect` stand on a page.

    A family that is declared without samples is not missing: lazy exporters show a series at its first
    value (vLLM's Rust front end, the first vLLM engine). A page with the lines of an earlier one has its
    answer.
    """
    known = {} if families.layout is None else families.layout.names
    found = known.get(dialect.name)
    if found is None:
        found = known[dialect.name] = _read(families, dialect)
    return found


def _read(families: Families, dialect: Dialect) -> NamesRead:
    present, declared = families.series, families.declared
    read_as: dict[str, str] = {}
    renamed: dict[str, str] = {}
    deprecated: dict[str, str] = {}
    known: set[str] = set()
    for quantity, names in _quantities(dialect):
        known.add(quantity)
        on_page = [name for name, sample in names if sample in present]
        if on_page:
            read_as[quantity] = on_page[0]
            if on_page[0] != names[0][0]:
                renamed[quantity] = on_page[0]
            elif len(on_page) > 1:
                deprecated[quantity] = on_page[1]
        elif any(name in declared or name.removesuffix("_total") in declared for name, _ in names):
            read_as[quantity] = names[0][0]
    return NamesRead(
        read_as,
        renamed,
        deprecated,
        missing=tuple(q for q in CORE if q in known and q not in read_as),
        not_exported=tuple(q for q in CORE if q not in known),
    )


def _quantities(dialect: Dialect) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    """Yield each quantity with its (name, name of a sample of it), newest first."""
    plain = {**dialect.gauges, **dialect.counters}
    for quantity, (name, _, _) in dialect.parts.items():
        plain[quantity] = (*plain.get(quantity, ()), name)
    alone = (dialect.finished,) if dialect.finished else tuple(dialect.finished_alone.values())
    if alone:
        plain["finished"] = alone
    yield from ((q, [(name, name) for name in names]) for q, names in plain.items())
    yield from ((q, [(n, f"{n}_bucket") for n in names]) for q, names in dialect.histograms.items())
