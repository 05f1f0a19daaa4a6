"""Load in the form of vLLM's own benchmark client: many streamed completions of a fixed length at once.

The requests and the reading of the answers follow `vllm bench serve --backend openai` (its
`endpoint_request_func`): `ignore_eos`, `stream_options.include_usage`, events split at blank lines.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from tests.gateway_process import KEYS, ROOT, GatewayProcess, assignment, eventually

REQUESTS = 240
AT_ONCE = 80


@pytest.fixture
def nodes() -> Generator[list[dict[str, Any]]]:
    command = [sys.executable, "-m", "simfleet", "nodes", "--nodes", "2", "--profile", "h100-70b-fp8"]
    command += ["--seed", "3", "--base-port", "0", "--speed", "10"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        listed: list[dict[str, Any]] = []
        for line in process.stdout:
            if line.startswith("{"):
                listed.append(json.loads(line))
            if line.strip() == "ready":
                break
        try:
            yield listed
        finally:
            process.terminate()
            process.wait(10)


@dataclass
class Output:
    """What the benchmark keeps of one request."""

    success: bool = False
    text: str = ""
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    error: str = ""


async def request_completions(session: aiohttp.ClientSession, url: str, model: str, number: int) -> Output:
    """Send one request the benchmark's way and read its stream."""
    payload = {
        "model": model,
        "prompt": "word " * (20 + number % 50),
        "repetition_penalty": 1.0,
        "max_tokens": 8 + number % 25,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
    }
    headers = {"Authorization": f"Bearer {KEYS['acme']}", "x-request-id": f"bench-{number}"}
    output = Output()
    async with session.post(url, json=payload, headers=headers) as response:
        if response.status != 200:
            output.error = f"{response.status} {await response.text()}"
            return output
        held = ""
        async for chunk in response.content.iter_any():
            held += chunk.decode()
            while "\n\n" in held:
                message, held = held.split("\n\n", 1)
                data = message.strip().removeprefix("data: ")
                if data == "[DONE]":
                    output.success = True
                    continue
                document = json.loads(data)
                if choices := document.get("choices"):
                    output.text += choices[0].get("text") or ""
                elif usage := document.get("usage"):
                    output.output_tokens = usage.get("completion_tokens")
                    output.prompt_tokens = usage.get("prompt_tokens")
    return output


@pytest.mark.slow
def test_a_benchmark_gets_every_token_it_asked_for_and_usage_adds_up(
    tmp_path: Path, nodes: list[dict[str, Any]]
) -> None:
    model = httpx.get(f"{nodes[0]['base_url']}/v1/models").json()["data"][0]["id"]
    document = assignment([])
    document["policy"]["tiers"]["interactive"]["queue_timeout_s"] = 30
    document["nodes"] = [
        {"name": node["name"], "pool": "sim", "base_url": node["base_url"], "models": [model]}
        for node in nodes
    ]

    async def run(url: str) -> list[Output]:
        most = asyncio.Semaphore(AT_ONCE)
        connector = aiohttp.TCPConnector(limit=AT_ONCE, limit_per_host=AT_ONCE)
        timeout = aiohttp.ClientTimeout(total=240)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

            async def one(number: int) -> Output:
                async with most:
                    return await request_completions(session, url, model, number)

            return await asyncio.gather(*(one(number) for number in range(REQUESTS)))

    with GatewayProcess(tmp_path / "gw").running() as gateway:
        assert gateway.push(document).status_code == 200
        eventually(lambda: gateway.status()["nodes_usable"] == 2)
        outputs = asyncio.run(run(f"{gateway.base_url}/v1/completions"))
        assert [output.error for output in outputs if output.error] == []
        assert all(output.success for output in outputs)
        asked = [8 + number % 25 for number in range(REQUESTS)]
        assert [output.output_tokens for output in outputs] == asked
        assert [len(output.text.split()) for output in outputs] == asked
        eventually(lambda: len(gateway.usage()) == REQUESTS)
        records = gateway.usage()
        assert all(record["exact"] for record in records)
        assert sum(record["output_tokens"] for record in records) == sum(asked)
        assert sum(record["prompt_tokens"] for record in records) == sum(
            output.prompt_tokens or 0 for output in outputs
        )
        assert {record["node"] for record in records} == {node["name"] for node in nodes}
        assert gateway.metric("rhodeck_gateway_requests_total", outcome="completed") == REQUESTS
        status = gateway.status()
        assert (status["in_flight_requests"], status["in_flight_tokens"]) == (0, 0)
