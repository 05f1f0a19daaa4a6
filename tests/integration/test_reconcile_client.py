"""Whatever answers at a gateway's address, the caller learns in time that it is no gateway's answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from control import gateways
from control.assignments import build, encode
from fleet.errors import FleetError, Forbidden, InvalidPolicy, StaleAssignment, Unavailable
from fleet.policy import default_policy
from tests import in_process
from tests.small_gateway import TOKEN, SmallGateway

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Call = Callable[[aiohttp.ClientSession, str], Awaitable[None]]
#: Of answers that come, and of those that never do.
PATIENT_S, SHORT_S = 60.0, 0.5


def assignment(gateway: str = "gw-1") -> bytes:
    built = build(default_policy(), 1, [gateway], [], [], [])
    return encode(built)[gateway].body(epoch=3, generation=4)


async def status(http: aiohttp.ClientSession, url: str) -> None:
    await gateways.status(http, "gw-1", url, token=TOKEN, deadline_s=PATIENT_S)


async def hurried_status(http: aiohttp.ClientSession, url: str) -> None:
    await gateways.status(http, "gw-1", url, token=TOKEN, deadline_s=SHORT_S)


async def push(http: aiohttp.ClientSession, url: str) -> None:
    await gateways.push(http, "gw-1", url, assignment(), token=TOKEN, deadline_s=PATIENT_S)


def problem_of(handler: Handler, call: Call = status) -> FleetError:
    """Return what the client raises when `handler` answers every request."""

    async def run() -> FleetError:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            async with gateways.new_session() as http:
                with pytest.raises(FleetError) as caught:
                    await call(http, url)
            return caught.value
        finally:
            await in_process.close(runner)

    return asyncio.run(run())


async def garbage(_: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>hello</html>")


async def elsewhere(request: web.Request) -> web.StreamResponse:
    assert request.path == "/admin/status", "a redirect was followed"
    raise web.HTTPFound("/other")


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * 1_000_000)


async def slow_drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.05)


async def silent(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    return web.Response()


async def far_future(_: web.Request) -> web.StreamResponse:
    status = SmallGateway("gw-1").status().model_dump(mode="json", by_alias=True)
    return web.json_response(status | {"epoch": 2**63 - 1})


async def control_characters(_: web.Request) -> web.StreamResponse:
    return web.json_response({"message": "line\nforged \x1b[31m" + "x" * 5_000}, status=500)


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (garbage, "not a gateway's status"),
        (elsewhere, "answered HTTP 302"),
        (endless, "over 4000000 bytes"),
        (slow_drip, "no answer within 0.5 s"),
        (silent, "no answer within 0.5 s"),
        (far_future, "outside 0.."),
        (control_characters, "answered HTTP 500: line forged"),
    ],
)
def test_an_answer_that_is_none_is_an_outage_with_a_reason(handler: Handler, said: str) -> None:
    found = problem_of(handler, hurried_status if handler in (slow_drip, silent) else status)
    assert isinstance(found, Unavailable)
    assert said in found.message
    assert len(found.message) < 1_000
    assert found.message.isprintable()
    assert TOKEN not in found.message


def answering(code: int, **body: str | None) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=json.dumps(body).encode(), status=code, content_type="application/json")

    return answer


def test_refusals_of_a_push_keep_their_meaning_and_pointer() -> None:
    stale = problem_of(answering(409, message="holds (4, 1)"), push)
    assert isinstance(stale, StaleAssignment)
    assert stale.message == "gateway gw-1 refused the assignment as stale: holds (4, 1)"
    invalid = problem_of(answering(422, message="too many", field="/nodes/7"), push)
    assert isinstance(invalid, InvalidPolicy)
    assert (invalid.message, invalid.field) == ("too many", "/nodes/7")
    assert isinstance(problem_of(answering(401, message="no"), push), Forbidden)
    assert isinstance(problem_of(answering(503, message="disk full"), push), Unavailable)


def test_a_closed_port_is_an_outage() -> None:
    async def run() -> None:
        async with gateways.new_session() as http:
            async with SmallGateway("gw-1").serving() as place:
                url = place.url
            with pytest.raises(Unavailable, match="connection refused"):
                await gateways.status(http, "gw-1", url, token=TOKEN, deadline_s=PATIENT_S)

    asyncio.run(run())


def test_a_name_that_stands_for_a_metadata_service_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(_self: object, host: str, port: int = 0, family: int = 0) -> list[dict[str, object]]:
        entry = {"hostname": host, "host": "169.254.169.254", "port": port}
        return [entry | {"family": 2, "proto": 6, "flags": 0}]

    monkeypatch.setattr("control.gateways.ThreadedResolver.resolve", resolve)

    async def run() -> None:
        async with gateways.new_session() as http:
            with pytest.raises(Unavailable, match="no address that may be called"):
                await gateways.status(
                    http, "gw-1", "http://rebound.example", token=TOKEN, deadline_s=PATIENT_S
                )

    asyncio.run(run())
