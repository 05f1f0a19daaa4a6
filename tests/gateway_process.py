"""Real parts for tests of the gateway: an engine that speaks HTTP, a gateway process, a client.

`FakeEngine` serves enough of vLLM's paths on a real socket and keeps its own truth: for each request
what it counted and how it ended. A prompt's text commands it, for example "tokens=20 pause=0.01
fault=cut". `GatewayProcess` is `python -m admission` on a free port. Times are seconds.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
from aiohttp import web

from tests import engine_endpoints, in_process

ROOT = Path(__file__).parents[1]
ADMIN_TOKEN = "rk-admin-0123456789abcdef0123456789"
KEYS = {"acme": "rk-key-acme-AAAAAAAAAAAAAAAA", "globex": "rk-key-globex-BBBBBBBBBBBBBBBB"}
MODEL = "m-70b"
PROMPT_TOKENS = 7  # what the fake engine counts for any prompt


@dataclass
class Served:
    """What the engine itself knows of one request."""

    request_id: str
    body: dict[str, Any]
    headers: dict[str, str]
    output_tokens: int = 0
    ending: str = "running"  # "finished", "aborted", "cut", "refused"


@dataclass
class FakeEngine:
    """One node. Start it with `serving()`."""

    name: str
    kv_blocks: int = 4_000  # of 16 tokens
    served: list[Served] = field(default_factory=list)
    is_healthy: bool = True
    is_broken: bool = False  # it answers 500 to every request, whatever it says
    freezes_metrics: bool = False
    metrics_pauses_s: list[float] = field(default_factory=list)  # before its next answers to a poll
    hides_kv: bool = False
    port: int = 0
    polls: int = 0
    adapters: list[str] = field(default_factory=list)  # of MODEL
    prompt_tokens: int = PROMPT_TOKENS
    tokenized: list[dict[str, Any]] = field(default_factory=list)
    holds_tokenize: threading.Event | None = None  # until it is set, no tokenizing is answered
    tokenize_status: int = 200

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> int:
        return sum(1 for request in self.served if request.ending == "running")

    @contextlib.contextmanager
    def serving(self) -> Generator[Self]:
        """Serve on a thread of its own until the block ends."""
        ready = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        thread.start()
        assert ready.wait(10)
        try:
            yield self
        finally:
            self.stop()
            thread.join(10)

    def stop(self) -> None:
        """Close the listening socket and cut every connection, as a killed engine does."""
        if self._stop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
            self._stopped.wait(10)

    _stop: asyncio.Event | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._chat)
        app.router.add_post("/v1/embeddings", self._embed)
        engine_endpoints.add_routes(app, self)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = runner.addresses[0][1]
        ready.set()
        await self._stop.wait()
        await in_process.close(runner)
        self._stopped.set()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_healthy else 503)

    async def _models(self, _: web.Request) -> web.Response:
        names = [(MODEL, None), *((name, MODEL) for name in self.adapters)]
        listed = [{"id": name, "object": "model", "parent": parent} for name, parent in names]
        return web.json_response({"object": "list", "data": listed})

    async def _metrics(self, _: web.Request) -> web.Response:
        self.polls += 1
        if self.metrics_pauses_s:
            await asyncio.sleep(self.metrics_pauses_s.pop(0))
        if self.freezes_metrics:
            await asyncio.sleep(60)
        label = f'engine="0",model_name="{MODEL}"'
        finished = sum(1 for request in self.served if request.ending == "finished")
        lines = [
            f"vllm:num_requests_running{{{label}}} {self.running}",
            f"vllm:num_requests_waiting{{{label}}} 0",
            f'vllm:request_success_total{{{label},finished_reason="stop"}} {finished}',
            f"vllm:generation_tokens_total{{{label}}} {sum(r.output_tokens for r in self.served)}",
            f"vllm:prompt_tokens_total{{{label}}} {PROMPT_TOKENS * len(self.served)}",
            f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{self.kv_blocks}"}} 1.0',
            "process_start_time_seconds 1.7e9",
        ]
        if not self.hides_kv:
            lines.append(f"vllm:kv_cache_usage_perc{{{label}}} 0.0")
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def _embed(self, request: web.Request) -> web.Response:
        served = await self.note(request)
        served.ending = "finished"
        usage = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS}
        given = served.body["input"]
        count = len(given) if isinstance(given, list) and not isinstance(given[0], int) else 1
        is_packed = served.body.get("encoding_format") == "base64"
        vector: Any = base64.b64encode(struct.pack("<2f", 0.5, -1.0)).decode() if is_packed else [0.5, -1.0]
        data = [{"object": "embedding", "index": index, "embedding": vector} for index in range(count)]
        return web.json_response({"object": "list", "model": MODEL, "data": data, "usage": usage})

    async def note(self, request: web.Request) -> Served:
        body = json.loads(await request.read())
        served = Served(request.headers.get("X-Request-Id", ""), body, dict(request.headers))
        self.served.append(served)
        if self.is_broken:
            served.ending = "refused"
            raise web.HTTPInternalServerError(text='{"error":"boom"}')
        return served

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        served = await self.note(request)
        text = served.body["messages"][0]["content"] if "messages" in served.body else served.body["prompt"]
        command = dict(word.split("=") for word in text.split() if "=" in word)
        tokens, pause = int(command.get("tokens", 3)), float(command.get("pause", 0))
        fault = command.get("fault")
        try:
            if fault == "500":
                served.ending = "refused"
                return web.json_response({"error": "boom at 10.0.0.7"}, status=500)
            if fault in ("302", "401"):
                served.ending = "refused"
                location = {"Location": f"{self.base_url}/v1/embeddings"}
                return web.Response(status=int(fault), headers=location, text='{"usage":{}}')
            if fault in ("299", "460"):  # numbers that no standard names
                served.ending = "finished" if fault == "299" else "refused"
                return web.json_response({"usage": self._usage(served)}, status=int(fault))
            if fault == "400":
                served.ending = "refused"
                return web.json_response({"error": {"message": "bad max_tokens"}}, status=400)
            if fault == "reset":
                served.ending = "cut"
                request.transport.abort()
                return web.Response()
            if served.body.get("stream"):
                per_event = int(command.get("per_event", 1))
                return await self._stream(request, served, tokens, pause, fault, per_event)
            for _ in range(tokens):
                await asyncio.sleep(pause)
                served.output_tokens += 1
            served.ending = "finished"
            message = {"role": "assistant", "content": "word " * tokens}
            return web.json_response({"choices": [{"message": message}], "usage": self._usage(served)})
        except (asyncio.CancelledError, ConnectionError):
            served.ending = "aborted"
            raise

    async def _stream(
        self,
        request: web.Request,
        served: Served,
        tokens: int,
        pause: float,
        fault: str | None,
        per_event: int,
    ) -> web.StreamResponse:
        """Stream `tokens` events of `per_event` tokens each."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for index in range(tokens):
            if fault == "cut" and index == tokens // 2:
                served.ending = "cut"
                request.transport.abort()
                return response
            if fault == "stall" and index == tokens // 2:
                await asyncio.Event().wait()
            await asyncio.sleep(pause)
            served.output_tokens += per_event
            await self._event(response, {"choices": [{"delta": {"content": f"w{index}"}}]})
        if fault == "in_stream":
            served.ending = "refused"
            await self._event(response, {"error": {"message": "overloaded", "code": 503}})
        options = served.body.get("stream_options") or {}
        if options.get("include_usage") and fault != "no_usage":
            await self._event(response, {"choices": [], "usage": self._usage(served)})
        if fault == "malformed":
            await response.write(b"data: {not json\n\ndata: ")
            served.ending = "finished"
            return response
        if fault != "in_stream":
            served.ending = "finished"
        await response.write(b"data: [DONE]\n\n")
        if fault == "late_cut":
            request.transport.abort()
        if fault == "late_stall":
            await asyncio.Event().wait()
        return response

    async def _event(self, response: web.StreamResponse, document: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(document).encode() + b"\n\n")

    def _usage(self, served: Served) -> dict[str, Any]:
        return {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": served.output_tokens,
            "total_tokens": PROMPT_TOKENS + served.output_tokens,
            "prompt_tokens_details": {"cached_tokens": 2},
        }


