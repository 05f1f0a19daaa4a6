"""A small Kubernetes API server for EndpointSlices: lists in pages, watches, versions, and their failures.

Speaks the part of the API that discovery uses, over real sockets. Prevents: a client that was only ever
tried against its own idea of the API.
Source: Kubernetes documentation, "API Concepts": resource versions, chunked lists, watch, 410 Gone.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests import in_process

PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


def endpoint(address: str, pod: str, **conditions: bool) -> dict[str, Any]:
    return {
        "addresses": [address],
        "conditions": conditions or {"ready": True},
        "nodeName": f"host-of-{pod}",
        "targetRef": {"kind": "Pod", "name": pod},
    }


class KubernetesServer:
    """Slices by name, each change with a version of its own; `history_from` is the oldest version kept."""

    def __init__(self) -> None:
        self.version = 100
        self.slices: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.history_from = 0
        self.token = "first-token"
        self.page_size = 1_000
        self.is_down = False
        self.ends_watches = False  # at once, with nothing in them
        self.lists = 0  # requests for a page of the list
        self.watches: list[str] = []  # the versions watches began at
        self.refused = 0
        self.url = ""
        self._changed = asyncio.Event()
        self._drop = asyncio.Event()

    def put(self, name: str, *endpoints: dict[str, Any], port: int = 8000) -> None:
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.version += 1
        item = {
            "metadata": {
                "name": name,
                "namespace": "serving",
                "resourceVersion": str(self.version),
                "labels": {"kubernetes.io/service-name": "vllm"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": port}, {"name": "metrics", "port": 9000}],
            "endpoints": list(endpoints),
        }
        self.slices[name] = item
        self._tell(kind, item)

    def delete(self, name: str) -> None:
        self.version += 1
        item = self.slices.pop(name)
        item["metadata"]["resourceVersion"] = str(self.version)
        self._tell("DELETED", item)

    def _tell(self, kind: str, item: dict[str, Any]) -> None:
        self.events.append((self.version, kind, item))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def drop_watches(self) -> None:
        """Break every open watch in the middle of a line."""
        drop, self._drop = self._drop, asyncio.Event()
        drop.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.is_down:
            return web.Response(status=503)
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            self.refused += 1
            return web.Response(status=401)
        assert request.query["labelSelector"] == "kubernetes.io/service-name=vllm"
        if request.query.get("watch"):
            return await self._watch(request)
        return self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        self.lists += 1
        start = int(request.query.get("continue", "0"))
        size = min(int(request.query["limit"]), self.page_size)
        names = sorted(self.slices)
        about: dict[str, str] = {"resourceVersion": str(self.version)}
        if start + size < len(names):
            about["continue"] = str(start + size)
        items = [self.slices[name] for name in names[start : start + size]]
        return web.json_response({"kind": "EndpointSliceList", "metadata": about, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        self.watches.append(request.query["resourceVersion"])
        if since < self.history_from:
            gone = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410}
            return web.json_response(gone, status=410)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if self.ends_watches:
            return response
        drop = self._drop
        while not drop.is_set():
            changed = self._changed
            for version, kind, item in [event for event in self.events if event[0] > since]:
                line = json.dumps({"type": kind, "object": item}).encode()
                await response.write(line[:20])  # a line may come in pieces
                await response.write(line[20:] + b"\n")
                since = version
            waiting = [asyncio.ensure_future(event.wait()) for event in (changed, drop)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
        if request.transport is not None and not request.transport.is_closing():
            await response.write(b'{"type": "MODIFIED", "obj')
            request.transport.abort()
        return response


@asynccontextmanager
async def kubernetes_server(tls: ssl.SSLContext | None = None) -> AsyncGenerator[KubernetesServer]:
    """Serve one on a free port."""
    server = KubernetesServer()
    app = web.Application()
    app.add_routes([web.get(PATH, server.answer)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    async with in_process.closed(runner):
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        server.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield server
        finally:
            server.drop_watches()
