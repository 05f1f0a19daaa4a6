"""`rhodeck prom` and discovery from targets, by hand and by the controller, with a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import select

from control import cli, commands_discovery, commands_fleet, commands_promsource, lease
from control.database import session_scope
from control.deps import Deps, Leadership
from control.discovery import Discovery
from control.fetch import open_session
from control.fleet_facts import load_fleet
from control.own_metrics import ControlMetrics
from control.queries_promsource import NodeSource, node_sources, sources
from control.roles import Actor, Role
from control.rounds import NodeResult
from control.scrape import Scraper
from control.tables import AuditRow, PromSourceRow
from fleet.clock import SystemClock
from fleet.errors import Conflict, Forbidden, InvalidInput, NotFound
from tests.postgres_server import FreshDatabase
from tests.prom_servers import PromServer, prometheus, scrape_config, static_job
from tests.small_node import page

pytestmark = pytest.mark.postgres

ADMIN = Actor("ada", Role.ADMIN, "cli")
CLOCK = SystemClock()
PATIENCE_S = 120.0
Run = Callable[..., Result]


class _Page(BaseHTTPRequestHandler):
    """One engine's page, always the same."""

    def do_GET(self) -> None:
        body = page(finished=5, running=3)
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def addresses() -> Generator[list[str]]:
    """Two engines on ports of their own."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _Page) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever) for server in servers]
    for thread in threads:
        thread.start()
    yield [f"127.0.0.1:{server.server_address[1]}" for server in servers]
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join(60)
        server.server_close()


@pytest.fixture(scope="module")
def server(addresses: list[str], tmp_path_factory: pytest.TempPathFactory) -> Generator[PromServer]:
    """A Prometheus that scrapes both engines, and another job's target that is down."""
    jobs = [static_job("vllm", addresses), static_job("other", ["127.0.0.1:1"])]
    with prometheus(tmp_path_factory.mktemp("prometheus"), scrape_config(jobs)) as running:
        yield running


