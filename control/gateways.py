"""Calls to a gateway's admin API: read its status, push an assignment, take its usage.

Every call has a deadline (seconds), a cap on the answer's size, no redirects and no proxies from the
environment. What a gateway answers is checked before anything is believed. Prevents: a slow or hostile
answer that stalls the loop, and the admin token sent to an address a redirect chose.
"""

from __future__ import annotations

import errno
import json
import socket
from ipaddress import ip_address
from typing import Any, cast
from urllib.parse import quote

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from pydantic import ValidationError

from control.fetch import is_allowed
from fleet.decision import Decision
from fleet.errors import FleetError, Forbidden, InvalidPolicy, NotFound, StaleAssignment, Unavailable
from fleet.messages import (
    MAX_COUNTER,
    GatewayStatus,
    QuotaLease,
    QuotaReport,
    UsageAck,
    UsagePage,
)

MAX_ANSWER_BYTES = 4_000_000
MAX_SHOWN_CHARACTERS = 500


class GuardedResolver(AbstractResolver):
    """Resolves host names and leaves out addresses nobody may be sent the admin token at."""

    def __init__(self) -> None:
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        allowed = [one for one in found if is_allowed(ip_address(one["host"].partition("%")[0]))]
        if not allowed:
            raise OSError(errno.EHOSTUNREACH, f"{host} stands for no address that may be called")
        return allowed

    async def close(self) -> None:
        await self._inner.close()


