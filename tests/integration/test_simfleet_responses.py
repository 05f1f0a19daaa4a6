"""Simulated nodes serve responses and tokenizing: the official client reads them, counters agree."""

from __future__ import annotations

import asyncio

import openai
import pytest

from fleet.clock import SystemClock
from fleet.dialects import read_page
from fleet.engine_profile import profile_named
from simfleet.server import SimFleet

TINY = profile_named("tiny")


def test_the_official_client_reads_a_nodes_responses() -> None:
    async def run() -> None:
        fleet = SimFleet(TINY, SystemClock(), nodes=1, seed=1, speed=20.0)
        await fleet.start()
        try:
            server = next(iter(fleet.servers.values()))
            async with openai.AsyncOpenAI(
                base_url=server.base_url + "/v1", api_key="none", max_retries=0, timeout=60
            ) as ai:
                extra = {"vllm_xargs": {"sim_output_tokens": 9}}
                whole = await ai.responses.create(
                    model=TINY.model, input="x" * 40, instructions="be brief", extra_body=extra
                )
                assert whole.usage is not None
                # 40 characters are 10 tokens, "be brief" 2, and 4 for each of the two messages
                assert (whole.usage.input_tokens, whole.usage.output_tokens) == (10 + 2 + 2 * 4, 9)
                assert whole.status == "completed"
                assert len(whole.output_text.split()) == 9
                stream = await ai.responses.create(
                    model=TINY.model, input="x" * 40, max_output_tokens=5, stream=True, extra_body=extra
                )
                events = [event async for event in stream]
                assert events[0].type == "response.created"
                assert [event.sequence_number for event in events] == list(range(len(events)))
                said = "".join(e.delta for e in events if e.type == "response.output_text.delta")
                last = events[-1]
                assert last.type == "response.completed"
                assert last.response.status == "incomplete"  # 9 were wanted, 5 allowed
                assert last.response.output_text == said
                assert last.response.usage is not None
                assert last.response.usage.output_tokens == len(said.split()) == 5
                async with ai.responses.stream(model=TINY.model, input="x" * 40, extra_body=extra) as kept:
                    final = await kept.get_final_response()  # the client's own accumulation of the events
                assert len(final.output_text.split()) == 9
                assert final.status == "completed"
                with pytest.raises(openai.NotFoundError):
                    await ai.responses.create(model="nobody", input="a")
                with pytest.raises(openai.BadRequestError):
                    await ai.responses.create(model=TINY.model, input="x" * 4 * TINY.max_model_len)
                told = await ai.post("/../tokenize", body={"prompt": "x" * 41}, cast_to=dict[str, object])
                assert (told["count"], len(told["tokens"])) == (11, 11)  # type: ignore[arg-type]
                page = await ai.get("/../metrics", cast_to=str)
            (engine,) = read_page(page.encode(), source="n").engines
            assert (engine.prompt_tokens, engine.generation_tokens) == (20 + 14 + 14, 9 + 5 + 9)
        finally:
            await fleet.stop()

    asyncio.run(run())
