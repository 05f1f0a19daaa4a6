"""The gateway in front of simulated vLLM nodes: what it counts is what the nodes count themselves."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.gateway_process import KEYS, ROOT, GatewayProcess, assignment, events, eventually

_COUNTED = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total")


@pytest.fixture
def nodes() -> Generator[list[dict[str, Any]]]:
    command = [sys.executable, "-m", "simfleet", "nodes", "--nodes", "3", "--profile", "tiny"]
    command += ["--seed", "1", "--base-port", "0"]
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


def counted(nodes: list[dict[str, Any]]) -> dict[str, float]:
    """Return the sums of the nodes' own counters."""
    totals = dict.fromkeys(_COUNTED, 0.0)
    for node in nodes:
        for line in httpx.get(f"{node['base_url']}/metrics").text.splitlines():
            name = line.partition("{")[0]
            if name in totals:
                totals[name] += float(line.rpartition(" ")[2])
    return totals


def test_usage_is_exact_against_the_nodes_own_counters(tmp_path: Path, nodes: list[dict[str, Any]]) -> None:
    listed = httpx.get(f"{nodes[0]['base_url']}/v1/models").json()
    model = listed["data"][0]["id"]
    document = assignment([])
    document["nodes"] = [
        {"name": node["name"], "pool": "sim", "base_url": node["base_url"], "models": [model]}
        for node in nodes
    ]
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        assert gateway.push(document).status_code == 200
        eventually(lambda: gateway.status()["nodes_usable"] == 3)
        codes: list[int] = []

        def run(tenant: str, index: int) -> None:
            message = {"role": "user", "content": "word " * (10 + 7 * index)}
            body = {"model": model, "messages": [message], "max_tokens": 5 + index}
            headers = {"X-Rhodeck-Tier": "batch"}
            with gateway.client(tenant, **headers) as client:
                for stream in (False, True):
                    response = client.post("/v1/chat/completions", json=body | {"stream": stream})
                    codes.append(response.status_code)
                    if stream:
                        assert events(response.text)[-1] == "[DONE]"

        threads = [
            threading.Thread(target=run, args=(tenant, index))
            for tenant in ("acme", "globex")
            for index in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert codes == [200] * 32
        records = gateway.usage()
        truth = counted(nodes)
        assert all(record["exact"] for record in records)
        assert len(records) == truth["vllm:request_success_total"] == 32
        assert sum(record["prompt_tokens"] for record in records) == truth["vllm:prompt_tokens_total"]
        assert sum(record["output_tokens"] for record in records) == truth["vllm:generation_tokens_total"]
        assert {record["node"] for record in records} == {node["name"] for node in nodes}
        status = gateway.status()
        assert (status["in_flight_requests"], status["in_flight_tokens"]) == (0, 0)


def test_embeddings_are_booked_and_metered_as_the_nodes_count_them(
    tmp_path: Path, nodes: list[dict[str, Any]]
) -> None:
    model = httpx.get(f"{nodes[0]['base_url']}/v1/models").json()["data"][0]["id"]
    document = assignment([])
    document["nodes"] = [
        {"name": node["name"], "pool": "sim", "base_url": node["base_url"], "models": [model]}
        for node in nodes
    ]
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        assert gateway.push(document).status_code == 200
        eventually(lambda: gateway.status()["nodes_usable"] == 3)
        with openai.OpenAI(
            base_url=gateway.base_url + "/v1", api_key=KEYS["acme"], max_retries=0, timeout=60
        ) as ai:
            for count in (1, 2, 5):
                answer = ai.embeddings.create(model=model, input=["a few words"] * count)
                assert len(answer.data) == count
                assert answer.usage.prompt_tokens == 3 * count  # eleven characters, four a token
        eventually(lambda: len(gateway.usage()) == 3)
        records = gateway.usage()
        assert [record["endpoint"] for record in records] == ["embeddings"] * 3
        assert [record["prompt_tokens"] for record in records] == [3, 6, 15]
        assert all(record["exact"] and record["output_tokens"] == 0 for record in records)
        truth = counted(nodes)
        assert truth["vllm:prompt_tokens_total"] == 3 * (1 + 2 + 5)
        assert truth["vllm:generation_tokens_total"] == 0
        assert gateway.status()["in_flight_tokens"] == 0


def test_prompts_and_answers_are_computed_on_different_nodes(
    tmp_path: Path, nodes: list[dict[str, Any]]
) -> None:
    model = httpx.get(f"{nodes[0]['base_url']}/v1/models").json()["data"][0]["id"]
    document = assignment([])
    document["nodes"] = [
        {"name": node["name"], "pool": role, "base_url": node["base_url"], "models": [model], "role": role}
        for node, role in zip(nodes, ("prefill", "decode", "decode"), strict=True)
    ]
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        assert gateway.push(document).status_code == 200
        eventually(lambda: gateway.status()["nodes_usable"] == 3)
        with gateway.client(**{"X-Rhodeck-Tier": "batch"}) as client:
            for number in range(6):
                message = {"role": "user", "content": "word " * (10 + 7 * number)}
                body = {"model": model, "messages": [message], "max_tokens": 6, "stream": number % 2 == 0}
                body |= {"vllm_xargs": {"sim_output_tokens": 6}}
                response = client.post("/v1/chat/completions", json=body)
                assert response.status_code == 200
        records = gateway.usage()
        assert len(records) == 6
        assert {record["node"] for record in records} <= {nodes[1]["name"], nodes[2]["name"]}
        assert all(record["exact"] and record["output_tokens"] == 6 for record in records)
        prefill, decode = counted(nodes[:1]), counted(nodes[1:])
        assert prefill["vllm:generation_tokens_total"] == prefill["vllm:request_success_total"] == 6
        assert decode["vllm:generation_tokens_total"] == 36
        prompts = sum(record["prompt_tokens"] for record in records)
        assert prefill["vllm:prompt_tokens_total"] == prompts
        assert gateway.metric("rhodeck_gateway_prefills_total", result="done") == 6
        status = gateway.status()
        assert (status["in_flight_requests"], status["in_flight_tokens"]) == (0, 0)
        assert gateway.metric("rhodeck_gateway_node_kv_tokens", kind="booked") == 0