def new_session() -> aiohttp.ClientSession:
    """Return a session for calls to gateways. Open it in the event loop that uses it; close it there."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, limit_per_host=4, ttl_dns_cache=10, resolver=GuardedResolver()
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,
    )


async def status(
    http: aiohttp.ClientSession, name: str, url: str, *, token: str, deadline_s: float
) -> GatewayStatus:
    """Return what gateway `name` at `url` runs now.

    Raises Unavailable if it cannot be reached or answers something else, Forbidden for a wrong token.
    """
    code, body = await _call(http, "GET", f"{url}/admin/status", token=token, deadline_s=deadline_s)
    if code != 200:
        raise _unexpected(name, code, body)
    return _checked(name, body)


async def push(
    http: aiohttp.ClientSession, name: str, url: str, body: bytes, *, token: str, deadline_s: float
) -> GatewayStatus:
    """Send gateway `name` at `url` its assignment, JSON as `Target.body` has it; return what it led to.

    Raises StaleAssignment if the gateway holds something newer, InvalidPolicy with the JSON pointer if it
    refuses the content, Unavailable if the outcome is unknown (sending again is harmless), Forbidden.
    """
    target = f"{url}/admin/assignment"
    code, answer = await _call(http, "PUT", target, token=token, deadline_s=deadline_s, data=body)
    if code == 200:
        return _checked(name, answer)
    message, pointer = _said(answer)
    if code == 409:
        raise StaleAssignment(
            f"gateway {name} refused the assignment as stale: {message}",
            hint="Something newer was sent meanwhile; nothing to do",
        )
    if code == 422:
        raise InvalidPolicy(message or "refused without a reason", field=pointer)
    raise _unexpected(name, code, answer)


async def lease(
    http: aiohttp.ClientSession, name: str, url: str, sent: QuotaLease, *, token: str, deadline_s: float
) -> QuotaReport | None:
    """Send gateway `name` a quota lease; return what it then holds, None if its release knows no leases.

    Raises StaleAssignment if a newer controller lends to it, Unavailable if the outcome is unknown or it
    took nothing, Forbidden for a wrong token.
    """
    data = sent.model_dump_json(by_alias=True, exclude_defaults=True).encode()
    code, answer = await _call(
        http, "POST", f"{url}/admin/quota", token=token, deadline_s=deadline_s, data=data
    )
    if code == 404:
        return None
    if code == 409:
        raise StaleAssignment(f"gateway {name} refused the lease as stale: {_said(answer)[0]}")
    if code != 200:
        raise _unexpected(name, code, answer)
    try:
        report = QuotaReport.model_validate_json(answer)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        where = "/".join(str(part) for part in first["loc"])
        raise Unavailable(_shown(f"its answer is not a quota report: {where}: {first['msg']}")) from exc
    if report.gateway != name:
        raise Unavailable(f"a gateway called {report.gateway} answers at the address of {name}")
    return report


async def usage(
    http: aiohttp.ClientSession,
    name: str,
    url: str,
    *,
    after: int,
    limit: int,
    token: str,
    deadline_s: float,
) -> UsagePage:
    """Return at most `limit` usage records of gateway `name` after sequence number `after`.

    Raises Unavailable if it cannot be reached or answers something else, Forbidden for a wrong token.
    """
    target = f"{url}/admin/usage?after={after}&limit={limit}"
    code, body = await _call(http, "GET", target, token=token, deadline_s=deadline_s)
    if code != 200:
        raise _unexpected(name, code, body)
    try:
        page = UsagePage.model_validate_json(body)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        where = "/".join(str(part) for part in first["loc"])
        raise Unavailable(_shown(f"its answer is not a page of usage: {where}: {first['msg']}")) from exc
    numbers = [record.seq for record in page.records]
    if page.gateway != name or numbers != sorted(set(numbers)) or (numbers and numbers[0] <= after):
        raise Unavailable(f"its page of usage is not {name}'s records after {after}, in order")
    return page


async def decision(
    http: aiohttp.ClientSession, name: str, url: str, request_id: str, *, token: str, deadline_s: float
) -> Decision:
    """Return what gateway `name` decided about a request.

    Raises NotFound if it does not keep it (any more), Unavailable, Forbidden.
    """
    target = f"{url}/admin/decisions/{quote(request_id, safe='')}"
    code, body = await _call(http, "GET", target, token=token, deadline_s=deadline_s)
    if code == 404:
        message, _ = _said(body)
        hint = "Look for the answer's x-request-id header; only the last requests are kept"
        raise NotFound(message or "it does not know the request", hint=hint)
    if code != 200:
        raise _unexpected(name, code, body)
    try:
        return Decision.model_validate_json(body)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        where = "/".join(str(part) for part in first["loc"])
        raise Unavailable(_shown(f"its answer is not a decision: {where}: {first['msg']}")) from exc


async def acknowledge_usage(
    http: aiohttp.ClientSession, name: str, url: str, ack: UsageAck, *, token: str, deadline_s: float
) -> None:
    """Tell gateway `name` that everything up to `ack.seq` is committed. Sending again is harmless."""
    data = ack.model_dump_json().encode()
    code, body = await _call(
        http, "POST", f"{url}/admin/usage/ack", token=token, deadline_s=deadline_s, data=data
    )
    if code != 200:
        raise _unexpected(name, code, body)


async def _call(
    http: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    token: str,
    deadline_s: float,
    data: bytes | None = None,
) -> tuple[int, bytes]:
    headers = {
        "Authorization": f"Bearer {token}",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
    }
    if data is not None:
        headers["Content-Type"] = "application/json"
    try:
        async with http.request(
            method,
            url,
            data=data,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=deadline_s),
        ) as answer:
            body = bytearray()
            async for chunk in answer.content.iter_chunked(65_536):
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise Unavailable(f"its answer is over {MAX_ANSWER_BYTES} bytes")
            return answer.status, bytes(body)
    except TimeoutError as exc:
        raise Unavailable(f"no answer within {deadline_s:g} s") from exc
    except aiohttp.ClientConnectorError as exc:
        why = (
            "connection refused" if isinstance(exc.os_error, ConnectionRefusedError) else str(exc.os_error)
        )
        raise Unavailable(_shown(f"cannot be connected to: {why}")) from exc
    except (aiohttp.ClientError, OSError, ValueError) as exc:
        raise Unavailable(_shown(f"{type(exc).__name__}: {exc}")) from exc


def _checked(name: str, body: bytes) -> GatewayStatus:
    try:
        answer = GatewayStatus.model_validate_json(body)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        where = "/".join(str(part) for part in first["loc"])
        raise Unavailable(
            _shown(f"its answer is not a gateway's status: {where}: {first['msg']}"),
            hint="Check that the address is a gateway of this release",
        ) from exc
    if answer.gateway != name:
        raise Unavailable(
            f"a gateway called {answer.gateway} answers at the address of {name}",
            hint="Correct the address, or the gateway's own name",
        )
    if not 0 <= answer.epoch <= MAX_COUNTER or not 0 <= answer.generation <= MAX_COUNTER:
        raise Unavailable(
            f"it reports epoch {answer.epoch}, generation {answer.generation}: outside 0..{MAX_COUNTER}",
            hint="Empty the gateway's last-good file and start it again",
        )
    return answer


def _unexpected(name: str, code: int, body: bytes) -> FleetError:
    message, _ = _said(body)
    if code in (401, 403):
        return Forbidden(
            f"gateway {name} does not accept the admin token (HTTP {code})",
            hint="Give controller and gateway the same admin token",
        )
    return Unavailable(_shown(f"answered HTTP {code}: {message}"))


def _said(body: bytes) -> tuple[str, str | None]:
    """Return message and JSON pointer of an error body, whatever it is."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return _shown(body.decode("utf-8", "replace")), None
    if not isinstance(answer, dict):
        return _shown(str(answer)), None
    said = cast("dict[str, Any]", answer)
    pointer = said.get("field")
    return _shown(str(said.get("message", ""))), _shown(pointer) if isinstance(pointer, str) else None


def _shown(text: str) -> str:
    """Return text fit for one line of a log, a table or a page."""
    return "".join(c if c.isprintable() else " " for c in text[:MAX_SHOWN_CHARACTERS])
