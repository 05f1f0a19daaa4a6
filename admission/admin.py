"""The admin API: take assignments, tell the state, hand out usage, drain.

Paths and bodies are those of `fleet.messages`. An assignment is on disk before it is in force and in
force before it is acknowledged; pushes are taken one at a time. Prevents: an older push winning, a
rejected one changing anything, and usage handed out that a crash could take back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

import orjson
from pydantic import BaseModel, ValidationError

from admission import VERSION, lastgood
from admission.answers import JSON_TYPE, Answer
from admission.estimate_gauges import prompt_fits
from admission.explaining import DECISIONS_PATH, decision_answer
from admission.identity import bearer, is_same_secret
from admission.inbound import Inbound
from admission.nodes import NodeBook
from admission.quota_gauges import over_quota
from admission.quota_lease import MAX_LEASE_BYTES, answer_lease
from admission.state import GatewayState
from admission.unsupported import unsupported
from admission.usage import UsageFlusher
from fleet.acceptance import is_news
from fleet.clock import Clock
from fleet.ejection import Stage
from fleet.errors import (
    FleetError,
    InvalidInput,
    InvalidPolicy,
    NotFound,
    StaleAssignment,
    Unauthenticated,
    Unavailable,
)
from fleet.messages import (
    MAX_ASSIGNMENT_BYTES,
    Assignment,
    GatewayStatus,
    LastRejection,
    NodeOut,
    QueueState,
    UsageAck,
    parse_assignment,
)
from fleet.outcomes import TIERS

log = logging.getLogger(__name__)

MAX_USAGE_RECORDS = 10_000
MAX_APART = 200  # nodes named in a status
_STATUS: dict[type[FleetError], int] = {
    InvalidPolicy: 422,
    NotFound: 404,
    StaleAssignment: 409,
    Unauthenticated: 401,
    Unavailable: 503,
}


class _Numbers(BaseModel):
    """What a rejected assignment called itself, where it said so."""

    revision: int | None = None
    generation: int | None = None


class Admin:
    """Handles `/admin` requests of one gateway."""

    def __init__(self, state: GatewayState, nodes: NodeBook, flusher: UsageFlusher) -> None:
        self._state = state
        self._nodes = nodes
        self._flusher = flusher
        self._pushing = asyncio.Lock()

    async def handle(self, request: Inbound) -> Answer:
        """Return the answer to one admin request. Raises ClientLeft."""
        try:
            self._authenticate(request)
            match request.method, request.path:
                case "PUT", "/admin/assignment":
                    return await self._assign(await request.body(MAX_ASSIGNMENT_BYTES))
                case "GET", "/admin/status":
                    return self._status()
                case "GET", "/admin/usage":
                    return await self._usage(request.query)
                case "POST", "/admin/usage/ack":
                    return await self._acknowledge(await request.body(4_096))
                case "POST", "/admin/quota":
                    body = await request.body(MAX_LEASE_BYTES)
                    return Answer(200, await answer_lease(self._state.quotas, body))
                case "GET", path if path.startswith(DECISIONS_PATH):
                    return decision_answer(self._state, path.removeprefix(DECISIONS_PATH))
                case "POST", "/admin/drain":
                    log.info("asked to drain")
                    self._state.drain()
                    return self._status()
                case _:
                    return _error_answer(404, InvalidInput("no such admin path or method"))
        except FleetError as exc:
            return _error_answer(_STATUS.get(type(exc), 400), exc)

    def _authenticate(self, request: Inbound) -> None:
        """Raise Unauthenticated unless the admin token came along.

        Without a token the listener is on loopback; then a browser's cross-site call is still refused.
        """
        expected = self._state.settings.admin_token
        if expected is None:
            if any(name in (b"origin", b"sec-fetch-site") for name, _ in request.headers):
                raise Unauthenticated("a browser may not call this", hint="Set an admin token")
        elif not is_same_secret(bearer(request.headers), expected.get_secret_value()):
            raise Unauthenticated(
                "the admin token is wrong", hint="Send Authorization: Bearer <admin token>"
            )

    # -- assignment ---------------------------------------------------------------------------------

    async def _assign(self, body: bytes) -> Answer:
        async with self._pushing:
            try:
                assignment, digest = await asyncio.to_thread(self._read, body)
                is_new = is_news(assignment, digest, self._state.assignment, self._state.digest)
            except InvalidPolicy as exc:
                self._reject(body, exc)
                raise
            if is_new:
                await self._put_in_force(assignment, digest)
            self._state.is_from_disk = False
        return self._status()

    def _read(self, body: bytes) -> tuple[Assignment, str]:
        assignment = parse_assignment(body)
        if assignment.gateway != self._state.settings.name:
            raise InvalidPolicy(
                f"the assignment is for gateway {assignment.gateway!r}, "
                f"this one is {self._state.settings.name!r}",
                field="/gateway",
                hint="Correct the gateway's address or its --name",
            )
        names: set[str] = set()
        for index, node in enumerate(assignment.nodes):
            _check_address(f"/nodes/{index}/base_url", node.base_url)
            if node.name in names:
                raise InvalidPolicy(f"node {node.name!r} is listed twice", field=f"/nodes/{index}/name")
            names.add(node.name)
        return assignment, assignment.digest()

    async def _put_in_force(self, assignment: Assignment, digest: str) -> None:
        try:
            await asyncio.to_thread(lastgood.save, self._state.settings.state_dir, assignment)
        except OSError as exc:
            raise Unavailable(
                f"the assignment cannot be kept on disk: {exc.strerror}", hint="Free space in --state-dir"
            ) from exc
        self._state.adopt(assignment, digest, is_from_disk=False)
        log.info(
            "assignment in force",
            extra={"epoch": assignment.epoch, "generation": assignment.generation, "digest": digest[:12]},
        )

    def _reject(self, body: bytes, exc: InvalidPolicy) -> None:
        try:
            numbers = _Numbers.model_validate_json(body[:MAX_ASSIGNMENT_BYTES])
        except ValidationError:
            numbers = _Numbers()
        self._state.last_rejection = LastRejection(
            revision=numbers.revision,
            generation=numbers.generation,
            at_s=self._state.clock.now().timestamp(),
            message=exc.message[:2_000],
            pointer=exc.field or "",
        )
        log.warning("assignment rejected", extra={"pointer": exc.field, "reason": exc.message})

    # -- status and usage ---------------------------------------------------------------------------

    def _status(self) -> Answer:
        return Answer(200, status_of(self._state, self._nodes).model_dump_json(by_alias=True).encode())

    async def _usage(self, query: bytes) -> Answer:
        asked = parse_qs(query.decode("ascii", "replace"))
        after = _whole_number(asked, "after", 0, 0, 2**62)
        limit = _whole_number(asked, "limit", 1_000, 1, MAX_USAGE_RECORDS)
        spool = self._state.spool
        await self._flusher.flush()
        try:
            records = await asyncio.to_thread(spool.read, after, limit)
        except OSError as exc:
            raise Unavailable(f"the usage spool cannot be read: {exc.strerror}") from exc
        head = b'{"schema":"rhodeck.usage/1","gateway":"%s","spool":"%s","last_seq":%d,"records":[' % (
            self._state.settings.name.encode(),
            spool.spool_id.encode(),
            spool.synced_seq,
        )
        return Answer(200, head + b",".join(records) + b"]}")

    async def _acknowledge(self, body: bytes) -> Answer:
        try:
            ack = UsageAck.model_validate_json(body)
        except ValidationError as exc:
            raise InvalidInput("not a usage acknowledgement", hint='{"spool": "...", "seq": N}') from exc
        spool = self._state.spool
        if ack.spool != spool.spool_id:
            raise InvalidInput(
                f"spool {ack.spool[:64]!r} is acknowledged but this one is {spool.spool_id}",
                field="/spool",
                hint="The spool was lost and began anew; read it from 0",
            )
        self._state.journal.flush()
        await asyncio.to_thread(spool.acknowledge, ack.seq)
        self._state.journal.flush()
        return Answer(200, b"{}")


def status_of(state: GatewayState, nodes: NodeBook) -> GatewayStatus:
    """Return what this gateway runs now."""
    held = state.assignment
    snapshot = state.gate.snapshot(state.clock.monotonic_s())
    queues = {
        tier: QueueState(requests=queue.requests, tokens=queue.tokens, oldest_wait_s=queue.oldest_wait_s)
        for tier, queue in ((tier, snapshot.queues[tier]) for tier in TIERS)
    }
    conditions = nodes.conditions(snapshot.nodes)
    return GatewayStatus(
        gateway=state.settings.name,
        boot_id=state.boot_id,
        version=VERSION,
        ready=state.is_ready,
        draining=state.is_draining,
        epoch=held.epoch if held else 0,
        generation=held.generation if held else 0,
        revision=held.revision if held else None,
        digest=state.digest,
        from_disk=state.is_from_disk,
        shares=held.shares if held else {},
        over=over_quota(snapshot),
        prompts=prompt_fits(state.estimator),
        unsupported=unsupported(state),
        in_flight_requests=snapshot.in_flight_requests,
        in_flight_tokens=snapshot.in_flight_tokens,
        queues=queues,
        nodes_usable=sum(1 for because in conditions.values() if not because),
        nodes_total=len(conditions),
        nodes_apart=_apart(nodes, conditions),
        nodes_out=_out(nodes, state.clock),
        usage_spool=state.spool.spool_id,
        usage_last_seq=state.spool.last_seq,
        clock_at_s=state.clock.now().timestamp(),
        started_at_s=state.started_at_s,
        last_rejection=state.last_rejection,
    )


def _apart(nodes: NodeBook, conditions: Mapping[str, str]) -> dict[str, str]:
    """Return by node why it takes no work, or that it is on trial; at most `MAX_APART`."""
    found = {
        name: because or "on trial"
        for name, because in conditions.items()
        if because or nodes.is_on_trial(name)
    }
    return dict(sorted(found.items())[:MAX_APART])


def _out(nodes: NodeBook, clock: Clock) -> dict[str, NodeOut]:
    """Return by node why it was ejected, since when and until when; at most `MAX_APART`."""
    now_s, wall_s = clock.monotonic_s(), clock.now().timestamp()
    found = {
        name: NodeOut(
            because=record.because.value,
            since_s=wall_s + record.out_since_s - now_s,
            until_s=wall_s + record.out_until_s - now_s,
        )
        for name, record in nodes.outliers
        if record.because is not None and record.stage(now_s) is not Stage.IN
    }
    return dict(sorted(found.items())[:MAX_APART])


def _check_address(pointer: str, url: str) -> None:
    """Raise InvalidPolicy unless `url` is http(s)://host:port and nothing more."""
    try:
        parts = urlsplit(url)
        is_plain = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port is not None
            and parts.path in ("", "/")
            and not (parts.query or parts.fragment or parts.username or parts.password)
        )
    except ValueError:
        is_plain = False
    if not is_plain or any(character.isspace() or not character.isprintable() for character in url):
        raise InvalidPolicy(
            f"{pointer}: a node's address must be http(s)://host:port without user, path or query",
            field=pointer,
        )


def _whole_number(asked: dict[str, list[str]], name: str, default: int, low: int, high: int) -> int:
    values = asked.get(name, [str(default)])
    if len(values) != 1 or not values[0].isascii() or not values[0].isdigit():
        raise InvalidInput(f"{name} must be one whole number", field=name)
    number = int(values[0][:20])
    if not low <= number <= high:
        raise InvalidInput(f"{name} is {number}; it must be from {low} to {high}", field=name)
    return number


def _error_answer(status: int, exc: FleetError) -> Answer:
    return Answer(status, orjson.dumps(exc.as_dict()), (), JSON_TYPE)
