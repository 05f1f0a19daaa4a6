"""Simulated nodes serve embeddings as pooling models do: the official client reads them, counters agree."""

from __future__ import annotations

import asyncio

import openai
import pytest

from fleet.clock import SystemClock
from fleet.dialects import read_page
from fleet.engine_profile import profile_named
from simfleet.server import SimFleet

TINY = profile_named("tiny")


def test_the_official_client_reads_a_nodes_embeddings() -> None:
    async def run() -> None:
        fleet = SimFleet(TINY, SystemClock(), nodes=1, seed=1)
        await fleet.start()
        try:
            server = next(iter(fleet.servers.values()))
            async with openai.AsyncOpenAI(
                base_url=server.base_url + "/v1", api_key="none", max_retries=0, timeout=60
            ) as ai:
                texts = ["x" * 40, "y" * 41, "x" * 40]  # four characters a token: 10 + 11 + 10
                packed = await ai.embeddings.create(model=TINY.model, input=texts)  # asks for base64 itself
                plain = await ai.embeddings.create(model=TINY.model, input=texts, encoding_format="float")
                ids = await ai.embeddings.create(model=TINY.model, input=[[1, 2, 3], [4]])
                assert (packed.usage.prompt_tokens, packed.usage.total_tokens) == (31, 31)
                assert ids.usage.prompt_tokens == 4
                assert [one.index for one in packed.data] == [0, 1, 2]
                for ours, same in zip(packed.data, plain.data, strict=True):
                    assert ours.embedding == pytest.approx(same.embedding, abs=1e-6)  # four bytes a number
                    assert sum(value * value for value in same.embedding) == pytest.approx(1.0)
                first, other, again = (one.embedding for one in plain.data)
                assert first == again
                # Two random directions in d dimensions: the cosine has standard deviation 1 / sqrt(d).
                cosine = sum(a * b for a, b in zip(first, other, strict=True))
                assert abs(cosine) < 5 / len(first) ** 0.5
                too_long = "x" * 4 * (TINY.max_model_len + 1)
                for wrong in (list[str](), too_long):
                    with pytest.raises(openai.BadRequestError):
                        await ai.embeddings.create(model=TINY.model, input=wrong)
                with pytest.raises(openai.BadRequestError, match="matryoshka"):
                    await ai.embeddings.create(model=TINY.model, input="a", dimensions=8)
                with pytest.raises(openai.NotFoundError):
                    await ai.embeddings.create(model="nobody", input="a")
                page = await ai.get("/../metrics", cast_to=str)
            (engine,) = read_page(page.encode(), source="n").engines
            assert (engine.prompt_tokens, engine.generation_tokens) == (31 + 31 + 4, 0)
            assert engine.finished["stop"] == 3 + 3 + 2  # a sequence each input
            assert (engine.running, engine.waiting, engine.kv_used_ratio) == (0, 0, 0.0)
        finally:
            await fleet.stop()
            await asyncio.sleep(0.1)  # transports close in the next turns of the loop

    asyncio.run(run())
