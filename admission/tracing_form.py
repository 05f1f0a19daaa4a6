"""What spans say of a request, and the face of what makes them. Needs no library.

Prevents: an attribute with a prompt's text, a key or a node's address in it: only what stands here is said.
Source: OpenTelemetry semantic conventions, "Generative AI" attributes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from admission import VERSION
from admission.decision_log import Entry
from admission.metrics import Family
from admission.settings import Settings
from fleet.clock import Clock
from fleet.errors import InvalidInput

Attributes = dict[str, str | int | float | bool]

_OPERATIONS = {"chat": "chat", "responses": "chat", "completions": "text_completion"}


class SpanSink(Protocol):
    """Takes in how one request goes."""

    def sending(self, node: str) -> bytes:
        """A try at a node begins; return header lines for it."""
        ...

    def gave_up(self, why: str) -> None:
        """A try brought no answer."""
        ...

    def ended(self) -> None:
        """The request ended; its entry says how."""
        ...


class SpanMaker(Protocol):
    """Makes what takes in."""

    results: Counter[str]  # spans: ended, exported, failed

    def begin(self, headers: Sequence[tuple[bytes, bytes]], entry: Entry) -> SpanSink:
        """Return the spans of a request that just came."""
        ...

    async def close(self) -> None:
        """Send what is left."""
        ...


def open_tracing(settings: Settings, clock: Clock) -> SpanMaker | None:
    """Return what makes spans, where a collector is set. Raises InvalidInput without the library."""
    if settings.otlp_endpoint is None:
        return None
    try:
        from admission.tracing import Tracing
    except ImportError as exc:
        raise InvalidInput(
            "OpenTelemetry's SDK is not installed",
            field="--otlp-endpoint",
            hint="pip install 'rhodeck[tracing]', or leave the flag out",
        ) from exc
    return Tracing(settings.otlp_endpoint, settings.otlp_ratio, settings.name, VERSION, clock)


def span_families(maker: SpanMaker | None) -> Iterator[Family]:
    """Yield how many spans ended, were taken by the collector, and were not."""
    if maker is not None:
        values = {(result,): count for result, count in maker.results.items()}
        name, text = (
            "rhodeck_gateway_spans_total",
            "Spans by what became of them; the rest is queued or lost.",
        )
        yield Family(name, text, ("result",), values, "counter")


def operation(endpoint: str) -> str:
    """Return the convention's name of an endpoint's operation."""
    return _OPERATIONS.get(endpoint, endpoint)


def request_attributes(entry: Entry) -> Attributes:
    """Return what is known of a request when it comes."""
    found: Attributes = {
        "gen_ai.operation.name": operation(entry.endpoint),
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": entry.model,
        "rhodeck.request_id": entry.request_id,
        "rhodeck.tenant": entry.tenant,
        "rhodeck.endpoint": entry.endpoint,
    }
    if entry.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = entry.max_tokens // max(entry.choices, 1)
    if entry.choices > 1:
        found["gen_ai.request.choice.count"] = entry.choices
    return found


def usage_attributes(entry: Entry) -> Attributes:
    """Return what is known of it at its end. Tokens are said only where the engine counted them."""
    found: Attributes = {} if entry.outcome is None else {"rhodeck.outcome": entry.outcome.value}
    if entry.is_exact:
        found["gen_ai.usage.input_tokens"] = entry.used_prompt
        found["gen_ai.usage.output_tokens"] = entry.used_output
    if entry.ttft_s is not None:
        found["rhodeck.ttft_s"] = entry.ttft_s
    if entry.ticket is not None:
        found["rhodeck.tier"] = entry.ticket.tier.value
    return found
