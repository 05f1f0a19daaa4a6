"""A real vLLM with a tiny model: what we read of it, store of it and book for it is what was sent to it.

Runs where vLLM is installed (docs/real_engine.md). Every expected count comes from the client's side: the
lengths it asked for, the usage the engine answered, the streams it left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from control.commands_fleet import add_node, add_pool
from control.database import session_scope
from control.fetch import fetch_page, open_session
from control.roles import Actor, Role
from control.tables import HistogramEdgesRow, SampleRow, ScrapeFailureRow
from fleet.clock import SystemClock
from fleet.dialects import read_page
from fleet.readings import EngineWindow, PageReading, PageState
from fleet.windows import window
from tests.gateway_process import ADMIN_TOKEN, ROOT, GatewayProcess, assignment, events, eventually
from tests.postgres_server import FreshDatabase
from tests.tiny_engine import (
    CONFIG,
    MAX_NUM_SEQS,
    MISSING,
    MODEL,
    TinyEngine,
    engine_python,
    running_engine,
)

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(engine_python() is None, reason=MISSING),
]

ADMIN = Actor("ada", Role.ADMIN, "cli")
CLOCK = SystemClock()
#: (prompt tokens, output tokens) of whole answers and of streams read to their end.
WHOLE = [(20, 30), (50, 80), (33, 7), (128, 64)]
STREAMED = [(11, 40), (200, 25)]
LEFT_AFTER = 5  # chunks of the stream that is left
LEFT = (40, 900)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Generator[TinyEngine]:
    python = engine_python()
    assert python is not None
    with running_engine(python, tmp_path_factory.mktemp("engine")) as running:
        yield running


@dataclass(frozen=True)
class Read:
    """One page and when it was asked for."""

    page: PageReading
    at_s: float


def read(engine: TinyEngine) -> Read:
    async def fetch() -> Read:
        async with open_session() as http:
            fetched = await fetch_page(http, engine.metrics_url, clock=CLOCK)
        page = read_page(fetched.body, source=engine.metrics_url, content_type=fetched.content_type)
        return Read(page, fetched.started_s)

    return asyncio.run(fetch())


def between(before: Read, after: Read) -> EngineWindow:
    [only] = window(before.page, after.page, after.at_s - before.at_s)
    return only


def completion(prompt_tokens: int, output_tokens: int, *, first: int = 3, **extra: Any) -> dict[str, Any]:
    """A request of exact lengths: token ids in, the end mark ignored."""
    prompt = [first] + [3 + i % 200 for i in range(prompt_tokens - 1)]
    return {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        **extra,
    }


def leave(client: httpx.Client) -> int:
    """Start a long stream, read a few chunks, hang up. Return the chunks read."""
    seen = 0
    with client.stream("POST", "/v1/completions", json=completion(*LEFT, first=9, stream=True)) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            seen += line.startswith("data:")
            if seen == LEFT_AFTER:
                break
    return seen


def wait_until_idle(engine: TinyEngine) -> Read:
    def idle() -> Read | None:
        now = read(engine)
        [only] = now.page.engines
        return now if only.running == only.waiting == 0 else None

    found: Read = eventually(idle, within_s=60)
    return found


def send_everything(engine: TinyEngine) -> None:
    """Whole answers, streams read to their end, one stream left; returns when the engine is idle."""
    with httpx.Client(base_url=engine.base_url, trust_env=False, timeout=120) as client:
        for number, lengths in enumerate(WHOLE):
            answer = client.post("/v1/completions", json=completion(*lengths, first=10 + number))
            assert answer.status_code == 200
            usage = answer.json()["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == lengths
        for number, lengths in enumerate(STREAMED):
            body = completion(
                *lengths, first=50 + number, stream=True, stream_options={"include_usage": True}
            )
            usage = events(client.post("/v1/completions", json=body).text)[-2]["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == lengths
        assert leave(client) == LEFT_AFTER
    wait_until_idle(engine)


COMPLETED = len(WHOLE) + len(STREAMED)
PROMPT_TOKENS = sum(p for p, _ in (*WHOLE, *STREAMED, LEFT))
OUTPUT_TOKENS = sum(o for _, o in (*WHOLE, *STREAMED))
#: The left stream made at least what was read of it and at most what was asked for.
OUTPUT_RANGE = range(OUTPUT_TOKENS + LEFT_AFTER, OUTPUT_TOKENS + LEFT[1] + 1)


def test_an_idle_engine_reads_as_it_was_started(engine: TinyEngine) -> None:
    page = wait_until_idle(engine).page
    assert (page.state, page.dialect, page.shape) == (PageState.OK, "vllm", "prometheus_text")
    assert page.dropped == ()
    [only] = page.engines
    assert (only.model, only.running, only.waiting, only.kv_used_ratio) == (MODEL, 0, 0, 0.0)
    assert only.flags == ()
    # 1 GiB; a token takes a key and a value in each layer, 2 bytes a number
    heads = CONFIG["num_hidden_layers"] * CONFIG["num_key_value_heads"]
    assert only.kv_capacity_tokens == 2**30 // (2 * 2 * heads * CONFIG["head_dim"])


def test_a_window_of_pages_counts_what_was_sent(engine: TinyEngine) -> None:
    before = wait_until_idle(engine)
    send_everything(engine)
    seen = between(before, wait_until_idle(engine))
    assert not seen.restarted
    assert seen.completed == COMPLETED
    assert seen.aborted == 1  # vLLM's own abort counter stays 0; the page's HTTP side gives it away
    assert seen.arrivals == COMPLETED + 1
    assert seen.errors in (0, None)
    assert seen.prompt_tokens == PROMPT_TOKENS
    assert seen.generation_tokens in OUTPUT_RANGE
    assert seen.preemptions == 0
    assert {name: seen.histograms[name].count for name in ("e2e_s", "ttft_s", "queue_wait_s")} == {
        "e2e_s": COMPLETED,
        "ttft_s": COMPLETED + 1,
        "queue_wait_s": COMPLETED,
    }
    assert seen.histograms["generation_tokens"].sum == OUTPUT_TOKENS
    assert seen.histograms["prompt_tokens"].sum == PROMPT_TOKENS - LEFT[0]


def test_a_full_engine_shows_its_slots_and_its_queue(engine: TinyEngine) -> None:
    """Eight long requests on four slots: four run, four wait."""
    requests = 2 * MAX_NUM_SEQS

    async def fill() -> list[int]:
        async with httpx.AsyncClient(base_url=engine.base_url, trust_env=False, timeout=120) as client:
            sent = [
                asyncio.create_task(client.post("/v1/completions", json=completion(8, 800, first=70 + n)))
                for n in range(requests)
            ]
            await asyncio.to_thread(eventually, is_full, 60)
            return [answer.status_code for answer in await asyncio.gather(*sent)]

    def is_full() -> bool:
        [only] = read(engine).page.engines
        return (only.running, only.waiting) == (MAX_NUM_SEQS, requests - MAX_NUM_SEQS)

    before = wait_until_idle(engine)
    assert asyncio.run(fill()) == [200] * requests
    seen = between(before, wait_until_idle(engine))
    assert (seen.completed, seen.arrivals, seen.aborted) == (requests, requests, 0)
    assert seen.generation_tokens == requests * 800


@contextlib.contextmanager
def running_controller(database: FreshDatabase, log: Path) -> Generator[None]:
    """`rhodeck control` with a round every second; SIGTERM at the end."""
    environment = dict(os.environ) | {
        "DATABASE_URL": database.dsn,
        "RHODECK_ADMIN_TOKEN": ADMIN_TOKEN,
        "RHODECK_CONTROL_PORT": "0",
        "RHODECK_SCRAPE_PERIOD_S": "1",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "control", "control"], cwd=ROOT, env=environment, stdout=out, stderr=out
        )
    try:
        yield
        assert process.poll() is None, log.read_text()[-2_000:]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def samples(database: FreshDatabase) -> list[SampleRow]:
    with Session(database.engine) as session:
        return list(session.scalars(select(SampleRow).order_by(SampleRow.at)))


def total(rows: list[SampleRow], name: str) -> int:
    return sum(getattr(row, name) or 0 for row in rows)


def test_rounds_in_postgres_add_up_to_what_was_sent(
    engine: TinyEngine, database: FreshDatabase, tmp_path: Path
) -> None:
    wait_until_idle(engine)
    with session_scope(database.engine) as session:
        now = CLOCK.now()
        add_pool(session, ADMIN, name="cpu", models=[MODEL], now=now, max_num_seqs=MAX_NUM_SEQS)
        add_node(session, ADMIN, name="tiny-1", url=engine.base_url, pool="cpu", now=now)
    with running_controller(database, tmp_path / "control.log"):
        eventually(lambda: samples(database), within_s=60)
        send_everything(engine)
        sent_at = CLOCK.now()
        eventually(lambda: samples(database)[-1].at > sent_at, within_s=60)
    rows = samples(database)
    with Session(database.engine) as session:
        failures = list(session.scalars(select(ScrapeFailureRow.detail)))
        edges = {row.id: list(row.edges) for row in session.scalars(select(HistogramEdgesRow))}
    assert {(row.node, row.engine, row.model) for row in rows} == {("tiny-1", "0", MODEL)}
    assert rows[0].covered_s is None  # a first sight has no increments
    assert rows[0].completed is None
    expected = {"completed": COMPLETED, "prompt_tokens": PROMPT_TOKENS}
    assert {name: total(rows, name) for name in expected} == expected, failures
    assert total(rows, "generation_tokens") in OUTPUT_RANGE
    assert total(rows, "arrivals") == COMPLETED + 1
    assert total(rows, "aborted") == 1
    counts = {
        name: sum(sum(getattr(row, f"{name}_counts") or ()) for row in rows) for name in ("e2e", "ttft")
    }
    assert counts == {"e2e": COMPLETED, "ttft": COMPLETED + 1}
    assert {edges[row.e2e_edges][0] for row in rows if row.e2e_edges is not None} == {0.3}
    assert {row.kv_capacity_tokens for row in rows} == {2**21}
    assert not any(row.restarted for row in rows)


@pytest.fixture
def gateway(engine: TinyEngine, tmp_path: Path) -> Generator[GatewayProcess]:
    node = {"name": "tiny-1", "pool": "cpu", "base_url": engine.base_url, "models": [MODEL]}
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        answer = gateway.push(assignment([], nodes=[node]))
        assert answer.status_code == 200, answer.text
        eventually(lambda: gateway.status()["nodes_usable"] == 1, within_s=60)
        yield gateway


def test_the_gateway_books_exactly_what_the_engine_counted(
    engine: TinyEngine, gateway: GatewayProcess
) -> None:
    before = wait_until_idle(engine)
    chat = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "a request waits in a queue"}],
        "ignore_eos": True,
    }
    with gateway.client() as client:
        whole = client.post("/v1/chat/completions", json={**chat, "max_tokens": 33})
        streamed = client.post("/v1/chat/completions", json={**chat, "max_tokens": 21, "stream": True})
    assert (whole.status_code, streamed.status_code) == (200, 200)
    said = whole.json()["usage"]
    chunks = events(streamed.text)
    assert chunks[-1] == "[DONE]"
    assert all(chunk["choices"] for chunk in chunks[:-1]), "the usage chunk was not asked for"
    first, second = gateway.usage()
    assert (first["prompt_tokens"], first["output_tokens"]) == (said["prompt_tokens"], 33)
    assert (second["prompt_tokens"], second["output_tokens"]) == (said["prompt_tokens"], 21)
    for record in (first, second):
        assert record["exact"] is True
        assert (record["outcome"], record["node"], record["pool"]) == ("completed", "tiny-1", "cpu")
        assert record["model"] == MODEL
    assert second["ttft_s"] is not None
    counted = between(before, wait_until_idle(engine))
    assert counted.completed == 2
    assert counted.prompt_tokens == first["prompt_tokens"] + second["prompt_tokens"]
    assert counted.generation_tokens == 33 + 21
    status = gateway.status()
    assert (status["in_flight_requests"], status["in_flight_tokens"]) == (0, 0)


def test_a_client_that_leaves_the_gateway_leaves_the_engine_too(
    engine: TinyEngine, gateway: GatewayProcess
) -> None:
    before = wait_until_idle(engine)
    with gateway.client() as client:
        assert leave(client) == LEFT_AFTER
    after = wait_until_idle(engine)
    counted = between(before, after)
    assert (counted.completed, counted.aborted, counted.prompt_tokens) == (0, 1, LEFT[0])
    assert counted.generation_tokens is not None
    assert counted.generation_tokens < LEFT[1], "the engine went on for a client that was gone"
    [record] = eventually(gateway.usage)
    assert record["outcome"] == "client_gone"
    assert record["prompt_tokens"] > 0
    assert record["output_tokens"] >= LEFT_AFTER
    eventually(lambda: gateway.status()["in_flight_tokens"] == 0)
