"""Hostile clients: smuggling, slowness, size, spoofing. Nothing reaches an engine, nothing stays held."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import socket
from collections.abc import Generator

import httpx
import pytest

from tests.gateway_process import (
    ADMIN_TOKEN,
    KEYS,
    MODEL,
    FakeEngine,
    GatewayProcess,
    assignment,
    chat,
    eventually,
)

BODY = json.dumps(chat()).encode()
HEAD = (
    f"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {KEYS['acme']}\r\n"
).encode()


@pytest.fixture(scope="module")
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[GatewayProcess]:
    flags = ("--header-deadline-s", "1", "--body-idle-s", "1", "--body-deadline-s", "2")
    flags += ("--write-deadline-s", "1", "--body-bytes", "100000", "--keep-alive-s", "2")
    flags += ("--bodies-bytes", "150000")
    with GatewayProcess(tmp_path_factory.mktemp("hostile") / "gw", *flags).running() as gateway:
        yield gateway


@pytest.fixture
def gateway(shared: GatewayProcess, engine: FakeEngine) -> GatewayProcess:
    shared.begin_anew([engine])
    return shared


def talk(gateway: GatewayProcess, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Send the parts and return all that comes until the gateway closes."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as connection:
        answer = b""
        try:
            for part in parts:
                connection.sendall(part)
                if pause_s:
                    connection.settimeout(pause_s)
                    try:
                        answer += connection.recv(65_536)
                    except TimeoutError:
                        pass
                    finally:
                        connection.settimeout(20)
            while data := connection.recv(65_536):
                answer += data
        except (ConnectionResetError, BrokenPipeError):
            pass
        return answer


def length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n" % len(body)


SMUGGLED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n\r\n"
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
PROBES = {
    "length and chunked": HEAD + length(CHUNKED) + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    "chunked and length": HEAD + b"Transfer-Encoding: chunked\r\n" + length(CHUNKED) + b"\r\n" + CHUNKED,
    "two lengths": HEAD + length(BODY) + b"Content-Length: 5\r\n\r\n" + BODY,
    "length with a sign": HEAD + b"Content-Length: +%d\r\n\r\n" % len(BODY) + BODY,
    "length in hex": HEAD + b"Content-Length: 0x10\r\n\r\n" + BODY,
    "length with a list": HEAD + b"Content-Length: 5, 5\r\n\r\n" + BODY,
    "chunked twice": HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + CHUNKED,
    "chunked not last": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKED,
    "chunked misspelt": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED,
    "blank before the colon": HEAD + b"Content-Length : %d\r\n\r\n" % len(BODY) + BODY,
    "folded header": HEAD + b"X-A: b\r\n c\r\n" + length(BODY) + b"\r\n" + BODY,
    "bare LF": HEAD.replace(b"\r\n", b"\n") + b"Content-Length: %d\n\n" % len(BODY) + BODY,
    "NUL in a header": HEAD + b"X-A: \x00\r\n" + length(BODY) + b"\r\n" + BODY,
    "bad chunk size": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + BODY,
    "huge chunk size": HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n" + BODY,
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 50,
}


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES.keys())
def test_an_ambiguous_request_is_refused_closed_and_reaches_no_engine(
    gateway: GatewayProcess, engine: FakeEngine, probe: bytes
) -> None:
    answer = talk(gateway, probe + SMUGGLED)
    assert answer.count(b"HTTP/1.1 ") <= 1  # nothing behind it was answered
    assert b" 200 " not in answer.partition(b"\r\n")[0]
    assert engine.served == []
    assert gateway.status()["in_flight_requests"] == 0


def test_headers_too_large_too_many_or_too_slow_are_closed(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    assert talk(gateway, HEAD + b"X-A: " + b"a" * 70_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431 ")
    many = b"".join(b"X-%d: a\r\n" % index for index in range(1_000))
    assert talk(gateway, HEAD + many + b"\r\n").startswith(b"HTTP/1.1 431 ")
    assert talk(gateway, HEAD).startswith(b"HTTP/1.1 408 ")
    drip = [HEAD, *[b"X-A: b\r\n"] * 100]
    assert b"HTTP/1.1 408 " in talk(gateway, *drip, pause_s=0.2)
    assert talk(gateway, b"").startswith(b"HTTP/1.1 408 ")  # connects and says nothing
    assert engine.served == []


def test_bodies_too_large_or_too_slow_are_closed(gateway: GatewayProcess, engine: FakeEngine) -> None:
    big = BODY[:-1] + b" " * 200_000 + b"}"
    answer = talk(gateway, HEAD + length(big) + b"\r\n", big)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413 ")  # a reset may overtake the answer
    endless = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    talk(gateway, endless, *[b"10000\r\n" + b"a" * 0x10000 + b"\r\n"] * 10)
    assert b"HTTP/1.1 408 " in talk(gateway, HEAD + length(BODY) + b"\r\n" + BODY[:10])
    slow = [HEAD + length(BODY) + b"\r\n", *[BODY[i : i + 1] for i in range(50)]]
    assert b"HTTP/1.1 408 " in talk(gateway, *slow, pause_s=0.2)
    assert engine.served == []
    assert gateway.status()["in_flight_requests"] == 0


def test_bodies_of_all_requests_together_are_bounded(gateway: GatewayProcess, engine: FakeEngine) -> None:
    # two of 80,000 bytes are more than 150,000: the second is turned away, whichever way it comes
    held = json.dumps(chat(f"tokens=300 pause=0.05 {'x' * 80_000}", stream=True)).encode()
    with socket.create_connection(("127.0.0.1", gateway.port)) as first:
        first.sendall(HEAD + length(held) + b"\r\n" + held)
        eventually(lambda: engine.running == 1)
        assert talk(gateway, HEAD + length(held) + b"\r\n" + held).startswith(b"HTTP/1.1 503 ")
        chunk = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + f"{len(held):x}\r\n".encode() + held
        assert talk(gateway, chunk + b"\r\n0\r\n\r\n").startswith(b"HTTP/1.1 503 ")
        with gateway.client() as client:
            assert client.post("/v1/chat/completions", json=chat()).status_code == 200
    eventually(lambda: gateway.status()["in_flight_requests"] == 0)
    assert gateway.metric("rhodeck_gateway_held_body_bytes") == 0
    assert len(engine.served) == 2


def test_a_client_that_does_not_read_cannot_hold_its_lease(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    body = json.dumps(chat("tokens=2000000", stream=True) | {"max_tokens": 4_000}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", gateway.port))
        connection.sendall(HEAD + length(body) + b"\r\n" + body)
        eventually(lambda: engine.running == 1)
        eventually(lambda: gateway.status()["in_flight_requests"] == 0)
        eventually(lambda: engine.served[0].ending == "aborted")
    [record] = gateway.usage()
    assert record["outcome"] == "client_gone"


SPOOFS = [
    {"X-Rhodeck-Tenant": "globex"},
    {"x_rhodeck_tenant": "globex"},
    {"X-Tenant": "globex", "X-Rhodeck-Priority": "-99"},
    {"X-Forwarded-For": "127.0.0.1", "X-Request-Id": "forged"},
]


@pytest.mark.parametrize("headers", SPOOFS)
def test_headers_cannot_claim_a_tenant_and_none_reach_the_engine(
    gateway: GatewayProcess, engine: FakeEngine, headers: dict[str, str]
) -> None:
    with gateway.client(**headers) as client:
        body = chat() | {"priority": -99}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
    [record] = gateway.usage()
    assert record["tenant"] == "acme"
    [served] = engine.served
    sent = {name.lower() for name in served.headers}
    assert not sent & {name.lower() for name in headers if name != "X-Request-Id"}
    assert "authorization" not in sent
    assert served.request_id != "forged"
    assert "priority" not in served.body


def test_priority_comes_from_the_tier_where_the_engine_heeds_it(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    document = assignment([engine], generation=2)
    document["nodes"][0]["honours_priority"] = True
    assert gateway.push(document).status_code == 200
    with gateway.client() as client:
        for tier in ("interactive", "batch", "BEST_EFFORT"):
            body = chat() | {"priority": -99}
            client.post("/v1/chat/completions", json=body, headers={"X-Rhodeck-Tier": tier})
    assert [served.body["priority"] for served in engine.served] == [0, 10, 20]
    assert [record["tier"] for record in gateway.usage()] == ["interactive", "batch", "best_effort"]


def test_a_tier_that_is_not_allowed_is_403(gateway: GatewayProcess, engine: FakeEngine) -> None:
    document = assignment([engine], generation=2)
    document["policy"]["tenants"]["acme"]["allowed_tiers"] = ["interactive"]
    assert gateway.push(document).status_code == 200
    with gateway.client() as client:
        refused = client.post("/v1/chat/completions", json=chat(), headers={"X-Rhodeck-Tier": "batch"})
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "rejected_tier"
        unknown = client.post("/v1/chat/completions", json=chat(), headers={"X-Rhodeck-Tier": "vip"})
        assert unknown.status_code == 400
    assert engine.served == []


@pytest.mark.parametrize("name", [b"Authorization", b"X-Rhodeck-Tier"])
def test_a_doubled_header_is_refused(gateway: GatewayProcess, engine: FakeEngine, name: bytes) -> None:
    value = b"Bearer x" if name == b"Authorization" else b"batch"
    doubled = (name + b": " + value + b"\r\n") * 2
    answer = talk(gateway, HEAD + doubled + length(BODY) + b"\r\n" + BODY)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert engine.served == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 400),
        (b"[1]", 400),
        (b"{" * 90_000, 400),
        (json.dumps(chat() | {"model": "m-unknown"}).encode(), 404),
        (json.dumps(chat() | {"max_tokens": -5}).encode(), 400),
    ],
)
def test_a_bad_body_is_named_and_burns_nothing(
    gateway: GatewayProcess, engine: FakeEngine, body: bytes, code: int
) -> None:
    with gateway.client() as client:
        response = client.post("/v1/chat/completions", content=body)
    assert response.status_code == code
    assert response.json()["error"]["message"]
    assert engine.served == []
    assert gateway.metric("rhodeck_gateway_offered_total") == 0


def test_refusals_of_every_kind_burn_nothing(gateway: GatewayProcess, engine: FakeEngine) -> None:
    with gateway.client() as client:
        for generation, (part, code) in enumerate(
            [
                ("tokens_per_minute", "rejected_quota_rate"),
                ("max_in_flight_tokens", "rejected_quota_tokens"),
                ("max_concurrent_requests", "rejected_quota_requests"),
            ],
            start=2,
        ):
            document = assignment([engine], generation=generation)
            document["shares"]["acme"][part] = 0
            if part == "tokens_per_minute":
                document["shares"]["acme"]["burst_tokens"] = 0
            assert gateway.push(document).status_code == 200
            response = client.post("/v1/chat/completions", json=chat())
            assert (response.status_code, response.json()["error"]["code"]) == (429, code)
            assert int(response.headers["retry-after"]) >= 1
            assert int(response.headers["retry-after-ms"]) >= 1
            assert {"limit_name", "limit", "used"} <= response.json()["error"].keys()
            assert any(name.startswith("x-ratelimit-limit-") for name in response.headers)
        # One hundredth of 0.85 x 4,000 blocks of 16 tokens is 544; 40,000 bytes are far more.
        document = assignment([engine], generation=9, kv_share_ratio=0.01)
        assert gateway.push(document).status_code == 200
        large = client.post("/v1/chat/completions", json=chat("word " * 8_000))
        assert (large.status_code, large.json()["error"]["code"]) == (413, "rejected_too_large")
    assert engine.served == []
    assert gateway.usage() == []
    status = gateway.status()
    assert (status["in_flight_requests"], status["in_flight_tokens"]) == (0, 0)
    assert gateway.metric("rhodeck_gateway_dispatched_total") == 0
    assert gateway.metric("rhodeck_gateway_offered_total") == 4


@pytest.mark.parametrize("path", ["/", "/v1", "/admin", "/v1/chat/completions/", "/../etc/passwd", "/docs"])
def test_other_paths_are_not_there(gateway: GatewayProcess, path: str) -> None:
    assert httpx.get(gateway.base_url + path).status_code == 404
    assert httpx.post(gateway.base_url + path).status_code == 404


#: Other spellings of paths that are served: to a rule in front each is another path, so it is here.
OTHERWISE_SPELLED = [
    "/%61dmin/status",
    "/admin%2Fstatus",
    "/%2Fadmin/status",
    "//admin/status",
    "/./admin/status",
    "/v1/../admin/status",
    "/Admin/status",
    "/metric%73",
    "//metrics",
    "/metrics/",
    "/v1/%63hat/completions",
    "/v1/chat%2Fcompletions",
    "/v1//chat/completions",
    "/v1/./chat/completions",
    "/admin/../v1/chat/completions",
    "/%74okenize",
    "/v1/%6Dodels",
    "/%76%31/models",
    "/v1/models%2F" + MODEL,
    "/health%7A",
]


def ask_as_spelled(gateway: GatewayProcess, method: str, target: str, token: str) -> int:
    """Return the status of a request whose target goes out byte for byte."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    with contextlib.closing(connection):
        body = json.dumps(chat()) if method == "POST" else None
        connection.request(method, target, body, {"Authorization": f"Bearer {token}"})
        return connection.getresponse().status


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_path_is_read_as_it_is_spelled(gateway: GatewayProcess, engine: FakeEngine, method: str) -> None:
    for path, token in itertools.product(OTHERWISE_SPELLED, (KEYS["acme"], ADMIN_TOKEN)):
        is_below_admin = path.startswith("/admin/")  # where nothing is said to who has no token
        expected = 401 if is_below_admin and token != ADMIN_TOKEN else 404
        assert ask_as_spelled(gateway, method, path, token) == expected, path
    assert engine.served == []
    assert engine.tokenized == []


def test_a_target_with_a_fragment_is_refused(gateway: GatewayProcess) -> None:
    for target in ("/admin/status#x", "/x#/admin/status", "http://gw/admin/status#", "/v1/models#x"):
        assert ask_as_spelled(gateway, "GET", target, ADMIN_TOKEN) == 400, target


def test_a_target_in_absolute_form_is_its_path(gateway: GatewayProcess) -> None:
    assert ask_as_spelled(gateway, "GET", "http://elsewhere/admin/status", ADMIN_TOKEN) == 200
    assert ask_as_spelled(gateway, "GET", "http://elsewhere/%61dmin/status", ADMIN_TOKEN) == 404


def test_wrong_methods_are_named(gateway: GatewayProcess) -> None:
    assert httpx.get(f"{gateway.base_url}/v1/chat/completions").status_code == 405
    assert httpx.delete(f"{gateway.base_url}/v1/chat/completions").status_code == 405


def test_models_need_a_key(gateway: GatewayProcess) -> None:
    assert httpx.get(f"{gateway.base_url}/v1/models").status_code == 401
    assert MODEL not in httpx.get(f"{gateway.base_url}/readyz").text