def assignment(engines: list[FakeEngine], **changes: Any) -> dict[str, Any]:
    """Return an assignment document with roomy limits. `changes` replace top-level parts."""
    share = {
        "tokens_per_minute": 10**9,
        "burst_tokens": 10**9,
        "max_in_flight_tokens": 10**9,
        "max_concurrent_requests": 10_000,
    }
    tiers = ["interactive", "batch", "best_effort"]
    quota = {"tier": "interactive", "allowed_tiers": tiers, **share}
    seconds = {"interactive": 1.5, "batch": 30, "best_effort": 30}
    weights = {"interactive": 70, "batch": 25, "best_effort": 5}
    priority = {"interactive": 0, "batch": 10, "best_effort": 20}
    policy = {
        "tiers": {
            tier: {
                "weight": weights[tier],
                "queue_timeout_s": seconds[tier],
                "max_queued_requests": 500,
                "engine_priority": priority[tier],
            }
            for tier in tiers
        },
        "tenants": {tenant: dict(quota) for tenant in KEYS},
    }
    document = {
        "gateway": "gw-test",
        "epoch": 1,
        "generation": 1,
        "revision": 1,
        "policy": policy,
        "shares": {tenant: dict(share) for tenant in KEYS},
        "kv_share_ratio": 1.0,
        "nodes": [
            {"name": engine.name, "pool": "main", "base_url": engine.base_url, "models": [MODEL]}
            for engine in engines
        ],
        "credentials": [
            {"key_id": f"k-{tenant}", "sha256": hashlib.sha256(key.encode()).hexdigest(), "tenant": tenant}
            for tenant, key in KEYS.items()
        ],
    }
    return document | changes


