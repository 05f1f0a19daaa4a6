"""Assignments at a gateway: which push wins, what a rejected one changes, what a restart finds."""

from __future__ import annotations

import copy
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway_process import (
    ADMIN_TOKEN,
    FakeEngine,
    GatewayProcess,
    assignment,
    chat,
    eventually,
)


@pytest.fixture
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


@pytest.fixture
def gateway(tmp_path: Path) -> Generator[GatewayProcess]:
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        yield gateway


@pytest.fixture(scope="module")
def unassigned(tmp_path_factory: pytest.TempPathFactory) -> Generator[GatewayProcess]:
    """A gateway that no test of this module gives an assignment to."""
    with GatewayProcess(tmp_path_factory.mktemp("unassigned") / "gw").running() as gateway:
        yield gateway


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("shared") / "gw").running() as gateway:
        yield gateway


def version(gateway: GatewayProcess) -> tuple[Any, ...]:
    status = gateway.status()
    return tuple(status[key] for key in ("epoch", "generation", "revision", "digest"))


def test_nothing_is_served_before_an_assignment(unassigned: GatewayProcess) -> None:
    gateway = unassigned
    assert httpx.get(f"{gateway.base_url}/healthz").status_code == 200
    assert httpx.get(f"{gateway.base_url}/readyz").status_code == 503
    with gateway.client() as client:
        assert client.post("/v1/chat/completions", json=chat()).status_code == 503
    status = gateway.status()
    assert (status["ready"], status["generation"], status["digest"]) == (False, 0, None)


#: What is pushed onto (epoch 5, generation 7), with the same or another content; what must happen.
PUSHES = [
    (5, 7, "same", 200),  # a lost acknowledgement, sent again
    (5, 7, "other", 409),  # two contents under one number
    (5, 8, "other", 200),
    (5, 6, "other", 409),
    (5, 6, "same", 409),
    (6, 1, "other", 200),  # a new leader counts from 1
    (6, 7, "same", 200),
    (4, 99, "other", 409),  # a stalled old leader
    (4, 7, "same", 409),
]


@pytest.mark.parametrize(("epoch", "generation", "content", "expected"), PUSHES)
def test_a_push_wins_iff_it_is_newer_or_the_same(
    gateway: GatewayProcess, engine: FakeEngine, epoch: int, generation: int, content: str, expected: int
) -> None:
    assert gateway.push(assignment([engine], epoch=5, generation=7)).status_code == 200
    before = version(gateway)
    document = assignment([engine], epoch=epoch, generation=generation)
    if content == "other":
        document["revision"] = 2
    response = gateway.push(document)
    assert response.status_code == expected
    if expected == 409:
        assert response.json()["error"] == "StaleAssignment"
        assert version(gateway) == before
    else:
        assert version(gateway)[:2] == (epoch, generation)
        assert response.json()["digest"] == gateway.status()["digest"]


def test_pushes_in_any_order_and_number_end_at_the_newest(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    documents = [
        assignment([engine], epoch=epoch, generation=generation, revision=10 * epoch + generation)
        for epoch in (1, 2, 3)
        for generation in (1, 2, 3)
    ]
    for index in (4, 8, 0, 8, 3, 8, 7, 2, 5, 8, 1, 6):
        gateway.push(documents[index])
    assert version(gateway)[:3] == (3, 3, 33)


def broken(document: dict[str, Any], how: str) -> dict[str, Any]:
    document = copy.deepcopy(document)
    match how:
        case "weights":
            document["policy"]["tiers"]["batch"]["weight"] = 26
        case "unknown field":
            document["policy"]["tiers"]["batch"]["colour"] = "red"
        case "no share":
            del document["shares"]["acme"]
        case "negative quota":
            document["shares"]["acme"]["tokens_per_minute"] = -1
        case "other gateway":
            document["gateway"] = "gw-other"
        case "address with a path":
            document["nodes"][0]["base_url"] += "/v1"
        case "address with a user":
            document["nodes"][0]["base_url"] = "http://user:pass@127.0.0.1:1"
        case "address of a file":
            document["nodes"][0]["base_url"] = "file:///etc/passwd"
        case "node twice":
            document["nodes"] *= 2
    return document


@pytest.mark.parametrize(
    ("how", "pointer"),
    [
        ("weights", "/policy/tiers"),
        ("unknown field", "/policy/tiers/batch/colour"),
        ("no share", "/shares"),
        ("negative quota", "/shares/acme/tokens_per_minute"),
        ("other gateway", "/gateway"),
        ("address with a path", "/nodes/0/base_url"),
        ("address with a user", "/nodes/0/base_url"),
        ("address of a file", "/nodes/0/base_url"),
        ("node twice", "/nodes/1/name"),
    ],
)
def test_a_rejected_push_changes_nothing_and_says_where(
    shared: GatewayProcess, engine: FakeEngine, how: str, pointer: str
) -> None:
    gateway = shared
    gateway.begin_anew([engine])
    before = version(gateway)
    on_disk = (gateway.state_dir / "assignment.json").read_bytes()
    response = gateway.push(broken(assignment([engine], generation=2, revision=9), how))
    assert response.status_code == 422
    assert response.json()["error"] == "InvalidPolicy"
    assert response.json()["field"] == pointer
    assert version(gateway) == before
    assert (gateway.state_dir / "assignment.json").read_bytes() == on_disk
    rejection = gateway.status()["last_rejection"]
    assert (rejection["generation"], rejection["revision"]) == (2, 9)
    assert rejection["pointer"] == pointer
    with gateway.client() as client:
        assert client.post("/v1/chat/completions", json=chat()).status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 50_000])