@pytest.fixture
def run(database: FreshDatabase, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("DATABASE_URL", database.dsn)
    with session_scope(database.engine) as session:
        commands_fleet.add_pool(session, ADMIN, name="chat", models=["m"], now=CLOCK.now())

    def invoke(*arguments: str, code: int = 0) -> Result:
        done = CliRunner().invoke(cli.rhodeck, list(arguments))
        problem = done.exception if code == 0 else None
        assert done.exit_code == code, (done.output, problem)
        return done

    return invoke


def until_scraped(run: Run, count: int) -> list[dict[str, str]]:
    """Return the targets once the server knows them all."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S * 5)):
        found = json.loads(run("prom", "targets", "main", "--json").output)
        if len(found) == count and all(target["health"] == "up" for target in found):
            return found
        pause.wait(0.2)
    raise AssertionError(f"not {count} targets: {found}")


def sampled(database: FreshDatabase) -> dict[str, NodeResult]:
    """Run rounds with what is registered until every node has a sample; return the newest."""

    async def rounds() -> dict[str, NodeResult]:
        with session_scope(database.engine) as session:
            facts = load_fleet(session)
        async with open_session() as http, asyncio.timeout(PATIENCE_S):
            while True:
                scraper = Scraper(http, CLOCK, ControlMetrics(), period_s=10.0, deadline_s=5.0)
                scraper.sources.follow(facts.sources)
                done = await scraper.run(facts.targets, facts.gateways, CLOCK.now())
                if done.nodes_sampled == len(facts.nodes):
                    return {result.node: result for result in done.nodes}
                await asyncio.sleep(0.2)

    return asyncio.run(rounds())


def test_a_fleet_is_taken_over_from_its_prometheus(
    run: Run, database: FreshDatabase, server: PromServer, addresses: list[str]
):
    run("prom", "add", "main", server.url, "--match", 'job="vllm"')
    found = until_scraped(run, 2)
    assert {target["instance"] for target in found} == set(addresses)  # not the other job's
    assert {target["node"] for target in found} == {None}
    run("prom", "targets", "main", "--add", "chat")
    again = json.loads(run("prom", "targets", "main", "--json").output)
    assert [target["node"] for target in again] == [target["proposed"] for target in found]
    results = sampled(database)
    assert {result.samples[0].window.running for result in results.values()} == {3}
    assert run("prom", "list").output.startswith(f'main  {server.url}  job="vllm"  2 nodes')
    assert "up" in run("prom", "check", "main").output
    # one of them is scraped directly again, and read from the server again under its own name there
    node = found[0]["proposed"]
    run("prom", "direct", node)
    with session_scope(database.engine) as session:
        assert node not in node_sources(session)
        assert {t.name: t.source for t in load_fleet(session).targets}[node] == ""
    assert sampled(database)[node].fetch_s is not None
    run("prom", "use", "main", node, "--instance", found[0]["instance"])
    refused = run("prom", "remove", "main", code=1)
    assert isinstance(refused.exception, Conflict)
    for target in found:
        run("nodes", "remove", target["proposed"])
    run("prom", "remove", "main")
    with session_scope(database.engine) as session:
        assert session.scalars(select(PromSourceRow)).all() == []
        actions = set(session.scalars(select(AuditRow.action)))
    assert {"source.add", "node.source", "source.remove"} <= actions


def test_check_names_every_node_that_would_be_unknown(run: Run, server: PromServer, addresses: list[str]):
    run("prom", "add", "main", server.url, "--match", 'job="vllm"')
    until_scraped(run, 2)
    run("nodes", "add", "known", f"http://{addresses[0]}", "--pool", "chat")
    run("nodes", "add", "strange", "http://127.0.0.1:9", "--pool", "chat")
    run("prom", "use", "main", "known", "strange")
    report = json.loads(run("prom", "check", "main", "--json", code=1).output)
    assert [problem.partition(":")[0] for problem in report["problems"]] == ["node strange"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"url": "http://169.254.169.254/"}, "url"),
        ({"url": "ftp://prometheus:9090"}, "url"),
        ({"url": "http://user:secret@prometheus:9090"}, "url"),
        ({"url": "http://prometheus:9090/?query=up"}, "url"),
        ({"url": "http://prometheus:9090/../admin"}, "url"),
        ({"name": "Main!"}, "name"),
        ({"matchers": 'job="a"} or up{'}, "match"),
        ({"matchers": 'job="a"}'}, "match"),
        ({"matchers": "job=a"}, "match"),
        ({"instance_label": "in stance"}, "label"),
        ({"tenant": "a\nb"}, "tenant"),
        ({"token_file": Path("/t"), "basic_file": Path("/b")}, "token_file"),
        ({"token_file": Path("relative")}, "token_file"),
    ],
)
def test_what_cannot_be_a_source_is_refused(database: FreshDatabase, given: dict[str, Any], field: str):
    whole: dict[str, Any] = {"name": "main", "url": "http://prometheus:9090"} | given
    with session_scope(database.engine) as session:
        with pytest.raises(InvalidInput) as refused:
            commands_promsource.add_source(session, ADMIN, now=CLOCK.now(), **whole)
        assert sources(session) == []
    assert refused.value.field == field
    assert "secret" not in refused.value.message


def test_nodes_and_sources_that_are_not_there_are_named(run: Run):
    run("prom", "add", "main", "http://127.0.0.1:9/prometheus/api/v1/")
    assert "http://127.0.0.1:9/prometheus  " in run("prom", "list").output
    run("nodes", "add", "a", "http://127.0.0.1:10", "--pool", "chat")
    run("nodes", "add", "b", "http://127.0.0.1:11", "--pool", "chat")
    assert isinstance(run("prom", "use", "other", "a", code=1).exception, NotFound)
    assert isinstance(run("prom", "use", "main", "c", code=1).exception, NotFound)
    run("prom", "use", "main", "a", "--instance", "x")
    taken = run("prom", "use", "main", "b", "--instance", "x", code=1).exception
    assert isinstance(taken, Conflict)
    assert isinstance(run("prom", "direct", "b", code=1).exception, Conflict)
    assert run("prom", "use", "main", "a", "b", "--instance", "x", code=2)


def test_a_viewer_may_not_change_sources(database: FreshDatabase):
    viewer = Actor("vic", Role.VIEWER, "page")
    with session_scope(database.engine) as session, pytest.raises(Forbidden):
        commands_promsource.add_source(session, viewer, name="m", url="http://p:9090", now=CLOCK.now())


@pytest.mark.parametrize("named", ["token_file", "basic_file"])
def test_only_an_admin_names_files_whose_content_is_sent_away(database: FreshDatabase, named: str):
    operator = Actor("olga", Role.OPERATOR, "page")
    file: dict[str, Any] = {named: Path("/var/lib/rhodeck/secrets/admin")}
    now, url = CLOCK.now(), "http://away.example:9090"
    with session_scope(database.engine) as session:
        with pytest.raises(Forbidden, match="credentials"):
            commands_promsource.add_source(session, operator, name="away", url=url, now=now, **file)
        settings = {"url": url, "token_file": "/var/lib/rhodeck/secrets/admin"}
        with pytest.raises(Forbidden, match="credentials"):
            commands_discovery.add_source(
                session, operator, name="away", kind="http_sd", settings=settings, pool="p", now=now
            )
        commands_promsource.add_source(session, operator, name="open", url=url, now=now)


def test_the_controller_finds_nodes_among_targets_and_reads_them_there(
    run: Run, database: FreshDatabase, server: PromServer, addresses: list[str]
):
    run("prom", "add", "main", server.url, "--match", 'job="vllm"')
    until_scraped(run, 2)
    arguments = ("--pool", "chat", "--url", server.url, "--match", 'job=~"(v|x)l+m"', "--read-from", "main")
    run("discovery", "add", "targets", "prometheus", *arguments, "--name-rule", "node-{port}")

    async def tick() -> str:
        with session_scope(database.engine) as session:
            held = lease.take(session, role="controller", owner="me", ttl_s=3_600.0)
        assert held is not None
        leadership = Leadership("me", epoch=held.epoch, until_s=CLOCK.monotonic_s() + 1e6)
        async with open_session() as http:
            deps = Deps(database.engine, CLOCK, leadership, lambda: http, admin_token="unused here")
            return await Discovery(deps, http, patience_s=60.0).tick()

    assert asyncio.run(tick()) == "targets: 2 nodes, 2 added"
    names = [f"node-{address.rpartition(':')[2]}" for address in addresses]
    with session_scope(database.engine) as session:
        assert node_sources(session) == {
            name: NodeSource(name, "main", address)
            for name, address in sorted(zip(names, addresses, strict=True))
        }
    assert {result.samples[0].window.running for result in sampled(database).values()} == {3}


def test_a_discovery_by_targets_is_checked_where_it_is_typed(database: FreshDatabase, run: Run):
    with session_scope(database.engine) as session, pytest.raises(InvalidInput, match="matchers"):
        commands_discovery.add_source(
            session,
            ADMIN,
            name="s",
            kind="prometheus",
            settings={"url": "http://p:9090", "match": 'job="a"}'},
            pool="chat",
            now=CLOCK.now(),
        )
