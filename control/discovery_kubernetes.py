"""Nodes from Kubernetes: EndpointSlices listed in pages, then watched from the list's resource version.

One task keeps a source's state; whoever asks gets it at once. Times are seconds on the monotonic clock. A
dropped watch goes on from its last version; 410 Gone lists anew; a watch nobody asks about ends itself.
The token file is read at each request, because its token changes hourly. Prevents: pods that came and went
between two polls, a list cut in half taken for a scaled-down fleet, and a task that outlives its source.
Source: Kubernetes documentation, "API Concepts" (efficient detection of changes, retrieving large results
sets in chunks) and EndpointSlice in discovery.k8s.io/v1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import quote, urlencode

import aiohttp
import orjson

from control.discovery_lookups import DEADLINE_S, asked_with
from control.discovery_settings import KubernetesSettings
from control.discovery_targets import TARGETS_MAX, Answer, Found, Remarks, read_labels
from control.fetch import Ask, PageCaps, fetch_page
from fleet.clock import Clock
from fleet.errors import FleetError, InvalidInput, Unavailable

PAGE_SLICES = 200
PAGES_MAX = 100
SLICES_MAX = 20_000
WATCH_S = 60
#: A watch nobody asked about for this long ends.
UNASKED_S = 120.0
#: Without news from the API server for this long the state is no answer any more.
SILENT_S = 3.0 * WATCH_S
_LINE_BYTES = 4 * 1024 * 1024
_CAPS = PageCaps(wire_bytes=32 * 1024 * 1024, decoded_bytes=32 * 1024 * 1024)
_GONE = 410
_FIRST_WAIT_S, _MAX_WAIT_S = 1.0, 30.0
#: A watch that ends sooner is asked for again only after a wait: a proxy or server that cannot watch.
_SHORT_WATCH_S = 5.0

Json = dict[str, Any]


class VersionGone(FleetError):
    """The server does not know the version to go on from: list anew."""


@dataclass(slots=True)
class EndpointWatch:
    """The EndpointSlices of one source, kept up to date by `run` while anybody asks for `answer`."""

    settings: KubernetesSettings
    http: aiohttp.ClientSession
    clock: Clock
    _slices: dict[str, Json] = field(default_factory=dict[str, Json])
    _version: str = ""
    _heard_s: float | None = None  # when the server last said how things stand
    _asked_s: float = 0.0
    _problem: FleetError | None = None
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _rest: bytes = b""
    _task: asyncio.Task[None] | None = None

    async def answer(self) -> Answer:
        """Return the state now. Raises the last problem while there is none, or when it has gone silent."""
        now_s = self._asked_s = self.clock.monotonic_s()
        if self._task is None or self._task.done():
            if self._task is not None:
                self._task.result()  # a bug in it is a bug here
            self._ready.clear()
            self._heard_s, self._version = None, ""
            self._task = asyncio.create_task(self.run())
        if self._heard_s is None:
            try:
                await asyncio.wait_for(self._ready.wait(), DEADLINE_S)
            except TimeoutError:
                raise Unavailable("the Kubernetes API did not answer yet", hint="It is asked on") from None
        if self._heard_s is None or now_s - self._heard_s > SILENT_S:
            raise self._problem or Unavailable("the Kubernetes API has gone silent")
        found = targets_of(self._slices, self.settings.port)
        if self._problem is None:
            return found
        age_s = now_s - self._heard_s
        return Answer(found.found, (*found.remarks, f"as of {age_s:.0f} s ago: {self._problem.message}"))

    async def close(self) -> None:
        """End the watch."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run(self) -> None:
        """List, then watch, until nobody asks any more. Failures are kept as the problem, and retried."""
        wait_s = _FIRST_WAIT_S
        while self.clock.monotonic_s() - self._asked_s < UNASKED_S:
            try:
                if not self._version:
                    await self._list()
                began_s = self.clock.monotonic_s()
                await self._watch()
                if self.clock.monotonic_s() - began_s >= _SHORT_WATCH_S:
                    wait_s = _FIRST_WAIT_S
                    continue
            except VersionGone:
                self._version = ""
            except FleetError as problem:
                self._problem = problem
                self._ready.set()
            await asyncio.sleep(wait_s)
            wait_s = min(_MAX_WAIT_S, 2.0 * wait_s)

    def _heard(self) -> None:
        self._heard_s, self._problem = self.clock.monotonic_s(), None
        self._ready.set()

    async def _list(self) -> None:
        """Read the whole list page by page; it replaces the state only when its last page has come."""
        found: dict[str, Json] = {}
        after = ""
        for _ in range(PAGES_MAX):
            query = {"labelSelector": self.settings.selector, "limit": str(PAGE_SLICES)}
            body = await self._get(query | ({"continue": after} if after else {}))
            about = _object(body.get("metadata"))
            for item in _objects(body.get("items")):
                found[_key(item)] = item
            after, version = str(about.get("continue") or ""), str(about.get("resourceVersion") or "")
            if len(found) > SLICES_MAX:
                raise InvalidInput(f"more than {SLICES_MAX} EndpointSlices", hint="Narrow the selector")
            if not after:
                if not version:
                    raise InvalidInput("the list has no resourceVersion", hint="Is this a Kubernetes API?")
                self._slices, self._version = found, version
                self._heard()
                return
        raise InvalidInput(f"the list goes on after {PAGES_MAX} pages", hint="Narrow the selector")

    async def _get(self, query: Mapping[str, str]) -> Json:
        page = await fetch_page(
            self.http,
            self._address(query),
            clock=self.clock,
            deadline_s=DEADLINE_S,
            caps=_CAPS,
            ask=await self._ask(),
        )
        try:
            body = _object(orjson.loads(page.body))
        except orjson.JSONDecodeError as exc:
            raise InvalidInput("the answer of the Kubernetes API is no JSON") from exc
        _refuse_errors(body, page.status)
        return body

    async def _watch(self) -> None:
        """Take changes as they come until the server ends the watch, as it does after a minute."""
        self._rest = b""
        query = {
            "labelSelector": self.settings.selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_S),
        }
        ask = await self._ask(is_watch=True)
        page = await fetch_page(
            self.http,
            self._address(query),
            clock=self.clock,
            deadline_s=WATCH_S + DEADLINE_S,
            caps=_CAPS,
            ask=ask,
        )
        if page.status == _GONE:
            raise VersionGone("the version is too old")
        self._heard()

    def _take(self, piece: bytes) -> None:
        """Take a piece of the watch: one JSON object a line."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _LINE_BYTES:
            raise InvalidInput(f"a change of more than {_LINE_BYTES} bytes")
        for line in lines:
            if line.strip():
                self._apply(line)

    def _apply(self, line: bytes) -> None:
        try:
            event = _object(orjson.loads(line))
        except orjson.JSONDecodeError as exc:
            raise InvalidInput("a change in the watch is no JSON") from exc
        kind, item = event.get("type"), _object(event.get("object"))
        if kind == "ERROR" or item.get("kind") == "Status":
            _refuse_errors(item, 200)
            raise InvalidInput("the watch reported an error")
        version = str(_object(item.get("metadata")).get("resourceVersion") or "")
        if kind in {"ADDED", "MODIFIED"}:
            self._slices[_key(item)] = item
        elif kind == "DELETED":
            self._slices.pop(_key(item), None)
        elif kind != "BOOKMARK":
            return
        self._version = version or self._version
        if len(self._slices) > SLICES_MAX:
            raise InvalidInput(f"more than {SLICES_MAX} EndpointSlices", hint="Narrow the selector")
        self._heard()

    async def _ask(self, *, is_watch: bool = False) -> Ask:
        plain = await asked_with(
            self.settings.token_file, self.settings.ca_file, {"Accept": "application/json"}
        )
        statuses = frozenset({200, _GONE})
        return Ask(
            headers=plain.headers, tls=plain.tls, statuses=statuses, sink=self._take if is_watch else None
        )

    def _address(self, query: Mapping[str, str]) -> str:
        root = self.settings.api_url.rstrip("/")
        space = quote(self.settings.namespace, safe="")
        return (
            f"{root}/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices?"
            f"{urlencode(query, quote_via=quote)}"
        )


def _refuse_errors(body: Json, status: int) -> None:
    """Raise what a Status object says."""
    code = body.get("code") if body.get("kind") == "Status" else None
    if status == _GONE or code == _GONE or body.get("reason") == "Expired":
        raise VersionGone("the version is too old")
    if code is not None:
        raise Unavailable(f"the Kubernetes API answered with code {code!s:.20}")


def _object(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _objects(value: object) -> list[Json]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("Json", item) for item in items if isinstance(item, dict)]


def _key(item: Json) -> str:
    about = _object(item.get("metadata"))
    return f"{about.get('namespace', '')}/{about.get('name', '')}"


def targets_of(slices: Mapping[str, Json], port: str | None) -> Answer:
    """Return the endpoints that are not terminating, one target each at the port of that name or number.

    Without `port` the slice's first. A condition `ready` that is not given counts as ready, as
    EndpointSlice says. One that is not ready stays the node it was, for its alerts are wanted then, and
    becomes none before. Labels: pod, node, zone, namespace, service and slice.
    """
    found: dict[str, Found] = {}
    remarks = Remarks()
    for key in sorted(slices):
        item = slices[key]
        number = _port(_objects(item.get("ports")), port)
        if number is None:
            remarks.add(f"slice {key[:80]} has no port {port or 'at all'}")
            continue
        for endpoint in _objects(item.get("endpoints")):
            state = _object(endpoint.get("conditions"))
            addresses = endpoint.get("addresses")
            if state.get("terminating") is True:
                continue
            first = cast("list[Any]", addresses)[0] if isinstance(addresses, list) and addresses else None
            if isinstance(first, str):
                host = f"[{first}]" if ":" in first else first
                at, is_ready = f"{host}:{number}", state.get("ready") is not False
                found.setdefault(at, Found(at, _labels(item, endpoint), is_ready=is_ready))
        if len(found) > TARGETS_MAX:
            raise InvalidInput(f"more than {TARGETS_MAX} endpoints", hint="Narrow the selector")
    return Answer(tuple(found.values()), remarks.all())


def _port(ports: list[Json], wanted: str | None) -> int | None:
    for port in ports:
        number = port.get("port")
        if isinstance(number, int) and wanted in {None, port.get("name"), str(number)}:
            return number
    return int(wanted) if wanted is not None and wanted.isdigit() and not ports else None


def _labels(item: Json, endpoint: Json) -> dict[str, str]:
    about, target = _object(item.get("metadata")), _object(endpoint.get("targetRef"))
    labels = {
        "pod": target.get("name") if target.get("kind") == "Pod" else None,
        "node": endpoint.get("nodeName"),
        "zone": endpoint.get("zone"),
        "namespace": about.get("namespace"),
        "service": _object(about.get("labels")).get("kubernetes.io/service-name"),
        "slice": about.get("name"),
    }
    return read_labels({name: value for name, value in labels.items() if value is not None})
