"""What goes wrong between us and a source: it is down, lies, leaves out, repeats, or asks who we are."""

from __future__ import annotations

import asyncio
import gzip
import json
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web

from control.fetch import open_session
from control.own_metrics import ControlMetrics
from control.promsource import PromClient, SourceSettings, ask_all
from control.promsource_round import SourcedPage, SourceReader, Wanted
from control.rounds import FurtherPage, NodeResult, Target
from control.scrape import Scraper
from fleet.clock import SystemClock
from fleet.errors import FleetError, InvalidInput, Unavailable
from fleet.promql import Answer, QueryRefused
from fleet.readings import Reason
from tests import in_process
from tests.prom_servers import PromServer, prometheus, scrape_config, victoria_metrics
from tests.small_node import page, small_nodes

CLOCK = SystemClock()
TLS = Path(__file__).parents[1] / "data" / "tls"
PATIENCE_S = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[PromServer]:
    """A server whose samples a test writes itself, at the times it wants."""
    with victoria_metrics(tmp_path_factory.mktemp("server"), None) as running:
        yield running


def feed(
    server: PromServer,
    instance: str,
    body: bytes,
    *,
    age_s: float,
    now_s: float | None = None,
    **labels: str,
) -> None:
    """Write a page as if it had been scraped `age_s` before `now_s`."""
    extra = {"instance": instance, "job": "vllm", **labels}
    query = [("extra_label", f"{name}={value}") for name, value in extra.items()]
    at_ms = round(((now_s or CLOCK.now().timestamp()) - age_s) * 1000)
    url = f"{server.url}/api/v1/import/prometheus?{urllib.parse.urlencode(query)}&timestamp={at_ms}"
    with urllib.request.urlopen(url, body, timeout=60):
        pass
    urllib.request.urlopen(f"{server.url}/internal/force_flush", timeout=60).close()


def target(node: str, source: str, instance: str | None = None) -> Target:
    known_as = instance or f"{node}:8000"
    return Target(node, f"{source}:{known_as}", "p", source, known_as)


def rounds(
    sources: list[SourceSettings], targets: list[Target], *between: Callable[[], object]
) -> list[dict[str, NodeResult]]:
    """Run one round, and one more after each of `between`; a round's results by node."""

    async def run() -> list[dict[str, NodeResult]]:
        async with open_session() as http:
            scraper = Scraper(http, CLOCK, ControlMetrics(), period_s=10.0, deadline_s=60.0)
            scraper.sources.follow(sources)
            done = [await scraper.run(targets, (), CLOCK.now())]
            for step in between:
                await asyncio.to_thread(step)
                done.append(await scraper.run(targets, (), CLOCK.now()))
        return [{result.node: result for result in one.nodes} for one in done]

    return asyncio.run(run())


def test_a_source_that_is_down_silences_its_own_nodes_only(server: PromServer, tmp_path: Path):
    feed(server, "here:8000", page(finished=5) + b"up 1\n", age_s=4.0)
    with victoria_metrics(tmp_path, None) as other:
        other.stop()

    async def run() -> dict[str, NodeResult]:
        async with small_nodes(1) as nodes, open_session() as http:
            nodes[0].body = page(finished=5)
            scraper = Scraper(http, CLOCK, ControlMetrics(), period_s=10.0, deadline_s=60.0)
            scraper.sources.follow([SourceSettings("good", server.url), SourceSettings("bad", other.url)])
            targets = [
                target("there", "bad"),
                target("here", "good"),
                target("lost", "nowhere"),
                Target("direct", nodes[0].url, "p"),
            ]
            done = await scraper.run(targets, (), CLOCK.now())
            return {result.node: result for result in done.nodes}

    found = asyncio.run(run())
    assert found["there"].reason is Reason.SOURCE_DOWN
    assert found["lost"].reason is Reason.SOURCE_DOWN
    assert (found["here"].reason, found["direct"].reason) == (None, None)
    assert len(found["here"].samples) == len(found["direct"].samples) == 1
    assert "bad" in found["there"].detail


