"""What is served here: the list of models, one model, and what is said of everything else.

Prevents: a path that looks like OpenAI's and is not served answered so that a client goes on trying.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import orjson

from admission.answers import Answer, error_body, invalid_answer
from admission.calls import ENDPOINTS
from admission.identity import Headers, caller_of
from admission.passthrough import PASSED
from admission.state import GatewayState
from fleet.errors import FleetError, NotFound, Unauthenticated, Unavailable

MODELS = "/v1/models"
_SERVED = ", ".join(("GET /v1/models", *(f"POST {path}" for path in (*ENDPOINTS, *PASSED))))


def models_answer(state: GatewayState, headers: Headers, path: str) -> Answer:
    """Answer `GET /v1/models` or `GET /v1/models/<id>` to who has a key."""
    try:
        if state.assignment is None:
            raise Unavailable("this gateway has no assignment yet", hint="Try again shortly")
        caller_of(headers, state.keys, state.assignment.policy)
        if path == MODELS:
            listed = [_model(name) for name in sorted(state.models)]
            return Answer(200, orjson.dumps({"object": "list", "data": listed}))
        name = path.removeprefix(MODELS + "/")  # names may have slashes, and come encoded or not
        for asked in (name, unquote(name)):
            if asked in state.models:
                return Answer(200, orjson.dumps(_model(asked)))
        raise NotFound(f"model {name[:100]!r} is not served here", field="model",
                       hint="GET /v1/models lists the models")  # fmt: skip
    except FleetError as exc:
        if isinstance(exc, Unauthenticated):
            state.metrics.auth_failures += 1
        return invalid_answer(exc)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rhodeck"}


def unserved_answer(method: str, path: str) -> Answer:
    """Answer what is not served: 405 with the method to use where the path is, else 404 with what is."""
    if path in ENDPOINTS or path in PASSED:
        body = error_body(f"{method} is not allowed here: send a POST", "invalid_request_error", None)
        return Answer(405, body, ((b"allow", b"POST"),))
    if path == MODELS or path.startswith(MODELS + "/"):
        body = error_body(f"{method} is not allowed here: send a GET", "invalid_request_error", None)
        return Answer(405, body, ((b"allow", b"GET, HEAD"),))
    if path.startswith("/v1/responses/"):
        message = "Answers are not kept here: send the whole conversation to POST /v1/responses."
        return Answer(404, error_body(message, "invalid_request_error", "not_kept"))
    message = f"{path[:100]} is not served here. Served: {_SERVED}."
    return Answer(404, error_body(message, "invalid_request_error", "no_such_path"))
