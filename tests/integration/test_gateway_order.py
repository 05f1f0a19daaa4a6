"""What is on disk when a request comes to an engine, and when its client has the answer.

A real gateway process; both ends look into its folder. Decision 0030 says why that could be otherwise.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from admission.running_journal import FILE_NAME
from tests.gateway_process import FakeEngine, GatewayProcess, chat

#: More than a connection holds: such a request leaves before the turn of the loop ends.
LONG = "word " * 30_000


@dataclass
class Looking(FakeEngine):
    """Looks for each request in the journal as the request comes."""

    folder: Path = Path()
    not_noted: list[str] = field(default_factory=list)  # requests whose line was not there

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        name = request.headers["x-request-id"]
        if f'"{name}"'.encode() not in (self.folder / FILE_NAME).read_bytes():
            self.not_noted.append(name)
        return await super()._chat(request)


def recorded(folder: Path) -> bytes:
    """Return the lines of all records, read as they stand on disk."""
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.jsonl")))


def test_the_journal_has_a_request_before_the_engine_and_the_spool_its_record_before_the_client(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "gw" / "usage"
    engine = Looking("node-1", folder=folder)

    def ask(number: int) -> str:
        """Send one; return what of it was not recorded when its answer was here, "" for nothing."""
        text = LONG if number % 3 == 0 else "short"
        with gateway.client() as client:
            body = chat(f"{text} tokens=2", stream=number % 2 == 0)
            answer = client.post("/v1/chat/completions", json=body)
        lines = [
            line
            for line in recorded(folder).splitlines()
            if answer.headers["x-request-id"].encode() in line
        ]
        is_recorded = (
            len(lines) == 1 and b'"outcome":"completed"' in lines[0] and b'"exact":true' in lines[0]
        )
        return (
            "" if answer.status_code == 200 and is_recorded else f"{number}: {answer.status_code} {lines}"
        )

    with engine.serving(), GatewayProcess(tmp_path / "gw").running() as gateway:
        gateway.push_and_open([engine])
        one_by_one = [ask(number) for number in range(6)]  # with nothing before or behind in their turn
        with ThreadPoolExecutor(4) as crowd:
            together = list(crowd.map(ask, range(24)))
    assert [told for told in one_by_one + together if told] == []
    assert engine.not_noted == []
    assert len(engine.served) == 30