def test_a_push_that_is_no_document_is_422(unassigned: GatewayProcess, body: bytes) -> None:
    gateway = unassigned
    response = gateway.admin.put("/admin/assignment", content=body)
    assert response.status_code == 422
    assert gateway.status()["generation"] == 0


@pytest.mark.parametrize(
    "authorization", [None, "Bearer wrong-token-0123456789", "Basic abc", "Bearer a b"]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/admin/assignment"),
        ("GET", "/admin/status"),
        ("GET", "/admin/usage"),
        ("POST", "/admin/usage/ack"),
        ("POST", "/admin/drain"),
        ("GET", "/admin/nothing"),
    ],
)
def test_admin_paths_want_the_admin_token(
    unassigned: GatewayProcess, method: str, path: str, authorization: str | None
) -> None:
    gateway = unassigned
    headers = {} if authorization is None else {"Authorization": authorization}
    response = httpx.request(method, gateway.base_url + path, headers=headers)
    assert response.status_code == 401
    assert not gateway.status()["draining"]


def test_a_push_mints_no_capacity(gateway: GatewayProcess, engine: FakeEngine) -> None:
    # Burst 200 at 60 tokens a minute: a request of 4 + 5 prompt and 91 output tokens books 100; two
    # empty the bucket, and in the second or two of the test about one token comes back.
    document = assignment([engine])
    share = document["shares"]["acme"]
    share |= {"tokens_per_minute": 60, "burst_tokens": 200}
    assert gateway.push(document).status_code == 200
    eventually(lambda: gateway.status()["nodes_usable"] == 1)
    body = {"model": "m-70b", "prompt": "tokens=91 " + "x" * 22, "max_tokens": 91}
    with gateway.client() as client:
        codes = []
        for generation in range(2, 12):
            codes.append(client.post("/v1/completions", json=body).status_code)
            assert gateway.push(document | {"generation": generation}).status_code == 200
    assert codes.count(200) <= 2
    assert codes[-5:] == [429] * 5


@pytest.mark.parametrize("ending", ["killed", "stopped", "damaged"])
def test_a_restart_mints_no_capacity(gateway: GatewayProcess, engine: FakeEngine, ending: str) -> None:
    # As above: two requests of 100 tokens empty the bucket, and one token comes back each second; for a
    # third request a hundred seconds would have to pass.
    document = assignment([engine])
    document["shares"]["acme"] |= {"tokens_per_minute": 60, "burst_tokens": 200}
    assert gateway.push(document).status_code == 200
    eventually(lambda: gateway.status()["nodes_usable"] == 1)
    body = {"model": "m-70b", "prompt": "tokens=91 " + "x" * 22, "max_tokens": 91}
    path = gateway.state_dir / "levels.json"
    with gateway.client() as client:
        assert [client.post("/v1/completions", json=body).status_code for _ in range(3)] == [200, 200, 429]
    if ending == "stopped":
        gateway.terminate()
        assert gateway.process.wait(20) == 0
    else:
        eventually(lambda: path.exists() and json.loads(path.read_bytes())["tokens"].get("acme", 200) < 100)
        gateway.kill()
    if ending == "damaged":
        path.write_bytes(path.read_bytes()[:-1])
    gateway.start()
    eventually(lambda: gateway.status()["nodes_usable"] == 1)
    with gateway.client() as client:
        assert client.post("/v1/completions", json=body).status_code == 429
    with gateway.client("globex") as client:  # its quota refills in no time
        assert client.post("/v1/completions", json=body).status_code == 200


def test_a_restart_serves_from_disk_with_nobody_else_alive(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    gateway.push_and_open([engine], epoch=3, generation=9)
    before, boot = version(gateway), gateway.status()["boot_id"]
    gateway.kill()
    gateway.start()
    assert httpx.get(f"{gateway.base_url}/readyz").status_code == 200
    status = gateway.status()
    assert version(gateway) == before
    assert status["from_disk"] is True
    assert status["boot_id"] != boot
    eventually(lambda: gateway.status()["nodes_usable"] == 1)
    with gateway.client() as client:
        assert client.post("/v1/chat/completions", json=chat()).status_code == 200
    assert gateway.push(assignment([engine], epoch=2, generation=99)).status_code == 409
    assert gateway.push(assignment([engine], epoch=3, generation=9)).status_code == 200
    assert gateway.status()["from_disk"] is False


def test_a_damaged_file_leaves_the_gateway_closed_until_a_push(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    gateway.push_and_open([engine])
    gateway.kill()
    path = gateway.state_dir / "assignment.json"
    path.write_bytes(path.read_bytes()[:-1])
    gateway.start()
    assert httpx.get(f"{gateway.base_url}/readyz").status_code == 503
    with gateway.client() as client:
        assert client.post("/v1/chat/completions", json=chat()).status_code == 503
    assert engine.served == []
    gateway.push_and_open([engine])
    with gateway.client() as client:
        assert client.post("/v1/chat/completions", json=chat()).status_code == 200


def test_a_page_in_a_browser_cannot_use_a_gateway_without_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.gateway_process.ADMIN_TOKEN", "")
    with GatewayProcess(tmp_path / "open").running() as gateway:
        url = f"{gateway.base_url}/admin/drain"
        assert httpx.post(url, headers={"Origin": "http://evil.test"}).status_code == 401
        assert httpx.get(f"{gateway.base_url}/admin/status").json()["draining"] is False


def test_the_token_is_the_one_of_the_environment(unassigned: GatewayProcess) -> None:
    gateway = unassigned
    headers = {"Authorization": f"bearer {ADMIN_TOKEN}"}
    assert httpx.get(f"{gateway.base_url}/admin/status", headers=headers).status_code == 200
