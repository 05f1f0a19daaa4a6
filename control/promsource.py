"""Asks a Prometheus-compatible server: raw samples by PromQL, and its targets.

One client for Prometheus, VictoriaMetrics, Thanos and Mimir. Addresses pass the same guard as nodes'.
Secrets are read from their files at each call, so that they can be rotated; they are in no error and no
log line. Times are seconds. Prevents: a source's address that reaches a metadata service, an answer that
fills the memory, and a token that outlives its replacement.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import aiohttp

from control.fetch import Ask, FetchFailed, PageCaps, fetch_page
from fleet.clock import Clock
from fleet.errors import FleetError, InvalidInput, Unavailable
from fleet.promql import Answer, BadAnswer, read_answer, read_data

#: Bytes of one answer, packed or not. 25 nodes of 500 series give about 2 MB a scrape.
ANSWER_BYTES = 64 * 1024 * 1024
SECRET_BYTES = 16 * 1024
TARGETS_MAX = 20_000
#: Statuses that come with the server's own words. Source: Prometheus documentation, HTTP API.
_EXPLAINED = frozenset({200, 400, 422, 429, 500, 503})
_CAPS = PageCaps(wire_bytes=ANSWER_BYTES, decoded_bytes=ANSWER_BYTES, ratio=1_000)


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """How one source is reached and whose series are asked for. `matchers` are finished PromQL matchers."""

    name: str
    url: str
    instance_label: str = "instance"
    matchers: tuple[str, ...] = ()
    token_file: Path | None = None
    basic_file: Path | None = None
    ca_file: Path | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class PromTarget:
    """One active target of a source: where it scrapes, under which labels, and how that goes."""

    labels: dict[str, str]
    scrape_url: str
    health: str  # "up" | "down" | "unknown"
    last_error: str
    discovered: dict[str, str]  # labels before relabelling


class PromClient:
    """One source's query API. Shares the HTTP session of its owner; lives in one event loop."""

    def __init__(self, http: aiohttp.ClientSession, clock: Clock, settings: SourceSettings) -> None:
        self.settings = settings
        self._http = http
        self._clock = clock

    async def query(self, query: str, *, at_s: float | None = None, deadline_s: float = 5.0) -> Answer:
        """Return the answer to an instant query, evaluated at `at_s` (Unix seconds) or the server's now.

        Raises Unavailable (cannot be reached, too slow, too large), QueryRefused, BadAnswer, InvalidInput
        (a secret's file cannot be read).
        """
        # dedup=false: Thanos would switch between replicas inside one page
        form = {"query": query, "dedup": "false", "timeout": f"{max(1, round(deadline_s))}s"}
        if at_s is not None:
            form["time"] = f"{at_s:.3f}"
        body = await self._ask("/api/v1/query", form, deadline_s)
        return await asyncio.to_thread(read_answer, body)

    async def targets(self, *, deadline_s: float = 10.0) -> list[PromTarget]:
        """Return the active targets. Raises as `query`; VictoriaMetrics without scraping has none."""
        body = await self._ask("/api/v1/targets?state=active", None, deadline_s)
        data = await asyncio.to_thread(read_data, body)
        found = data.get("activeTargets")
        if not isinstance(found, list):
            raise BadAnswer("the answer lists no targets", hint="Does this server scrape by itself?")
        listed = cast("list[object]", found)
        if len(listed) > TARGETS_MAX:
            raise BadAnswer(f"{len(listed)} targets, over {TARGETS_MAX}", hint="Use a narrower source")
        return [_target(item) for item in listed]

    async def _ask(self, path: str, form: dict[str, str] | None, deadline_s: float) -> bytes:
        settings = self.settings
        headers = await asyncio.to_thread(_headers, settings)
        tls = None if settings.ca_file is None else await asyncio.to_thread(_trust, settings.ca_file)
        ask = Ask(
            headers={**headers, "Accept": "application/json", "Accept-Encoding": "gzip"},
            form=form,
            statuses=_EXPLAINED,
            tls=tls,
        )
        try:
            page = await fetch_page(
                self._http,
                settings.url + path,
                clock=self._clock,
                deadline_s=deadline_s,
                caps=_CAPS,
                ask=ask,
            )
        except FetchFailed as problem:
            raise Unavailable(
                f"source {settings.name}: {problem.detail}",
                hint=_hint_for(problem),
                field=problem.reason.value,
            ) from problem
        if page.status in (500, 503) and not page.body.lstrip().startswith(b"{"):
            raise Unavailable(f"source {settings.name} answered with status {page.status}")
        return page.body


def _hint_for(problem: FetchFailed) -> str:
    if "status 401" in problem.detail or "status 403" in problem.detail:
        return "Give the source a token or password file that this server accepts"
    if "status 404" in problem.detail:
        return "Is a path missing in the address, such as /prometheus or /select/0/prometheus?"
    return problem.hint or "Look at the server and the way to it"


def _target(item: object) -> PromTarget:
    if not isinstance(item, dict):
        raise BadAnswer("a target is not an object", hint="Is this a Prometheus-compatible server?")
    fields = cast("dict[str, object]", item)
    return PromTarget(
        labels=_strings(fields.get("labels")),
        scrape_url=str(fields.get("scrapeUrl", ""))[:500],
        health=str(fields.get("health", "unknown"))[:20],
        last_error=str(fields.get("lastError", ""))[:500],
        discovered=_strings(fields.get("discoveredLabels")),
    )


def _strings(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(k)[:200]: str(v)[:500] for k, v in cast("dict[object, object]", value).items()}


def _headers(settings: SourceSettings) -> dict[str, str]:
    """Return what proves who we are. Raises InvalidInput without repeating what the file holds."""
    headers: dict[str, str] = {}
    if settings.token_file is not None:
        headers["Authorization"] = f"Bearer {_secret(settings.token_file)}"
    elif settings.basic_file is not None:
        pair = _secret(settings.basic_file)
        if ":" not in pair:
            raise InvalidInput(
                f"{settings.basic_file} does not hold user:password", field="basic_file", hint="One line"
            )
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    if settings.tenant is not None:
        headers["X-Scope-OrgID"] = settings.tenant
    return headers


def _secret(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(SECRET_BYTES).strip()
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "it is not text"
        raise InvalidInput(
            f"the secret file {path} cannot be read: {why}", hint="Check the path and its permissions"
        ) from None
    if not text or not text.isascii() or not text.isprintable():
        raise InvalidInput(f"the secret file {path} does not hold one line of text", hint="Write it anew")
    return text


def _trust(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as problem:
        raise InvalidInput(
            f"the certificates in {ca_file} cannot be used: {problem}", hint="Give a PEM file"
        ) from None


async def ask_all(
    client: PromClient, queries: Sequence[tuple[str, float | None]], *, deadline_s: float, at_once: int = 4
) -> list[Answer | FleetError]:
    """Ask several queries, `at_once` at a time, all within `deadline_s`. A failure takes its place.

    What came in time stays, also where another answer did not.
    """
    gate = asyncio.Semaphore(at_once)
    late = Unavailable(f"source {client.settings.name}: no complete answer within {deadline_s:g} s")
    answers: list[Answer | FleetError] = [late for _ in queries]

    async def one(place: int, query: str, at_s: float | None) -> None:
        async with gate:
            try:
                answers[place] = await client.query(query, at_s=at_s, deadline_s=deadline_s)
            except FleetError as problem:
                answers[place] = problem

    with suppress(TimeoutError):
        async with asyncio.timeout(deadline_s):
            await asyncio.gather(*(one(i, query, at_s) for i, (query, at_s) in enumerate(queries)))
    return answers
