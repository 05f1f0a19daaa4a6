"""The text of `rhodeck metrics`: the same facts for a person at a terminal.

A dash is "the page does not say". Names from pages are printed with control characters escaped.
Prevents: a model name that moves the cursor, and "0" where nothing was said.
"""

from __future__ import annotations

from collections.abc import Sequence

from control.metrics_json import COUNTS, QUANTILES
from fleet.engine_readings import block_tokens
from fleet.histograms import describe, quantile
from fleet.percentages import percent
from fleet.readings import EngineReading, EngineWindow, PageReading, PageState

_SHOWN_REMARKS = 5


def printable(text: str, width: int = 60) -> str:
    """Return `text` with characters that do not print escaped, cut to `width`."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return safe if len(safe) <= width else f"{safe[: width - 1]}…"


def number(value: float | None) -> str:
    """Return a number for people, a dash for None."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lay rows out in columns, the first row being the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def page_text(page: PageReading) -> str:
    """One page: a line on what it is, a row an engine, then remarks."""
    lines = [f"{printable(page.source, 200)}: {page.dialect}, {page.shape}, {page.state.value}"]
    if page.state is not PageState.OK:
        lines.append(f"  {page.hint}")
    if page.engines:
        heading = (
            "engine", "model", "running", "waiting", "KV used", "finished", "prompt tok", "output tok",
            "preempted", "prefix hits",
        )  # fmt: skip
        lines.append(table([heading, *(_engine_row(engine) for engine in page.engines)]))
    flags = sorted({flag for engine in page.engines for flag in engine.flags})
    lines += [f"  note: {flag}" for flag in flags]
    lines += [f"  left out: {printable(remark, 160)}" for remark in page.dropped[:_SHOWN_REMARKS]]
    if len(page.dropped) > _SHOWN_REMARKS:
        lines.append(f"  left out: {len(page.dropped) - _SHOWN_REMARKS} more (see --json)")
    return "\n".join(lines)


def _engine_row(engine: EngineReading) -> tuple[str, ...]:
    kv = "-" if engine.kv_used_ratio is None else f"{percent(engine.kv_used_ratio, 1)}"
    finished = ", ".join(f"{printable(k, 20)} {n:,}" for k, n in engine.finished.items() if n)
    return (
        printable(engine.engine, 20) or "-",
        printable(engine.model or "-", 40),
        number(engine.running),
        number(engine.waiting),
        kv,
        finished or ("0" if engine.finished else "-"),
        number(engine.prompt_tokens),
        number(engine.generation_tokens),
        number(engine.preemptions),
        prefix_hits(engine),
    )


def prefix_hits(engine: EngineReading) -> str:
    """Return the share of prompt tokens found in cache, with the block a prefix must fill to be found."""
    hits, queries = engine.prefix_cache_hits, engine.prefix_cache_queries
    if hits is None or not queries:
        return "-"
    block = block_tokens(engine.cache_config)
    size = f" (block {block:,} tokens)" if block is not None else ""
    return f"{percent(hits / queries, 1)} of full blocks{size}"


def window_text(windows: Sequence[EngineWindow]) -> str:
    """Each engine: counts with rates a second, then quantiles with what is known of them."""
    return "\n\n".join(_window_text(window) for window in windows)


def _window_text(window: EngineWindow) -> str:
    name = f"engine {printable(window.engine, 20) or '-'}, {printable(window.model or '-', 40)}"
    restart = ", restarted" if window.restarted else ""
    counts = [("count", "in window", "per second")]
    for key in COUNTS:
        value: int | None = getattr(window, key)
        rate = None if value is None else value / window.length_s
        counts.append((key, number(value), number(rate)))
    parts = [f"{name}, {window.length_s:g} s{restart}", table(counts)]
    if window.histograms:
        rows = [("histogram", "n", *QUANTILES)]
        for key, histogram in window.histograms.items():
            unit = "s" if key.endswith("_s") else ""
            words = (describe(quantile(histogram, q), unit) for q in QUANTILES.values())
            rows.append((key, number(histogram.count), *words))
        parts.append(table(rows))
    parts += [f"  note: {flag}" for flag in window.flags]
    return "\n".join(parts)