def test_targets_that_are_down_old_or_unknown_have_their_reason(server: PromServer):
    feed(server, "sick:8000", page(finished=5) + b"up 1\n", age_s=14.0)
    feed(server, "sick:8000", b"up 0\n", age_s=4.0)
    feed(server, "old:8000", page(finished=5) + b"up 1\n", age_s=60.0)
    (found,) = rounds(
        [SourceSettings("s", server.url)], [target(name, "s") for name in ("sick", "old", "unknown")]
    )
    assert found["sick"].reason is Reason.TARGET_DOWN
    assert found["old"].reason is Reason.NOT_IN_SOURCE
    assert found["old"].detail.endswith("s old")
    assert found["unknown"].reason is Reason.NOT_IN_SOURCE
    assert not any(result.samples for result in found.values())


def test_a_page_is_taken_once_and_increments_span_the_servers_scrapes(server: PromServer):
    now_s = CLOCK.now().timestamp()
    feed(server, "n:8000", page(finished=5) + b"up 1\n", age_s=14.0, now_s=now_s)

    def next_page() -> None:  # ten seconds after the first, by the server's clock
        feed(server, "n:8000", page(finished=12, running=1) + b"up 1\n", age_s=4.0, now_s=now_s)

    first, again, second = rounds(
        [SourceSettings("s", server.url)], [target("n", "s")], lambda: None, next_page
    )
    assert [sample.covered_s for sample in first["n"].samples] == [None]  # a first sight
    assert (again["n"].samples, again["n"].reason) == ((), None)  # no news, and no failure
    (sample,) = second["n"].samples
    assert sample.window.completed == 7
    assert sample.covered_s == pytest.approx(10.0, abs=0.01)
    assert second["n"].fetch_s is None  # nobody knows how long the node took


def test_a_restart_hidden_by_growth_is_seen_through_a_server(server: PromServer):
    feed(server, "r:8000", page(finished=50, started_s=1_000.0) + b"up 1\n", age_s=14.0)

    def restarted() -> None:
        feed(server, "r:8000", page(finished=60, started_s=2_000.0) + b"up 1\n", age_s=4.0)

    _, second = rounds([SourceSettings("s", server.url)], [target("r", "s")], restarted)
    (sample,) = second["r"].samples
    assert sample.window.restarted
    assert sample.window.completed == 60  # since the start, not 10


def test_two_replicas_of_a_server_are_not_two_nodes(server: PromServer):
    for replica in ("a", "b"):
        feed(server, "ha:8000", page(finished=5, running=3) + b"up 1\n", age_s=5.0, replica=replica)
    (found,) = rounds([SourceSettings("s", server.url)], [target("ha", "s")])
    assert [sample.window.running for sample in found["ha"].samples] == [3]


def test_samples_that_were_pushed_without_up_can_be_read(server: PromServer):
    feed(server, "pushed:8000", page(finished=5, running=3), age_s=4.0)
    (found,) = rounds([SourceSettings("s", server.url)], [target("pushed", "s")])
    assert [sample.window.running for sample in found["pushed"].samples] == [3]


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "a|b", "a.b", ".*", "a{b}", "a(b", "ä", "a\nb", "[::1]:80"]
)
def test_an_instance_matches_itself_and_nothing_else(server: PromServer, name: str):
    feed(server, name, page(running=3) + b"up 1\n", age_s=4.0)
    feed(server, "axb", page(running=9) + b"up 1\n", age_s=4.0)
    wanted = [target("odd", "s", name), target("other", "s", "axb"), target("none", "s", f"{name}!")]
    (found,) = rounds([SourceSettings("s", server.url)], wanted)
    assert [sample.window.running for sample in found["odd"].samples] == [3]
    assert [sample.window.running for sample in found["other"].samples] == [9]
    assert found["none"].reason is Reason.NOT_IN_SOURCE


