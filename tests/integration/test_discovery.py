"""Discovery end to end: real files, HTTP, DNS and a small Kubernetes API, into a real database."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from sqlalchemy import select
from sqlalchemy.orm import Session

from control import commands_discovery, commands_fleet, lease
from control.database import session_scope
from control.deps import Deps, Leadership
from control.discovery import Discovery, Source
from control.discovery_targets import Answer
from control.fetch import open_session
from control.fleet_facts import load_fleet
from control.gateways import new_session
from control.queries_discovery import SourceView, discovery_sources, node_pages, origins
from control.roles import Actor, Role
from control.tables import AuditRow, NodeRow
from fleet.clock import ManualClock
from fleet.errors import Conflict, FleetError, Forbidden, InvalidInput, NotFound
from tests import in_process
from tests.dns_server import dns_server
from tests.kubernetes_server import KubernetesServer, endpoint, kubernetes_server
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

ADMIN = Actor("ada", Role.ADMIN, "cli")
VIEWER = Actor("vic", Role.VIEWER, "page")
DEADLINE_S = 60.0


class Rig:
    """A leading controller's discovery step on a clock that moves only when told."""

    def __init__(self, database: FreshDatabase, clock: ManualClock, discovery: Discovery) -> None:
        self.database = database
        self.clock = clock
        self.discovery = discovery

    def add(self, kind: str, settings: dict[str, Any], **more: Any) -> None:
        with session_scope(self.database.engine) as session:
            commands_discovery.add_source(
                session,
                ADMIN,
                name="s",
                kind=kind,
                settings=settings,
                pool="p",
                now=self.clock.now(),
                **more,
            )

    async def tick(self, seconds: float = 0.0) -> str:
        self.clock.advance(seconds)
        return await self.discovery.tick()

    def nodes(self) -> dict[str, str]:
        """Nodes that are not removed: name to page."""
        with session_scope(self.database.engine) as session:
            return {node.name: node.metrics_url for node in load_fleet(session).nodes}

    def source(self) -> SourceView:
        with session_scope(self.database.engine) as session:
            (found,) = discovery_sources(session)
            return found

    def state(self, node: str) -> str | None:
        with Session(self.database.engine) as session:
            return session.scalar(select(NodeRow.state).where(NodeRow.name == node))


@asynccontextmanager
async def rig(database: FreshDatabase, clock: ManualClock) -> AsyncGenerator[Rig]:
    with session_scope(database.engine) as session:
        commands_fleet.add_pool(session, ADMIN, name="p", models=["m"], now=clock.now())
        held = lease.take(session, role="controller", owner="me", ttl_s=3_600.0)
    assert held is not None
    leadership = Leadership("me", epoch=held.epoch, until_s=1e9)
    deps = Deps(database.engine, clock, leadership, new_session, admin_token="unused here")
    async with open_session() as http:
        discovery = Discovery(deps, http, patience_s=DEADLINE_S)
        try:
            yield Rig(database, clock, discovery)
        finally:
            await discovery.close()


Test = Callable[[Rig], Awaitable[None]]


@pytest.fixture
def run(database: FreshDatabase, clock: ManualClock) -> Callable[[Test], None]:
    def start(test: Test) -> None:
        async def whole() -> None:
            async with rig(database, clock) as r:
                await test(r)

        asyncio.run(whole())

    return start


async def eventually(is_so: Callable[[], bool], act: Callable[[], Awaitable[Any]]) -> None:
    """Act again and again until it is so."""
    async with asyncio.timeout(DEADLINE_S):
        await act()
        while not is_so():
            await asyncio.sleep(0.02)
            await act()


def write(path: Path, text: str) -> None:
    beside = path.with_name("beside")
    beside.write_text(text)
    os.replace(beside, path)