class GatewayProcess:
    """A gateway as a child process. Its log lines are in `log_path`."""

    def __init__(self, state_dir: Path, *flags: str, name: str = "gw-test") -> None:
        self.state_dir = state_dir
        self.name = name
        self.flags = flags
        self.log_path = state_dir.parent / f"{state_dir.name}.log"
        self.port = 0
        self.admin: Any = None  # a client of the admin API, once it runs
        self._epochs = 0
        self._seq_before = 0
        self._page_before: list[str] = []

    @contextlib.contextmanager
    def running(self) -> Generator[GatewayProcess]:
        """Run it until the block ends."""
        self.start()
        try:
            yield self
        finally:
            self.kill()

    def start(self) -> None:
        """Start the process and wait until it listens."""
        begin = self.log_path.stat().st_size if self.log_path.exists() else 0
        command = [sys.executable, "-m", "admission", "--name", self.name, "--port", "0"]
        command += ["--state-dir", str(self.state_dir), *self.flags]
        environment = dict(os.environ) | {"RHODECK_GATEWAY_ADMIN_TOKEN": ADMIN_TOKEN}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        self.port = int(eventually(lambda: self._listening_port(begin)))
        self.base_url = f"http://127.0.0.1:{self.port}"
        if self.admin is not None:
            self.admin.close()
        self.admin = httpx.Client(
            base_url=self.base_url, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}, trust_env=False
        )

    def _listening_port(self, begin: int) -> int | None:
        if self.process.poll() is not None:
            raise AssertionError(f"the gateway ended: {self.log_path.read_text()[-2_000:]}")
        for line in self.log_path.read_bytes()[begin:].splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if entry.get("message") == "gateway listens":
                    return entry["port"]
        return None

    def kill(self) -> None:
        """`kill -9`."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self.admin.close()

    def terminate(self) -> None:
        """SIGTERM; returns at once."""
        self.process.send_signal(signal.SIGTERM)

    def begin_anew(self, engines: list[FakeEngine]) -> None:
        """Make a shared gateway look fresh: newer epochs, counters and usage from here on."""
        self._epochs += 1
        for engine in engines:
            engine.served.clear()
            engine.tokenized.clear()
        self.push_and_open(engines)
        self._seq_before = self.status()["usage_last_seq"]
        self._page_before = self.admin.get("/metrics").text.splitlines()

    def push(self, document: dict[str, Any]) -> httpx.Response:
        """Push a document; its epoch is raised by the number of times this gateway began anew."""
        document = document | {"epoch": document["epoch"] + self._epochs}
        return self.admin.put("/admin/assignment", json=document)

    def push_and_open(self, engines: list[FakeEngine], **changes: Any) -> None:
        """Push, and wait until every node is usable."""
        response = self.push(assignment(engines, **changes))
        assert response.status_code == 200, response.text
        eventually(lambda: self.status()["nodes_usable"] == len(engines))

    def status(self) -> dict[str, Any]:
        response = self.admin.get("/admin/status")
        assert response.status_code == 200, response.text
        return response.json()

    def usage(self, after: int | None = None) -> list[dict[str, Any]]:
        """Return all usage records after a number (since it began anew)."""
        after = self._seq_before if after is None else after
        return self.admin.get(f"/admin/usage?after={after}&limit=10000").json()["records"]

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that carry `labels`; of counters since it began anew."""
        before = _sum(self._page_before, name, labels) if name.endswith("_total") else 0.0
        return _sum(self.admin.get("/metrics").text.splitlines(), name, labels) - before

    def client(self, tenant: str = "acme", **headers: str) -> httpx.Client:
        """Return a client with the tenant's key."""
        return httpx.Client(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {KEYS[tenant]}", **headers},
            trust_env=False,
            timeout=30,
        )


def _sum(lines: list[str], name: str, labels: dict[str, str]) -> float:
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.partition("{")[0].partition(" ")[0] == name
        and all(f'{label}="{value}"' in line for label, value in labels.items())
    )


def chat(text: str = "tokens=3", **extra: Any) -> dict[str, Any]:
    """Return a chat body."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 64, **extra}


def events(text: str) -> list[Any]:
    """Return the events of a stream: JSON documents, and "[DONE]"."""
    payloads = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


def eventually(probe: Callable[[], Any], within_s: float = 120.0) -> Any:
    """Return the probe's first true value. Fails after `within_s`, which only bounds a hang."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        value = probe()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("it never became true")
