"""What the admin API says about one request: `GET /admin/decisions/<request id>`.

Prevents: a page of all requests with tenants' traffic in it, where one id was asked for.
"""

from __future__ import annotations

from admission.answers import Answer
from admission.state import GatewayState
from fleet.errors import NotFound

DECISIONS_PATH = "/admin/decisions/"


def decision_answer(state: GatewayState, request_id: str) -> Answer:
    """Return the decision about a request as JSON (`fleet.decision.Decision`). Raises NotFound."""
    entry = state.decisions.find(request_id)
    if entry is None:
        raise NotFound(
            f"request {request_id[:80]!r} is not among the last {state.settings.decisions} "
            f"of gateway {state.settings.name}",
            hint="Look for the answer's x-request-id header; keep more with RHODECK_GATEWAY_DECISIONS",
        )
    told = entry.told(state.settings.name, state.clock.monotonic_s())
    return Answer(200, told.model_dump_json(by_alias=True).encode())