def test_a_files_changes_are_taken_at_the_next_tick(run: Callable[[Test], None], tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"

    async def test(r: Rig) -> None:
        write(path, json.dumps([{"targets": ["10.0.0.1:8000", "10.0.0.2:8000"], "labels": {"rack": "a"}}]))
        r.add("file", {"path": str(path)}, interval_s=3_600.0)
        await r.tick()
        assert r.nodes() == {
            "10.0.0.1": "http://10.0.0.1:8000/metrics",
            "10.0.0.2": "http://10.0.0.2:8000/metrics",
        }
        with Session(r.database.engine) as session:
            assert origins(session)["10.0.0.1"].labels == {"rack": "a"}
            by = session.scalars(select(AuditRow.actor).where(AuditRow.action == "node.add")).all()
        assert set(by) == {"discovery s"}
        assert await r.tick(2.0) == ""  # nothing changed: the source is not asked
        write(path, json.dumps([{"targets": ["10.0.0.1:8000", "10.0.0.3:8000"]}]))
        await r.tick(2.0)
        assert set(r.nodes()) == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}
        assert r.source().missing == 1

    run(test)


def test_a_missing_node_is_removed_after_its_grace_and_comes_back(
    run: Callable[[Test], None], tmp_path: Path
) -> None:
    path = tmp_path / "nodes"

    async def test(r: Rig) -> None:
        write(path, "10.0.0.1:8000 a\n10.0.0.2:8000 b\n")
        r.add("file", {"path": str(path)}, interval_s=10.0, grace_s=60.0)
        await r.tick()
        write(path, "10.0.0.1:8000 a\n")
        await r.tick(10.0)
        await r.tick(59.0)
        assert set(r.nodes()) == {"a", "b"}
        with Session(r.database.engine) as session:
            since = origins(session)["b"]
        assert since.missing_since is not None
        assert since.removed_after is not None
        assert (since.removed_after - since.missing_since).total_seconds() == 60.0
        await r.tick(10.0)
        assert set(r.nodes()) == {"a"}
        assert r.state("b") == "removed"  # its history stays
        write(path, "10.0.0.1:8000 a\n10.0.0.9:8000 b\n")
        await r.tick(10.0)
        assert r.nodes()["b"] == "http://10.0.0.9:8000/metrics"

    run(test)


