"""`rhodeck metrics`: read metrics pages, and what happened between two, as JSON or as tables.

Files are read up to the page cap, addresses within a deadline of 5 s. Absent stays absent: a key is null
or missing, never 0. Prevents: a script that takes an unreadable page for an idle node because the exit
code was 0.
"""

from __future__ import annotations

import asyncio
import errno
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import click

from control.fetch import DEADLINE_S, FetchFailed, fetch_page, open_session, shown_url
from control.finite import FiniteRange
from control.metrics_json import failure_json, page_json, window_json
from control.metrics_text import page_text, window_text
from fleet.clock import SystemClock
from fleet.dialects import read_page
from fleet.errors import FleetError, InvalidInput
from fleet.exposition import DEFAULT_CAPS
from fleet.page_totals import node_window
from fleet.readings import PageReading, PageState
from fleet.windows import window

#: A page in one of these states was read; in the others it was not.
_READ = frozenset({PageState.OK, PageState.NO_ENGINE_SERIES, PageState.ROUTER})


class PageUnreadable(FleetError):
    """A file or address gave no page; `state` says why in one word."""

    def __init__(self, source: str, state: str, detail: str, hint: str) -> None:
        super().__init__(f"{source}: {detail}", hint=hint or "Check the path or address", field="source")
        self.source = source
        self.state = state


@click.group()
def metrics() -> None:
    """Read metrics pages and windows between them."""


@metrics.command()
@click.argument("sources", nargs=-1, required=True, metavar="FILE|URL...")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a page.")
@click.option(
    "--deadline",
    "deadline_s",
    type=FiniteRange(0.1, 60),
    default=DEADLINE_S,
    show_default=True,
    help="Seconds each address may take.",
)
def read(sources: tuple[str, ...], as_json: bool, deadline_s: float) -> None:
    """Read pages from files, addresses or - (standard input) and say what they mean.

    All pages are read; the exit code is 1 when one could not be.
    """
    pages = _read_all(sources, deadline_s)
    if as_json:
        click.echo(json.dumps([_json(page) for page in pages], indent=1, allow_nan=False))
    elif readable := [page_text(page) for page in pages if isinstance(page, PageReading)]:
        click.echo("\n\n".join(readable))
    bad = [page for page in pages if isinstance(page, PageUnreadable) or page.state not in _READ]
    for page in bad:
        reason = page.message if isinstance(page, PageUnreadable) else f"{page.source}: {page.state.value}"
        click.echo(f"not read: {reason}. {page.hint}".rstrip(), err=True)
    if bad:
        sys.exit(1)


@metrics.command("window")
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.option("--seconds", type=float, required=True, help="Seconds from one request to the other.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def window_command(before: str, after: str, seconds: float, as_json: bool) -> None:
    """Say what each engine did between two pages: increments, rates a second, quantiles."""
    pages = [_whole(page) for page in _read_all((before, after), DEADLINE_S)]
    windows = window(pages[0], pages[1], seconds)
    node = node_window(pages[0], pages[1], seconds)
    if as_json:
        click.echo(json.dumps(window_json(pages[0], pages[1], windows, node), indent=1, allow_nan=False))
    else:
        click.echo(window_text((*windows, node) if len(windows) > 1 else windows))


def _json(page: PageReading | PageUnreadable) -> dict[str, Any]:
    if isinstance(page, PageUnreadable):
        return failure_json(page.source, page.state, page.message, page.hint)
    return page_json(page)


def _whole(page: PageReading | PageUnreadable) -> PageReading:
    if isinstance(page, PageUnreadable):
        raise page
    return page


def _read_all(sources: Iterable[str], deadline_s: float) -> list[PageReading | PageUnreadable]:
    """Read every source, addresses at once; one that cannot be read does not stop the others.

    Files are read before the loop of the addresses starts: a loop takes the first Ctrl-C for itself, and
    a file may be a pipe in which nothing ever comes.
    """
    names = list(sources)
    if names.count("-") > 1:
        raise InvalidInput("standard input can be read once", field="sources", hint="Give - once")
    files = {name: _file_page(name) for name in names if "://" not in name}
    addresses = [name for name in names if "://" in name]
    fetched = dict(zip(addresses, asyncio.run(_fetched(addresses, deadline_s)), strict=True))
    return [files[name] if name in files else fetched[name] for name in names]


async def _fetched(addresses: list[str], deadline_s: float) -> list[PageReading | PageUnreadable]:
    async with open_session() as session:

        async def one(address: str) -> PageReading | PageUnreadable:
            shown = shown_url(address)
            try:
                page = await fetch_page(session, address, clock=SystemClock(), deadline_s=deadline_s)
            except FetchFailed as problem:
                return PageUnreadable(shown, problem.reason.value, problem.detail, problem.hint)
            return read_page(page.body, source=shown, content_type=page.content_type)

        return list(await asyncio.gather(*(one(address) for address in addresses)))


def _file_page(name: str) -> PageReading | PageUnreadable:
    try:
        return read_page(_file(name), source=name)
    except OSError as problem:
        return PageUnreadable(name, "unreadable", problem.strerror or str(problem), "")


def _file(name: str) -> bytes:
    """Read a file up to one byte over the page cap, so that the reader can tell it is over."""
    wanted = DEFAULT_CAPS.body_bytes + 1
    if name == "-":
        stream: BinaryIO | None = getattr(sys.stdin, "buffer", None)  # None where it is closed
        if stream is None:
            raise OSError(errno.EBADF, "standard input is closed")
        return stream.read(wanted)
    with Path(name).open("rb") as file:
        return file.read(wanted)
