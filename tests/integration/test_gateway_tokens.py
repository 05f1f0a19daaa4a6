"""Prompts are booked as they are counted: by a tokenizer's file, by the engine, or estimated when late."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from fleet.decision import Decision, in_words
from tests.gateway_process import MODEL, PROMPT_TOKENS, FakeEngine, GatewayProcess, chat, eventually

PRIOR_OUTPUT = 1_024  # booked for an answer without max_tokens while there is no history


@pytest.fixture(scope="module")
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


def booked(gateway: GatewayProcess, request_id: str) -> tuple[int, str]:
    """Return the prompt's tokens of a request, and who counted them."""
    found = gateway.admin.get(f"/admin/decisions/{request_id}").json()["estimate"]
    return found["prompt_tokens"], found["prompt_basis"]


def test_a_prompt_is_booked_as_its_tokenizer_counts_it(tmp_path: Path, engine: FakeEngine) -> None:
    words = {f"w{number}": number for number in range(50)} | {"[UNK]": 50}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (tmp_path / "files" / MODEL).mkdir(parents=True)
    made.save(str(tmp_path / "files" / MODEL / "tokenizer.json"))
    (tmp_path / "files" / MODEL / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }} : {{ m.content }} ; {% endfor %}"
    )
    flags = ("--tokenizers-dir", str(tmp_path / "files"), "--tokenizer-budget-s", "10")
    with GatewayProcess(tmp_path / "gw", *flags).running() as gateway:
        gateway.push_and_open([engine])
        eventually(lambda: "tokenizer read" in gateway.log_path.read_text())
        with gateway.client() as client:
            text = " ".join(f"w{number}" for number in range(50)) + " tokens=2"
            plain = {"model": MODEL, "prompt": text, "max_tokens": 4}
            whole = client.post("/v1/completions", json=plain)
            again = client.post("/v1/completions", json=plain | {"temperature": 0.5})
            talk = client.post("/v1/chat/completions", json=chat("w1 w2 tokens=2"))
        basis = "counted by its tokenizer"
        assert booked(gateway, whole.headers["x-request-id"]) == (51, basis)  # words; bytes say about 40
        assert booked(gateway, again.headers["x-request-id"]) == (51, basis)
        assert booked(gateway, talk.headers["x-request-id"]) == (3 + 3, basis)  # user : w1 w2 tokens=2 ;
        told = gateway.admin.get(f"/admin/decisions/{talk.headers['x-request-id']}").content
        said = "\n".join(in_words(Decision.model_validate_json(told)))
        assert "prompt 6 tokens (counted by its tokenizer)" in said
        counted = {
            result: gateway.metric("rhodeck_gateway_prompt_counts_total", result=result)
            for result in ("counted", "cached", "late")
        }
        assert counted == {"counted": 2, "cached": 1, "late": 0}
        # The engine counts 7 for anything: the estimate it would have been is judged by that all the same.
        assert gateway.metric("rhodeck_gateway_bytes_per_token", model=MODEL) > 4
        assert gateway.metric("rhodeck_gateway_prompt_estimate_error_ratio", model=MODEL) > 1
        [(model, fit)] = gateway.status()["prompts"].items()
        assert model == MODEL
        assert fit["bytes_per_token"] > 4
        known = {record["prompt_tokens"] for record in gateway.usage()}
        [worker] = children(gateway.process.pid)
        gateway.kill()
        eventually(lambda: not Path(f"/proc/{worker}").exists())  # nobody is left to count for
    assert known == {PROMPT_TOKENS}


def children(pid: int) -> list[int]:
    """Return the processes a process started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_an_engine_counts_where_that_is_set_and_a_late_one_delays_nobody(
    tmp_path: Path, engine: FakeEngine
) -> None:
    flags = ("--tokenize-by-engine", "true", "--tokenizer-budget-s", "0.3")
    with GatewayProcess(tmp_path / "gw", *flags).running() as gateway:
        gateway.push_and_open([engine])
        with gateway.client() as client:

            def counted() -> tuple[int, str] | None:
                """Send until the count was there in time: a busy machine may be late at the first."""
                answer = client.post("/v1/chat/completions", json=chat("é tokens=2"))
                found = booked(gateway, answer.headers["x-request-id"])
                return found if found[1] else None

            first = eventually(counted)
            late_before = gateway.metric("rhodeck_gateway_prompt_counts_total", result="late")
            engine.holds_tokenize = threading.Event()
            try:
                late = client.post("/v1/chat/completions", json=chat("another tokens=2"))
            finally:
                engine.holds_tokenize.set()
                engine.holds_tokenize = None
        exact = len("<user>é tokens=2".encode())  # the engine of the tests: bytes are its tokens
        assert first == (exact, "counted by an engine")
        assert late.status_code == 200
        assert booked(gateway, late.headers["x-request-id"])[1] == ""
        assert gateway.metric("rhodeck_gateway_prompt_counts_total", result="late") == late_before + 1


def test_a_stream_is_booked_by_its_tokens_where_an_event_carries_several(
    tmp_path: Path, engine: FakeEngine
) -> None:
    """As with vLLM's --stream-interval 4. Counted by events a stream held a quarter of what it books."""
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        gateway.push_and_open([engine])
        body = {"model": MODEL, "stream": True}
        with gateway.client() as client:
            for _ in range(20):
                text = "tokens=100 per_event=4"
                client.post("/v1/chat/completions", json=body | {"messages": chat(text)["messages"]})
            # Stands still after 350 events: 1,400 tokens, more than was booked.
            stalls = body | {"messages": chat("tokens=700 per_event=4 fault=stall")["messages"]}
            with client.stream("POST", "/v1/chat/completions", json=stalls) as answer:
                assert answer.status_code == 200
                eventually(lambda: engine.served[-1].output_tokens == 1_400)
                held = eventually(lambda: (now := gateway.status()["in_flight_tokens"]) > 1_300 and now)
            eventually(lambda: gateway.status()["in_flight_requests"] == 0)
        record = gateway.usage()[-1]
    assert PRIOR_OUTPUT < 1_300 < held < 1_500
    # Of each stream two events are left out: (20 * 398 + 20) / (20 * 98 + 20) = 4.03 tokens an event.
    assert record["output_tokens"] == pytest.approx(1_400, rel=0.02)
    assert not record["exact"]