def test_no_failure_and_no_empty_answer_removes_a_node(run: Callable[[Test], None], tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"

    async def test(r: Rig) -> None:
        good = json.dumps([{"targets": ["10.0.0.1:8000"]}])
        write(path, good)
        r.add("file", {"path": str(path)}, interval_s=10.0, grace_s=0.0)
        await r.tick()
        for bad, words in (
            ("[]", "no usable target"),
            ("{", "not JSON"),
            ('[{"targets": []}]', "no usable"),
        ):
            write(path, bad)
            await r.tick(600.0)
            assert words in r.source().problem
            assert set(r.nodes()) == {"10.0.0.1"}
        path.unlink()
        await r.tick(600.0)
        assert "cannot be read" in r.source().problem
        assert set(r.nodes()) == {"10.0.0.1"}
        write(path, good)
        await r.tick(10.0)
        assert r.source().problem == ""

    run(test)


def test_a_node_added_by_hand_wins_and_one_removed_by_hand_stays_out(
    run: Callable[[Test], None], tmp_path: Path
) -> None:
    path = tmp_path / "nodes"

    async def test(r: Rig) -> None:
        with session_scope(r.database.engine) as session:
            commands_fleet.add_node(
                session, ADMIN, name="mine", url="http://10.0.0.1:8000", pool="p", now=r.clock.now()
            )
        write(path, "10.0.0.7:8000 mine\n10.0.0.1:8000 other\n10.0.0.2:8000 b\n")
        r.add("file", {"path": str(path)}, interval_s=10.0, grace_s=0.0)
        await r.tick()
        assert r.nodes() == {
            "mine": "http://10.0.0.1:8000/metrics",
            "b": "http://10.0.0.2:8000/metrics",
        }
        said = " ".join(r.source().remarks)
        assert "mine: was added by hand" in said
        assert "other: its page is node mine's already" in said
        with session_scope(r.database.engine) as session:
            commands_fleet.remove_node(session, ADMIN, name="b", now=r.clock.now())
        await r.tick(10.0)
        await r.tick(10.0)
        assert set(r.nodes()) == {"mine"}
        assert "b: was removed by hand" in " ".join(r.source().remarks)
        with session_scope(r.database.engine) as session:
            commands_fleet.add_node(
                session, ADMIN, name="b", url="http://10.0.0.3:8000", pool="p", now=r.clock.now()
            )
        await r.tick(10.0)
        assert r.nodes()["b"] == "http://10.0.0.3:8000/metrics"  # by hand now: discovery moves it no more
        with Session(r.database.engine) as session:
            assert origins(session)["b"].source is None

    run(test)


def test_ports_become_engines_and_the_exporter_a_page(run: Callable[[Test], None], tmp_path: Path) -> None:
    path = tmp_path / "nodes"

    async def test(r: Rig) -> None:
        write(path, "10.0.0.1:8000\n10.0.0.1:8001\n")
        r.add("file", {"path": str(path)}, gpu_port=9400)
        await r.tick()
        with Session(r.database.engine) as session:
            pages = node_pages(session, "10.0.0.1")
            (node,) = load_fleet(session).nodes
        assert [(p.url, p.kind, p.is_own, p.source) for p in pages] == [
            ("http://10.0.0.1:8000/metrics", "engine", True, None),
            ("http://10.0.0.1:8001/metrics", "engine", False, "s"),
            ("http://10.0.0.1:9400/metrics", "gpu", False, "s"),
        ]
        assert [(page.url, page.kind) for page in node.pages] == [(p.url, p.kind) for p in pages[1:]]
        write(path, "10.0.0.1:8000\n")
        await r.tick(2.0)
        with Session(r.database.engine) as session:
            assert [p.kind for p in node_pages(session, "10.0.0.1")] == ["engine", "gpu"]

    run(test)


def test_an_http_source_carries_its_token_and_is_believed_only_as_json(
    run: Callable[[Test], None], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    seen: list[tuple[str, str]] = []
    served: dict[str, Any] = {"body": b"[]", "type": "application/json", "status": 200}

    async def answer(request: web.Request) -> web.Response:
        head = request.headers
        seen.append((head.get("Authorization", ""), head["X-Prometheus-Refresh-Interval-Seconds"]))
        return web.Response(body=served["body"], content_type=served["type"], status=served["status"])

    async def test(r: Rig) -> None:
        app = web.Application()
        app.add_routes([web.get("/sd", answer)])
        async with in_process.closed(web.AppRunner(app, access_log=None)) as runner:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/sd"
            token.write_text("first\n")
            r.add("http_sd", {"url": url, "token_file": str(token)}, interval_s=30.0)
            served["body"] = json.dumps([{"targets": ["10.0.0.1:8000"]}]).encode()
            await r.tick()
            token.write_text("second\n")
            await r.tick(30.0)
            assert seen == [("Bearer first", "30"), ("Bearer second", "30")]
            for change, words in (
                ({"type": "text/plain"}, "not application/json"),
                ({"type": "application/json", "status": 302}, "status 302"),
                ({"status": 200, "body": b" " * (5 * 1024 * 1024)}, "bytes"),
            ):
                served.update(change)
                await r.tick(30.0)
                assert words in r.source().problem
        await r.tick(30.0)  # the server is gone
        assert r.source().problem != ""
        assert set(r.nodes()) == {"10.0.0.1"}

    run(test)


def test_srv_records_become_nodes_and_a_long_answer_comes_by_tcp(run: Callable[[Test], None]) -> None:
    async def test(r: Rig) -> None:
        async with dns_server() as dns:
            name = "_vllm._tcp.example.org"
            dns.records[name] = [("gpu-1.example.org", 8000), ("gpu-1.example.org", 8001)]
            r.add("dns_srv", {"service": name, "server": f"127.0.0.1:{dns.port}"}, interval_s=10.0)
            await r.tick()
            assert r.nodes() == {"gpu-1.example.org": "http://gpu-1.example.org:8000/metrics"}
            dns.records[name] = [(f"gpu-{i}.example.org", 8000) for i in range(1, 41)]
            await r.tick(10.0)
            assert len(r.nodes()) == 40
            assert dns.by_tcp == 1
            dns.records[name] = []
            await r.tick(10.0)
            assert "no SRV record" in r.source().problem
            del dns.records[name]
            await r.tick(10.0)
            assert "no SRV record" in r.source().problem
            assert len(r.nodes()) == 40

    run(test)


def test_a_source_that_hangs_holds_no_other_up(
    run: Callable[[Test], None],
    database: FreshDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "nodes"
    for module in ("discovery", "discovery_lookups"):  # it hangs for longer than the test can take
        monkeypatch.setattr(f"control.{module}.DEADLINE_S", 600.0)

    async def test(r: Rig) -> None:
        async with dns_server() as dns:
            dns.is_silent = True
            settings = {"service": "_a._tcp.b", "server": f"127.0.0.1:{dns.port}"}
            with session_scope(database.engine) as session:
                commands_discovery.add_source(
                    session,
                    ADMIN,
                    name="hangs",
                    kind="dns_srv",
                    settings=settings,
                    pool="p",
                    now=r.clock.now(),
                )
            r.discovery = Discovery(r.discovery._deps, r.discovery.lookups.http, patience_s=0.05)
            try:
                write(path, "10.0.0.1:8000 a\n")
                r.add("file", {"path": str(path)})
                await eventually(lambda: set(r.nodes()) == {"a"}, r.tick)
                write(path, "10.0.0.1:8000 a\n10.0.0.2:8000 b\n")
                await eventually(lambda: set(r.nodes()) == {"a", "b"}, r.tick)
                with session_scope(database.engine) as session:
                    hanging = next(s for s in discovery_sources(session) if s.name == "hangs")
                assert hanging.tried_at is None  # it is still being asked
            finally:
                await r.discovery.close()

    run(test)


# Kubernetes


def kubernetes(server: KubernetesServer, token: Path) -> dict[str, Any]:
    token.write_text(server.token)
    return {
        "api_url": server.url,
        "namespace": "serving",
        "selector": "kubernetes.io/service-name=vllm",
        "port": "http",
        "token_file": str(token),
        "ca_file": None,
    }


def source(settings: dict[str, Any]) -> Source:
    return Source("s", "kubernetes", settings, 2.0)


def test_endpoint_slices_are_listed_in_pages_and_followed_by_a_watch(
    run: Callable[[Test], None], tmp_path: Path
) -> None:
    async def test(r: Rig) -> None:
        async with kubernetes_server() as server:
            server.page_size = 2
            for i in range(5):
                server.put(f"slice-{i}", endpoint(f"10.1.0.{i}", f"vllm-{i}"))
            r.add("kubernetes", kubernetes(server, tmp_path / "token"), interval_s=2.0, grace_s=0.0)
            await r.tick()
            assert r.nodes() == {f"vllm-{i}": f"http://10.1.0.{i}:8000/metrics" for i in range(5)}
            assert server.lists == 3
            with Session(r.database.engine) as session:
                assert origins(session)["vllm-0"].labels["node"] == "host-of-vllm-0"

            server.put("slice-0", endpoint("10.1.0.99", "vllm-0"))  # another address
            server.put("slice-1", endpoint("10.1.0.1", "vllm-1", ready=False))  # sick: still ours to watch
            server.put("slice-5", endpoint("10.1.0.5", "vllm-5", ready=False))  # still loading its model
            server.delete("slice-2")
            want = {"vllm-0", "vllm-1", "vllm-3", "vllm-4"}
            await eventually(
                lambda: set(r.nodes()) == want and r.nodes()["vllm-0"].startswith("http://10.1.0.99:"),
                lambda: r.tick(2.0),
            )
            assert server.lists == 3  # changes came by the watch, not by another list

    run(test)


def test_a_dropped_watch_goes_on_from_its_version_and_loses_nothing(
    run: Callable[[Test], None], tmp_path: Path
) -> None:
    async def test(r: Rig) -> None:
        async with kubernetes_server() as server:
            server.put("a", endpoint("10.1.0.1", "vllm-1"))
            r.add("kubernetes", kubernetes(server, tmp_path / "token"), interval_s=2.0)
            await eventually(lambda: len(server.watches) >= 1, lambda: r.tick(2.0))
            server.drop_watches()
            server.put("b", endpoint("10.1.0.2", "vllm-2"))  # while nobody watches
            await eventually(
                lambda: set(r.nodes()) == {"vllm-1", "vllm-2"} and len(server.watches) >= 2,
                lambda: r.tick(2.0),
            )
            assert server.lists == 1
            assert server.watches[0] == "101"
            assert all(int(version) >= 101 for version in server.watches)

    run(test)


def test_gone_versions_are_listed_anew(run: Callable[[Test], None], tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        async with kubernetes_server() as server:
            server.put("a", endpoint("10.1.0.1", "vllm-1"))
            r.add("kubernetes", kubernetes(server, tmp_path / "token"), interval_s=2.0)
            await eventually(lambda: len(server.watches) >= 1, lambda: r.tick(2.0))
            server.put("b", endpoint("10.1.0.2", "vllm-2"))
            server.events.clear()  # history is compacted away
            server.history_from = server.version + 1
            server.version += 1
            server.drop_watches()
            await eventually(
                lambda: set(r.nodes()) == {"vllm-1", "vllm-2"} and server.lists >= 2,
                lambda: r.tick(2.0),
            )

    run(test)


def test_the_token_is_read_again_and_an_api_that_fails_removes_nothing(
    run: Callable[[Test], None], tmp_path: Path
) -> None:
    token = tmp_path / "token"

    async def test(r: Rig) -> None:
        async with kubernetes_server() as server:
            server.put("a", endpoint("10.1.0.1", "vllm-1"))
            r.add("kubernetes", kubernetes(server, token), interval_s=2.0, grace_s=0.0)
            await r.tick()
            server.token = "second-token"
            server.drop_watches()
            await eventually(lambda: server.refused > 0, lambda: r.tick(2.0))
            token.write_text("second-token")
            server.put("b", endpoint("10.1.0.2", "vllm-2"))
            await eventually(lambda: set(r.nodes()) == {"vllm-1", "vllm-2"}, lambda: r.tick(2.0))
            server.is_down = True
            server.drop_watches()
            look = source(kubernetes(server, token))
            answers: list[Answer] = []

            async def ask() -> None:
                answers.append(await r.discovery.lookups.look(look))

            await eventually(lambda: any("status 503" in line for line in answers[-1].remarks), ask)
            assert len(answers[-1].found) == 2  # still believed, with its age
            r.clock.advance(1_000.0)  # no word for longer than a state may be believed
            await r.tick()
            assert "status 503" in r.source().problem
            assert set(r.nodes()) == {"vllm-1", "vllm-2"}

    run(test)


def test_a_first_answer_that_fails_says_why(run: Callable[[Test], None], tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        async with kubernetes_server() as server:
            settings = kubernetes(server, tmp_path / "token")
            (tmp_path / "token").write_text("wrong")
            with pytest.raises(FleetError, match="status 401"):
                await r.discovery.lookups.look(source(settings))
            (tmp_path / "token").unlink()
            await r.discovery.lookups.close()
            with pytest.raises(FleetError, match="token file"):
                await r.discovery.lookups.look(source(settings))

    run(test)


TLS = Path(__file__).resolve().parents[1] / "data" / "tls"


@pytest.mark.parametrize(("ca", "is_trusted"), [("cluster_ca.pem", True), ("other_ca.pem", False)])
def test_the_api_is_believed_under_the_clusters_own_authority_and_under_no_other(
    run: Callable[[Test], None], tmp_path: Path, ca: str, is_trusted: bool
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "cluster_api.pem", TLS / "cluster_api.key")

    async def test(r: Rig) -> None:
        async with kubernetes_server(context) as server:
            server.put("vllm-1", endpoint("10.0.0.1", "vllm-0"))
            settings = kubernetes(server, tmp_path / "token") | {"ca_file": str(TLS / ca)}
            if is_trusted:
                answer = await r.discovery.lookups.look(source(settings))
                assert [found.address for found in answer.found] == ["10.0.0.1:8000"]
            else:
                with pytest.raises(FleetError, match=r"(?i)certificate.verify.failed"):
                    await r.discovery.lookups.look(source(settings))
                assert server.lists == 0
            assert server.refused == 0  # no token went to whoever is not believed

    run(test)


def test_without_an_authority_the_systems_own_are_asked_and_do_not_know_the_clusters(
    run: Callable[[Test], None], tmp_path: Path
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "cluster_api.pem", TLS / "cluster_api.key")

    async def test(r: Rig) -> None:
        async with kubernetes_server(context) as server:
            with pytest.raises(FleetError, match=r"(?i)certificate.verify.failed"):
                await r.discovery.lookups.look(source(kubernetes(server, tmp_path / "token")))

    run(test)


def test_two_nodes_that_swap_their_addresses_are_both_moved(
    run: Callable[[Test], None], tmp_path: Path
) -> None:
    path = tmp_path / "nodes.json"

    def said(a: int, b: int) -> str:
        groups = [
            {"targets": [f"10.0.0.1:{port}"], "labels": {"node": name}}
            for name, port in (("a", a), ("b", b))
        ]
        return json.dumps(groups)

    async def test(r: Rig) -> None:
        write(path, said(8001, 8002))
        r.add("file", {"path": str(path)}, name_rule="{label_node}")
        await eventually(lambda: len(r.nodes()) == 2, r.tick)
        write(path, said(8002, 8001))
        await eventually(lambda: r.nodes()["a"] == "http://10.0.0.1:8002/metrics", lambda: r.tick(60))
        assert r.nodes()["b"] == "http://10.0.0.1:8001/metrics"
        assert r.source().remarks == ()

    run(test)


def test_a_page_of_another_node_is_no_new_node(run: Callable[[Test], None]) -> None:
    async def test(r: Rig) -> None:
        now = r.clock.now()
        with session_scope(r.database.engine) as session:
            commands_fleet.add_node(session, ADMIN, name="a", url="http://10.0.0.1:8000", pool="p", now=now)
            commands_discovery.add_page(
                session, ADMIN, node="a", url="http://10.0.0.1:8001/metrics", kind="engine", now=now
            )
        with session_scope(r.database.engine) as session, pytest.raises(Conflict, match="node a already"):
            commands_fleet.add_node(session, ADMIN, name="b", url="http://10.0.0.1:8001", pool="p", now=now)

    run(test)


def test_a_server_that_ends_every_watch_at_once_is_not_asked_without_pause(
    run: Callable[[Test], None], tmp_path: Path
) -> None:
    async def test(r: Rig) -> None:
        (tmp_path / "token").write_text("first-token")
        async with kubernetes_server() as server:
            server.ends_watches = True
            await r.discovery.lookups.look(source(kubernetes(server, tmp_path / "token")))
            await asyncio.sleep(1.0)
            # watches begin 1, 2, 4, ... s apart: a minute has 6 of them; without a pause it has thousands
            assert len(server.watches) <= 10

    run(test)


def test_the_watch_of_a_source_that_is_gone_ends(run: Callable[[Test], None], tmp_path: Path) -> None:
    async def test(r: Rig) -> None:
        (tmp_path / "token").write_text("first-token")
        async with kubernetes_server() as server:
            await r.discovery.lookups.look(source(kubernetes(server, tmp_path / "token")))
            tasks = {task for task in asyncio.all_tasks() if "EndpointWatch.run" in repr(task)}
            assert len(tasks) == 1
            await r.tick()  # no source is registered
            assert all(task.done() for task in tasks)

    run(test)


# hostile settings and commands


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/stdin", "/proc/self/mem", "/tmp"])
def test_what_is_no_regular_file_is_not_read(run: Callable[[Test], None], path: str) -> None:
    async def test(r: Rig) -> None:
        r.add("file", {"path": path})
        await r.tick()
        assert r.source().problem != ""
        assert r.nodes() == {}

    run(test)


def test_a_named_pipe_and_a_secret_file_give_nothing_away(
    run: Callable[[Test], None], tmp_path: Path
) -> None:
    pipe, secret = tmp_path / "pipe", tmp_path / "secret"
    os.mkfifo(pipe)
    secret.write_text("hunter2-is-the-password\n")

    async def test(r: Rig) -> None:
        for path in (pipe, secret):
            with pytest.raises(FleetError) as problem:
                await r.discovery.lookups.look(
                    Source("x", "http_sd", {"url": "http://127.0.0.1:1/", "ca_file": str(path)}, 30.0)
                )
            assert "hunter2" not in f"{problem.value} {problem.value.hint}"
        secret.chmod(0o600)
        r.add("file", {"path": str(secret)})
        await r.tick()
        found = r.source()
        assert "private to its owner" in found.problem
        assert "hunter2" not in f"{found.problem} {found.remarks}"
        assert r.nodes() == {}

    run(test)


@pytest.mark.parametrize(
    ("kind", "settings", "more", "field"),
    [
        ("ftp", {}, {}, "kind"),
        ("file", {"path": "relative"}, {}, "path"),
        ("file", {"path": "/a/../b"}, {}, "path"),
        ("file", {"path": "/a", "extra": 1}, {}, "extra"),
        ("http_sd", {"url": "file:///etc/passwd"}, {}, "url"),
        ("http_sd", {"url": "http://user:pw@host/"}, {}, "url"),
        ("dns_srv", {"service": "a b"}, {}, "service"),
        ("dns_srv", {"service": "a.b", "server": "host:53"}, {}, "server"),
        ("kubernetes", {"namespace": "a/b", "selector": "x=y"}, {}, "namespace"),
        ("kubernetes", {"namespace": "a", "selector": "x=y\n"}, {}, "selector"),
        ("file", {"path": "/a"}, {"name_rule": "{secret}"}, "name_rule"),
        ("file", {"path": "/a"}, {"interval_s": 0.1}, "interval_s"),
        ("file", {"path": "/a"}, {"grace_s": -1.0}, "grace_s"),
        ("file", {"path": "/a"}, {"gpu_port": 70_000}, "gpu_port"),
        ("file", {"path": "/a"}, {"metrics_path": "/../x y"}, "metrics_path"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    run: Callable[[Test], None], kind: str, settings: dict[str, Any], more: dict[str, Any], field: str
) -> None:
    async def test(r: Rig) -> None:
        with pytest.raises(InvalidInput) as problem:
            r.add(kind, settings, **more)
        assert problem.value.field == field

    run(test)


def test_only_operators_change_sources_and_each_change_is_recorded(
    run: Callable[[Test], None], tmp_path: Path
) -> None:
    path = tmp_path / "nodes"
    path.write_text("10.0.0.1:8000 a\n10.0.0.2:8000 b\n")

    async def test(r: Rig) -> None:
        r.add("file", {"path": str(path)})
        with pytest.raises(Conflict):
            r.add("file", {"path": str(path)})
        await r.tick()
        now = r.clock.now()
        with session_scope(r.database.engine) as session:
            for command in (
                lambda: commands_discovery.pause_source(session, VIEWER, name="s", now=now),
                lambda: commands_discovery.remove_source(session, VIEWER, name="s", now=now),
                lambda: commands_discovery.add_page(
                    session, VIEWER, node="a", url="http://10.0.0.1:1", kind="gpu", now=now
                ),
            ):
                with pytest.raises(Forbidden):
                    command()
            with pytest.raises(Conflict, match="page of node a already"):
                commands_discovery.add_page(
                    session, ADMIN, node="b", url="http://10.0.0.1:8000", kind="engine", now=now
                )
            commands_discovery.pause_source(session, ADMIN, name="s", now=now)
        path.write_text("10.0.0.1:8000 a\n10.0.0.3:8000 c\n")
        assert await r.tick(600.0) == ""  # paused
        assert set(r.nodes()) == {"a", "b"}
        with session_scope(r.database.engine) as session:
            commands_discovery.resume_source(session, ADMIN, name="s", now=now)
        await r.tick(2.0)
        assert set(r.nodes()) == {"a", "b", "c"}
        with session_scope(r.database.engine) as session:
            assert commands_discovery.remove_source(session, ADMIN, name="s", now=now) == 3
        assert set(r.nodes()) == {"a", "b", "c"}  # they stay, as if added by hand
        with Session(r.database.engine) as session:
            assert {origin.source for origin in origins(session).values()} == {None}
            actions = session.scalars(
                select(AuditRow.action).where(AuditRow.action.like("discovery.%")).order_by(AuditRow.id)
            ).all()
            with pytest.raises(NotFound):
                commands_discovery.remove_source(session, ADMIN, name="s", now=now)
        assert actions == ["discovery.add", "discovery.pause", "discovery.resume", "discovery.remove"]

    run(test)


def test_a_controller_that_does_not_lead_any_more_changes_nothing(
    run: Callable[[Test], None], tmp_path: Path
) -> None:
    path = tmp_path / "nodes"
    path.write_text("10.0.0.1:8000 a\n")

    async def test(r: Rig) -> None:
        r.add("file", {"path": str(path)})
        with session_scope(r.database.engine) as session:
            held = lease.take(session, role="controller", owner="me", ttl_s=0.0)
            assert held is not None
        with pytest.raises(lease.LeaseLost):
            await r.tick()
        assert r.nodes() == {}
        assert r.source().tried_at is None

    run(test)