def test_further_pages_of_a_sourced_node_are_asked_themselves(server: PromServer):
    feed(server, "main:8000", page(running=3) + b"up 1\n", age_s=4.0)

    async def run() -> NodeResult:
        async with small_nodes(1) as nodes, open_session() as http:
            nodes[0].body = page(running=4)
            scraper = Scraper(http, CLOCK, ControlMetrics(), period_s=10.0, deadline_s=60.0)
            scraper.sources.follow([SourceSettings("s", server.url)])
            sourced = replace(
                target("main", "s"), pages=(FurtherPage(f"{nodes[0].url}/metrics", "engine"),)
            )
            (result,) = (await scraper.run([sourced], (), CLOCK.now())).nodes
            return result

    found = asyncio.run(run())
    assert sorted(sample.window.running or 0 for sample in found.samples) == [3, 4]


# --- servers that are no servers

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def ask_server(handler: Handler, work: Callable[[str], Awaitable[object]]) -> object:
    """Serve `handler` for every path and run `work` with the address."""

    async def run() -> object:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        async with in_process.closed(web.AppRunner(app, access_log=None, shutdown_timeout=0.1)) as runner:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            return await work(f"http://127.0.0.1:{runner.addresses[0][1]}")

    return asyncio.run(run())


def says(body: bytes, status: int = 200, **headers: str) -> Handler:
    async def handler(_request: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(body=body, status=status, headers=named, content_type="application/json")

    return handler


async def drip(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    try:
        while True:
            await answer.write(b" ")
            await asyncio.sleep(0.05)
    except ConnectionError:
        return answer


def matrix(series: object) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}}).encode()


