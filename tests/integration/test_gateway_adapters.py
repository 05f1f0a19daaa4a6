"""LoRA adapters that nodes hold are found and routed to, where the policy says so."""

from __future__ import annotations

from pathlib import Path

from tests.gateway_process import MODEL, FakeEngine, GatewayProcess, assignment, chat, eventually


def test_requests_for_an_adapter_go_to_the_nodes_that_hold_it(tmp_path: Path) -> None:
    with (
        FakeEngine("node-1", adapters=["sql-lora"]).serving() as first,
        FakeEngine("node-2").serving() as second,
        GatewayProcess(tmp_path / "gw").running() as gateway,
        gateway.client() as client,
    ):
        engines = [first, second]

        def listed() -> list[str]:
            return [one["id"] for one in client.get("/v1/models").json()["data"]]

        def ask(model: str) -> int:
            return client.post("/v1/chat/completions", json=chat() | {"model": model}).status_code

        gateway.push_and_open(engines)
        assert ask("sql-lora") == 404  # by default nodes serve what they are registered with
        document = assignment(engines, generation=2)
        document["policy"]["routing"] = {"adapters": "discovered"}
        assert gateway.push(document).status_code == 200
        eventually(lambda: listed() == [MODEL, "sql-lora"])
        assert [ask("sql-lora") for _ in range(6)] == [200] * 6
        assert [len(engine.served) for engine in engines] == [6, 0]
        assert {record["model"] for record in gateway.usage()} == {"sql-lora"}
        for _ in range(4):  # its tokenizer is where the adapter is
            there = client.post("/tokenize", json={"model": "sql-lora", "prompt": "a"})
            assert there.status_code == 200
        assert [len(engine.tokenized) for engine in engines] == [4, 0]
        assert [ask(MODEL) for _ in range(6)] == [200] * 6
        assert len(first.served) + len(second.served) == 12
        # a push that is about something else loses nothing, and an adapter that is unloaded goes
        document["generation"] = 3
        assert gateway.push(document).status_code == 200
        assert listed() == [MODEL, "sql-lora"]
        first.adapters.clear()
        eventually(lambda: listed() == [MODEL])
        assert ask("sql-lora") == 404
        assert gateway.status()["in_flight_tokens"] == 0
