"""Clients: six tenants in three tiers that replay a public trace against one or several gateways.

Rates are requests/s, times are seconds, lengths are tokens. The trace's arrival pattern and lengths are
kept; only its clock is scaled, so bursts stay bursts. Answers are read, never parsed: a stream costs its
reads. Prevents: a demo driven by Poisson arrivals and fixed lengths, on which every estimator looks good.
"""

from __future__ import annotations

import asyncio
import csv
import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import aiohttp
import orjson

from fleet.clock import Clock
from fleet.errors import InvalidInput

TRACE = "data/azure2023_conv.csv.gz"
MAX_ATTEMPTS = 4
HASTY_PAUSE_S = 0.05  # what a client waits that ignores Retry-After
DEFAULT_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0
ANSWER_TIMEOUT_S = 600.0
_FILLER = "the quick replies of a fleet are only as good as its slowest queue " * 4000

Retry = Literal["honour", "ignore", "never"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer's habits."""

    name: str
    tier: str
    share: float  # of the requests; shares sum to 1
    is_streaming: bool
    retry: Retry
    max_tokens_slack: int  # its max_tokens is rounded up to a multiple of this; the answer is shorter


TENANTS = (
    Tenant("acme-chat", "interactive", 0.30, True, "honour", 512),
    Tenant("globex-support", "interactive", 0.22, True, "honour", 256),
    Tenant("initech-batch", "batch", 0.18, False, "honour", 1),
    Tenant("umbrella-etl", "batch", 0.12, False, "ignore", 1),
    Tenant("hooli-research", "best_effort", 0.10, False, "honour", 1024),
    Tenant("wonka-labs", "best_effort", 0.08, True, "never", 256),
)


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace."""

    at_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class TrafficSettings:
    """What to send where. Checked when made: raises InvalidInput."""

    gateways: Sequence[str]
    keys: dict[str, str]  # tenant -> API key
    rate: float = 25.0
    seed: int = 1
    retry: Literal["tenant", "honour", "ignore", "never"] = "tenant"
    max_in_flight: int = 2000
    model: str = "llama-3.3-70b-fp8"
    duration_s: float = 0.0  # 0: until cancelled
    report_every_s: float = 10.0
    tenants: Sequence[Tenant] = field(default=TENANTS)

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 10_000:
            raise InvalidInput(f"rate {self.rate}", field="--rate", hint="Give requests/s above 0")
        if self.max_in_flight < 1 or self.report_every_s <= 0 or self.duration_s < 0:
            raise InvalidInput("bounds must be above 0", field="--max-in-flight")
        for url in self.gateways:
            if not url.startswith(("http://", "https://")):
                raise InvalidInput(
                    f"{url!r} is not a gateway URL", field="--gateway", hint="Give http://HOST:PORT"
                )
        missing = [tenant.name for tenant in self.tenants if tenant.name not in self.keys]
        if missing:
            raise InvalidInput(
                f"no API key for {', '.join(missing)}",
                field="--keys-file",
                hint='Give JSON {"tenant": "key", ...} for all six tenants',
            )


def load_keys(path: Path | None, environment: str | None) -> dict[str, str]:
    """Read tenant keys from a file, else from the environment's JSON. Keys never appear in an error."""
    if path is None and not environment:
        raise InvalidInput("no API keys given", field="--keys-file", hint="Or set RHODECK_TRAFFIC_KEYS")
    try:
        keys = json.loads(path.read_text() if path is not None else environment or "")
    except OSError as exc:
        raise InvalidInput(f"cannot read {path}: {exc.strerror}", field="--keys-file") from exc
    except ValueError as exc:
        raise InvalidInput("the keys are not JSON", field="--keys-file") from exc
    if not isinstance(keys, dict) or not all(isinstance(v, str) and v for v in keys.values()):
        raise InvalidInput("the keys must map tenant names to texts", field="--keys-file")
    return keys


def load_trace() -> list[TraceRow]:
    """Return the packaged trace: arrival times from 0, ascending."""
    with resources.files("simfleet").joinpath(TRACE).open("rb") as packed, gzip.open(packed, "rt") as text:
        return [
            TraceRow(float(row["t_s"]), int(row["input_tokens"]), int(row["output_tokens"]))
            for row in csv.DictReader(text)
        ]


def arrivals(trace: Sequence[TraceRow], rate: float, seed: int) -> Iterator[TraceRow]:
    """Yield the trace for ever, its clock scaled to a mean of `rate`, starting at a place the seed picks.

    One lap ends a mean gap after its last arrival. Times start at 0 and ascend.
    """
    natural_rate = (len(trace) - 1) / (trace[-1].at_s - trace[0].at_s)
    scale = natural_rate / rate
    lap_s = (trace[-1].at_s - trace[0].at_s + 1 / natural_rate) * scale
    start = random.Random(seed).randrange(len(trace))
    offset_s = -(trace[start].at_s - trace[0].at_s) * scale
    position = start
    while True:
        row = trace[position]
        yield TraceRow(
            offset_s + (row.at_s - trace[0].at_s) * scale, row.input_tokens, max(1, row.output_tokens)
        )
        position += 1
        if position == len(trace):
            position = 0
            offset_s += lap_s


class _Replay:
    """State of one run: the session, what is in flight, what happened since the last report."""

    def __init__(self, settings: TrafficSettings, session: aiohttp.ClientSession, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.in_flight = 0
        self.outcomes: Counter[str] = Counter()
        self.by_tenant: dict[str, Counter[str]] = {t.name: Counter() for t in settings.tenants}
        self._session = session
        self._turn = 0
        self._reported_s = clock.monotonic_s()

    def book(self, tenant: Tenant, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self.by_tenant[tenant.name][outcome] += 1

    async def send(self, tenant: Tenant, row: TraceRow) -> None:
        """One request with its retries."""
        retry = tenant.retry if self.settings.retry == "tenant" else self.settings.retry
        body = _body(tenant, row, self.settings.model)
        try:
            for attempt in range(MAX_ATTEMPTS):
                outcome, retry_after_s = await self._attempt(tenant, body)
                self.book(tenant, outcome)
                if outcome != "429" or retry == "never" or attempt == MAX_ATTEMPTS - 1:
                    return
                await asyncio.sleep(retry_after_s if retry == "honour" else HASTY_PAUSE_S)
        finally:
            self.in_flight -= 1

    async def _attempt(self, tenant: Tenant, body: bytes) -> tuple[str, float]:
        gateways = self.settings.gateways
        self._turn += 1
        url = gateways[self._turn % len(gateways)].rstrip("/") + "/v1/chat/completions"
        headers = {
            "authorization": f"Bearer {self.settings.keys[tenant.name]}",
            "content-type": "application/json",
        }
        try:
            async with self._session.post(url, data=body, headers=headers) as answer:
                async for _ in answer.content.iter_any():
                    pass
                if answer.status == 200:
                    return "ok", 0.0
                return str(answer.status), _retry_after_s(answer.headers.get("retry-after"))
        except TimeoutError:
            return "timeout", 0.0
        except aiohttp.ClientPayloadError:
            return "cut", 0.0
        except (aiohttp.ClientError, OSError):
            return "unreachable", 0.0

    def report(self) -> dict[str, Any]:
        """Return counts since the last report, and start counting anew."""
        now_s = self.clock.monotonic_s()
        window_s, self._reported_s = now_s - self._reported_s, now_s
        counts = {
            "at": self.clock.now().isoformat(timespec="seconds"),
            "window_s": round(window_s, 3),
            "in_flight": self.in_flight,
            "outcomes": dict(sorted(self.outcomes.items())),
            "tenants": {name: dict(sorted(c.items())) for name, c in self.by_tenant.items()},
        }
        self.outcomes.clear()
        for counter in self.by_tenant.values():
            counter.clear()
        return counts


async def replay(settings: TrafficSettings, clock: Clock, report: Callable[[dict[str, Any]], None]) -> None:
    """Send the trace until cancelled or `duration_s` is over; call `report` with each window's counts.

    An arrival that finds `max_in_flight` requests open is booked as `not_sent`, not queued: clients of a
    real fleet do not wait for each other.
    """
    trace, chooser = load_trace(), random.Random(f"tenants/{settings.seed}")
    shares = [tenant.share for tenant in settings.tenants]
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S, connect=10)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
    tasks: set[asyncio.Task[None]] = set()
    async with aiohttp.ClientSession(
        timeout=timeout, connector=connector, auto_decompress=False
    ) as session:
        run = _Replay(settings, session, clock)
        reporter = asyncio.create_task(_report_regularly(run, report))
        began_s = clock.monotonic_s()
        try:
            for row in arrivals(trace, settings.rate, settings.seed):
                tenant = chooser.choices(settings.tenants, shares)[0]
                if settings.duration_s and row.at_s > settings.duration_s:
                    break
                await asyncio.sleep(row.at_s - (clock.monotonic_s() - began_s))
                if run.in_flight >= settings.max_in_flight:
                    run.book(tenant, "not_sent")
                    continue
                run.in_flight += 1
                task = asyncio.create_task(run.send(tenant, row))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)
        finally:
            for task in (reporter, *tasks):
                task.cancel()
            report(run.report())


async def _report_regularly(run: _Replay, report: Callable[[dict[str, Any]], None]) -> None:
    while True:
        await asyncio.sleep(run.settings.report_every_s)
        report(run.report())


def _body(tenant: Tenant, row: TraceRow, model: str) -> bytes:
    """A chat of `input_tokens` at four characters a token, four tokens being the message's own."""
    slack = tenant.max_tokens_slack
    content = _FILLER[: max(1, row.input_tokens - 4) * 4]
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": -(-row.output_tokens // slack) * slack,
        "vllm_xargs": {"sim_output_tokens": row.output_tokens},
    }
    if tenant.is_streaming:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return orjson.dumps(body)


def _retry_after_s(header: str | None) -> float:
    try:
        seconds = float(header) if header is not None else DEFAULT_RETRY_AFTER_S
    except ValueError:  # an HTTP date
        return DEFAULT_RETRY_AFTER_S
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)