HOSTILE: dict[str, Handler] = {
    "a login page": says(b"<html><form>sign in</form></html>"),
    "not authorised": says(b"no", 401),
    "a redirect to metadata": says(b"", 302, Location="http://169.254.169.254/latest/"),
    "an endless drip": drip,
    "a bomb": says(gzip.compress(b" " * 200_000_000, 1), Content_Encoding="gzip"),
    "half an answer": says(matrix([])[:-3]),
    "a list": says(b"[]"),
    "no data": says(b'{"status":"success"}'),
    "a scalar": says(b'{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}'),
    "series that are no objects": says(matrix(["x"])),
    "labels that are no object": says(matrix([{"metric": 7, "values": []}])),
    "samples that are no pairs": says(matrix([{"metric": {}, "values": [[1, "2", 3]]}])),
    "a value that is no number": says(matrix([{"metric": {}, "values": [[1, "many"]]}])),
    "a time out of range": says(matrix([{"metric": {}, "values": [[1e999, "1"]]}])),
    "a refusal": says(b'{"status":"error","errorType":"bad_data","error":"too many samples"}', 422),
    "a crash": says(b"oops", 500),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_answer_that_is_none_is_a_reason_and_no_crash(kind: str):
    async def read(url: str) -> object:
        async with open_session() as http:
            reader = SourceReader(http, CLOCK)
            reader.follow([SourceSettings("s", url)])
            found = await reader.read([Wanted("n", "s", "n:1")], period_s=10.0, deadline_s=1.0)
            return getattr(found["n"], "reason", None)

    assert ask_server(HOSTILE[kind], read) is Reason.SOURCE_DOWN


def test_one_answer_that_never_comes_costs_only_its_own_nodes():
    now_s = CLOCK.now().timestamp()

    async def answer(request: web.Request) -> web.StreamResponse:
        form = await request.post()
        if form["query"] == "slow":
            return await drip(request)
        up = {"metric": {"__name__": "up"}, "values": [[now_s, "1"]]}
        return web.Response(body=matrix([up]), content_type="application/json")

    async def read(url: str) -> object:
        async with open_session() as http:
            client = PromClient(http, CLOCK, SourceSettings("s", url))
            queries = [("a", None), ("slow", None), ("b", None), ("c", None)]
            return await ask_all(client, queries, deadline_s=15.0, at_once=2)

    first, slow, *others = cast("list[Answer | FleetError]", ask_server(answer, read))
    assert isinstance(slow, Unavailable)
    assert all(isinstance(one, Answer) and one.series[0].name == "up" for one in (first, *others))


def test_a_warned_answer_is_used_and_what_is_new_in_it_does_not_count_from_zero():
    now_s = CLOCK.now().timestamp() - 5
    labels = {"instance": "n:1", "job": "vllm"}
    up = {"metric": {"__name__": "up", **labels}, "values": [[now_s, "1"]]}
    running = {
        "metric": {"__name__": "vllm:num_requests_running", "engine": "0", "model_name": "m", **labels},
        "values": [[now_s, "2"]],
    }
    done = {
        "metric": {"__name__": "vllm:generation_tokens_total", "engine": "0", "model_name": "m", **labels},
        "values": [[now_s, "20"]],
    }
    answer = json.loads(matrix([up, running, done])) | {"warnings": ["store 10.0.0.7 did not answer"]}

    async def read(url: str) -> object:
        async with open_session() as http:
            reader = SourceReader(http, CLOCK)
            reader.follow([SourceSettings("s", url)])
            found = await reader.read([Wanted("n", "s", "n:1")], period_s=10.0, deadline_s=60.0)
            return found["n"]

    found = ask_server(says(json.dumps(answer).encode()), read)
    assert isinstance(found, SourcedPage)
    assert [engine.running for engine in found.page.engines] == [2]
    assert any("10.0.0.7" in remark for remark in found.page.dropped)


# --- who asks


def test_a_real_server_with_tls_and_a_password(tmp_path: Path):
    # the password is "test"; the hash is the one of Prometheus's documentation on basic authentication
    hashed = "$2b$12$hNf2lSsxfm0.i4a.1kVpSOVyBCfIB51VRjgBUyv6kdnyTlgWj81Ay"
    guard = {
        "tls_server_config": {"cert_file": str(TLS / "server.pem"), "key_file": str(TLS / "server.key")},
        "basic_auth_users": {"admin": hashed},
    }
    (tmp_path / "web.yml").write_text(json.dumps(guard))
    (tmp_path / "right").write_text("admin:test\n")
    (tmp_path / "wrong").write_text("admin:hunter2-nobody\n")

    async def ask(url: str, secret: str, ca: Path | None) -> FleetError | None:
        async with open_session() as http:
            settings = SourceSettings("s", url, basic_file=tmp_path / secret, ca_file=ca)
            try:
                await PromClient(http, CLOCK, settings).query("up", deadline_s=30.0)
            except FleetError as problem:
                return problem
        return None

    with prometheus(
        tmp_path, scrape_config([]), f"--web.config.file={tmp_path / 'web.yml'}", scheme="https"
    ) as running:
        assert asyncio.run(ask(running.url, "right", TLS / "server.pem")) is None
        stranger = asyncio.run(ask(running.url, "right", None))
        wrong = asyncio.run(ask(running.url, "wrong", TLS / "server.pem"))
    assert isinstance(stranger, Unavailable)  # the system does not know who signed this
    assert isinstance(wrong, Unavailable)
    assert "password" in wrong.hint
    assert "hunter2" not in f"{wrong.message} {wrong.hint} {wrong!r}"


def test_a_token_is_read_anew_at_each_call(tmp_path: Path):
    token = tmp_path / "token"
    seen: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(f"{request.headers['Authorization']} {request.headers['X-Scope-OrgID']}")
        return web.Response(body=matrix([]), content_type="application/json")

    async def ask(url: str) -> object:
        async with open_session() as http:
            client = PromClient(
                http, CLOCK, SourceSettings("s", f"{url}/prometheus", token_file=token, tenant="fleet")
            )
            for secret in ("first", "second"):
                token.write_text(f"{secret}\n")
                await client.query("up")
            token.write_text("two\nlines")
            with pytest.raises(InvalidInput, match="one line"):
                await client.query("up")
            token.unlink()
            with pytest.raises(InvalidInput, match="cannot be read"):
                await client.query("up")
        return None

    ask_server(handler, ask)
    assert seen == ["Bearer first fleet", "Bearer second fleet"]


def test_a_refusal_is_told_in_the_servers_words(server: PromServer):
    async def ask() -> object:
        async with open_session() as http:
            return await PromClient(http, CLOCK, SourceSettings("s", server.url)).query("sum(")

    with pytest.raises(QueryRefused, match=r"422|parse|bad"):
        asyncio.run(ask())
