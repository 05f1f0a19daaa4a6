"""A small gateway for tests: a real HTTP server that takes assignments by the rule of `fleet.messages`.

It keeps nothing but the assignment in force; faults are switched on by attributes.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from fleet.acceptance import is_news
from fleet.errors import FleetError, InvalidPolicy, StaleAssignment
from fleet.messages import Assignment, GatewayStatus, LastRejection, QueueState, parse_assignment
from fleet.outcomes import TIERS
from tests import in_process
from tests.oracles import history as h

TOKEN = "a-token-of-the-tests"


class SmallGateway:
    """One gateway. `url` is set while it serves."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.boot_id = uuid.uuid4().hex
        self.held: Assignment | None = None
        self.pushes: list[tuple[int, int]] = []  # (epoch, generation) of every push that arrived
        self.accepted: list[tuple[int, int]] = []
        self.rejects: str | None = None  # JSON pointer it pretends not to support
        self.lacks: tuple[str, ...] = ()  # keys that lead to a field its release does not know
        self.loses_answers = 0  # so many pushes are applied and then answered by a cut connection
        self.is_deaf = False  # takes connections and never answers
        self.last_rejection: LastRejection | None = None
        self.url = ""
        self.seen: h.History | None = None  # where what happens here is written down

    def restart(self, *, forgets: bool) -> None:
        """Begin a new life; without its disk it holds nothing."""
        self.boot_id = uuid.uuid4().hex
        if forgets:
            self.held = None
        self._note(h.Booted(self.name, self.running(), self.running()))

    def replace_folder(self, held: Assignment) -> None:
        """Let somebody put another assignment in its folder, behind everybody's back."""
        self.restart(forgets=True)
        self.held = held
        self._note(h.Booted(self.name, self.running(), self.running()))

    def running(self) -> h.Running:
        """Return what it runs."""
        held = self.held
        if held is None:
            return h.Running(self.boot_id, 0, 0, None)
        return h.Running(self.boot_id, held.epoch, held.generation, held.digest(), held.revision)

    def _note(self, fact: object) -> None:
        if self.seen is not None:
            self.seen.add(fact)

    def status(self) -> GatewayStatus:
        held = self.held
        return GatewayStatus(
            gateway=self.name,
            boot_id=self.boot_id,
            version="0.1.0",
            ready=held is not None,
            epoch=held.epoch if held else 0,
            generation=held.generation if held else 0,
            revision=held.revision if held else None,
            digest=held.digest() if held else None,
            from_disk=False,
            shares=held.shares if held else {},
            in_flight_requests=0,
            in_flight_tokens=0,
            queues={tier: QueueState(requests=0, tokens=0, oldest_wait_s=0.0) for tier in TIERS},
            nodes_usable=0,
            nodes_total=len(held.nodes) if held else 0,
            usage_spool="spool",
            usage_last_seq=0,
            clock_at_s=0.0,
            started_at_s=0.0,
            last_rejection=self.last_rejection,
        )

    def take(self, body: bytes) -> None:
        """Apply the acceptance rule. Raises what a gateway answers with 409 or 422."""
        before, sent, answer = self.running(), None, "invalid"
        try:
            self._look_for_unknown(json.loads(body))
            sent = parse_assignment(body)
            answer = "taken" if self._take(sent) else "same"
        except StaleAssignment:
            answer = "stale"
            raise
        finally:
            numbers = (0, 0, None) if sent is None else (sent.epoch, sent.generation, sent.digest())
            after, has_reason = self.running(), answer != "invalid" or self.last_rejection is not None
            self._note(h.Arrived(self.name, "", *numbers, answer, before, after, has_reason))

    def _look_for_unknown(self, document: Any) -> None:
        """Refuse a document with a field that is not known, in the words of an older release."""
        found = document
        for key in self.lacks:
            found = found.get(key) if isinstance(found, dict) else None
        if self.lacks and found is not None:
            pointer = "/" + "/".join(self.lacks)
            message = f"{pointer}: Extra inputs are not permitted"
            self.last_rejection = LastRejection(
                revision=None, generation=document["generation"], at_s=0.0, message=message, pointer=pointer
            )
            raise InvalidPolicy(message, field=pointer)

    def _take(self, sent: Assignment) -> bool:
        """Say whether it changed what is held."""
        self.pushes.append((sent.epoch, sent.generation))
        if self.rejects is not None:
            self.last_rejection = LastRejection(
                revision=sent.revision,
                generation=sent.generation,
                at_s=0.0,
                message="not supported here",
                pointer=self.rejects,
            )
            raise InvalidPolicy("not supported here", field=self.rejects)
        held_digest = None if self.held is None else self.held.digest()
        if not is_news(sent, sent.digest(), self.held, held_digest):
            return False
        self.held = sent
        self.accepted.append((sent.epoch, sent.generation))
        return True

    async def _status(self, request: web.Request) -> web.StreamResponse:
        await self._listen(request)
        self._note(h.Heard(self.name, self.running()))
        return web.json_response(body=self.status().model_dump_json(by_alias=True).encode())

    async def _assignment(self, request: web.Request) -> web.StreamResponse:
        await self._listen(request)
        try:
            self.take(await request.read())
        except FleetError as exc:
            code = 409 if isinstance(exc, StaleAssignment) else 422
            return web.json_response(exc.as_dict(), status=code)
        if self.loses_answers:
            self.loses_answers -= 1
            assert request.transport is not None
            request.transport.abort()
            self._note(h.Heard(self.name, None))
        else:
            self._note(h.Heard(self.name, self.running()))
        return web.json_response(body=self.status().model_dump_json(by_alias=True).encode())

    async def _listen(self, request: web.Request) -> None:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise web.HTTPUnauthorized(text=json.dumps({"message": "wrong token"}))
        if self.is_deaf:
            self._note(h.Heard(self.name, None))
            await asyncio.Event().wait()

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncGenerator[SmallGateway]:
        """Serve on a free port of the loopback until the block ends."""
        app = web.Application(client_max_size=8_000_000)
        app.router.add_get("/admin/status", self._status)
        app.router.add_put("/admin/assignment", self._assignment)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        async with in_process.closed(runner):
            site = web.TCPSite(runner, "127.0.0.1", port)
            await site.start()
            host, bound = runner.addresses[0][:2]
            self.url = f"http://{host}:{bound}"
            yield self
