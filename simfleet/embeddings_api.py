"""`/v1/embeddings` of a simulated node, in vLLM 0.32's shapes for a pooling model. Pure.

Lengths are tokens, counted as in `simfleet.openai_api`. A vector follows from its input alone and has
length 1, so equal texts are equal and others are about orthogonal. Prevents: embeddings that cannot be
tried through the gateway without a real engine.
"""

from __future__ import annotations

import base64
import math
import random
import struct
import zlib
from typing import Any, cast

import orjson

from fleet.engine_profile import EngineProfile
from simfleet.openai_api import ApiError, GenerationCall, prompt_tokens

DIMENSIONS = 256
MAX_INPUTS = 2048


def parse_embeddings(body: bytes, *, profile: EngineProfile, model: str) -> GenerationCall:
    """Read a request body. Raises ApiError with vLLM's status and message."""
    try:
        data: object = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise ApiError(400, f"1 validation error:\n  {{'type': 'json_invalid', 'msg': '{exc}'}}") from exc
    if not isinstance(data, dict):
        raise ApiError(400, "1 validation error:\n  {'type': 'dict_type', 'loc': 'body'}")
    fields = cast("dict[str, Any]", data)
    asked = fields.get("model")
    if asked is not None and asked != model:
        raise ApiError(404, f"The model `{asked}` does not exist. Valid aliases: {model}.", "model")
    encoding = fields.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise ApiError(400, f"encoding_format must be float or base64, got {encoding!r}", "encoding_format")
    if fields.get("dimensions") is not None:
        raise ApiError(
            400,
            f'Model "{model}" does not support matryoshka representation, '
            "changing output dimensions will lead to poor results.",
            "dimensions",
        )
    given: Any = fields.get("input")
    sizes = prompt_tokens(given, "body.input")
    if len(sizes) > MAX_INPUTS:
        raise ApiError(400, f"{len(sizes)} inputs are more than {MAX_INPUTS}", "input")
    context = min(profile.max_model_len, profile.kv_capacity_tokens)
    if max(sizes) > context:
        raise ApiError(
            400,
            f"This model's maximum context length is {context} tokens. However, you requested {max(sizes)} "
            "tokens in the input for embedding generation. Please reduce the length of the input.",
            "input",
        )
    is_one = isinstance(given, str) or (isinstance(given, list) and isinstance(given[0], int))
    inputs: list[Any] = [given] if is_one else given
    return GenerationCall(
        is_chat=False,
        model=model,
        prompt_tokens=sizes,
        choices=1,
        max_tokens=None,
        limits=(0,) * len(sizes),
        ignore_eos=False,
        output_tokens=None,
        priority=0,
        is_stream=False,
        include_usage=False,
        seeds=tuple(zlib.crc32(orjson.dumps(one)) for one in inputs),
        is_packed=encoding == "base64",
    )


def vector(seed: int) -> list[float]:
    """Return `DIMENSIONS` numbers of length 1 in a direction that follows from the seed."""
    rng = random.Random(seed)
    found = [rng.gauss(0.0, 1.0) for _ in range(DIMENSIONS)]
    length = math.hypot(*found)
    return [value / length for value in found]


def embeddings_answer(call: GenerationCall, answer_id: str, created: int) -> bytes:
    """Return the body of an answer: one vector an input, in the order of the inputs."""
    vectors = [vector(seed) for seed in call.seeds]
    shown: list[Any] = [_packed(one) for one in vectors] if call.is_packed else list(vectors)
    total = sum(call.prompt_tokens)
    return orjson.dumps(
        {
            "id": answer_id,
            "object": "list",
            "created": created,
            "model": call.model,
            "data": [
                {"index": index, "object": "embedding", "embedding": one} for index, one in enumerate(shown)
            ],
            "usage": {
                "prompt_tokens": total,
                "total_tokens": total,
                "completion_tokens": 0,
                "prompt_tokens_details": None,
            },
        }
    )


def _packed(values: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
