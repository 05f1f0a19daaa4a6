"""Several gateway processes on one port, for tests: `rhodeck gateway --processes N` as a child process.

`members` are its processes, each with its admin API. Times are seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.gateway_process import ADMIN_TOKEN, KEYS, ROOT, FakeEngine, assignment, chat, eventually


class Member:
    """One process of a group, by its admin address."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.base_url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> httpx.Response:
        """Ask it, on a connection of its own: it may have started again since."""
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        return httpx.get(self.base_url + path, headers=headers, trust_env=False, timeout=30)

    def status(self) -> dict[str, Any]:
        """Return what it says it runs."""
        answer = self.get("/admin/status")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def push(self, document: dict[str, Any]) -> None:
        """Push an assignment."""
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        answer = httpx.put(
            f"{self.base_url}/admin/assignment", json=document, headers=headers, trust_env=False
        )
        assert answer.status_code == 200, answer.text

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that carry `labels`."""
        return sum(
            float(line.rpartition(" ")[2])
            for line in self.get("/metrics").text.splitlines()
            if line.partition("{")[0].partition(" ")[0] == name
            and all(f'{label}="{value}"' in line for label, value in labels.items())
        )


class GatewayGroup:
    """A supervisor and its processes; of one, that process. Their log lines are in `log_path`."""

    def __init__(self, state_dir: Path, count: int, *flags: str, name: str = "gw") -> None:
        self.state_dir, self.count, self.name, self.flags = state_dir, count, name, flags
        self.log_path = state_dir.parent / f"{state_dir.name}.log"
        self.members: list[Member] = []
        self.port = 0

    @contextlib.contextmanager
    def running(self) -> Generator[GatewayGroup]:
        """Run it until the block ends; whatever is left is killed."""
        command = [sys.executable, "-m", "admission", "--name", self.name, "--port", "0"]
        command += ["--processes", str(self.count), "--admin-port", "0"]
        command += ["--state-dir", str(self.state_dir), *self.flags]
        environment = dict(os.environ) | {"RHODECK_GATEWAY_ADMIN_TOKEN": ADMIN_TOKEN}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            eventually(self._is_up)
            ports = {entry["process"]: entry for entry in self.entries("gateway listens")}
            names = [f"{self.name}-{number}" for number in range(1, self.count + 1)]
            names = names if self.count > 1 else [self.name]
            self.members = [Member(name, ports[name]["admin_port"]) for name in names]
            self.port = ports[names[0]]["port"]
            yield self
        finally:
            pids = [entry["pid"] for entry in self.entries("gateway listens")]
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait(10)
                for pid in pids:  # they would drain
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def _is_up(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the supervisor ended: {self.log_path.read_text()[-2_000:]}")
        if self.count == 1:
            return bool(self.entries("gateway listens"))
        return self.states()[-1:] == [f"{self.count} of {self.count} serve"]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def entries(self, message: str) -> list[dict[str, Any]]:
        """Return the log's lines of one message."""
        found: list[dict[str, Any]] = []
        for line in self.log_path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if entry.get("message") == message:
                    found.append(entry)
        return found

    def states(self) -> list[str]:
        """Return the lines of state it said."""
        return [entry["state"] for entry in self.entries("processes")]

    def pid(self, member: Member) -> int:
        """Return the process id of a member, as it last started."""
        return [e["pid"] for e in self.entries("gateway listens") if e["process"] == member.name][-1]

    def push_and_open(self, engines: Sequence[FakeEngine], **changes: Any) -> None:
        """Push each member its part of one fleet, and wait until every node is usable."""
        for member in self.members:
            ratio = 1 / self.count
            document = assignment(list(engines), gateway=member.name, kv_share_ratio=ratio, **changes)
            member.push(document)
        for member in self.members:
            eventually(lambda member=member: member.status()["nodes_usable"] == len(engines))

    def ask(self, client: httpx.Client, body: dict[str, Any], tenant: str = "acme") -> httpx.Response:
        """Ask the shared port."""
        headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
        return client.post(f"{self.base_url}/v1/chat/completions", json=body, headers=headers)


class Callers:
    """Clients of the shared port, each request on a new connection or all on one; counts the answers."""

    def __init__(self, group: GatewayGroup, *, fresh: int = 2, kept: int = 2) -> None:
        self.is_over = threading.Event()
        self.seen: Counter[str] = Counter()
        self.refusals: list[str] = []  # what answers said that are not 200
        self._lock = threading.Lock()
        kinds = [True] * fresh + [False] * kept
        self.threads = [threading.Thread(target=self._call, args=(group, is_fresh)) for is_fresh in kinds]
        for thread in self.threads:
            thread.start()

    def _call(self, group: GatewayGroup, is_fresh: bool) -> None:
        transport = httpx.HTTPTransport(limits=httpx.Limits(max_keepalive_connections=0 if is_fresh else 1))
        with httpx.Client(transport=transport, trust_env=False, timeout=60) as client:
            while not self.is_over.is_set():
                try:
                    answer = group.ask(client, chat("tokens=2 pause=0.005"))
                    said = str(answer.status_code)
                    if answer.status_code != 200:
                        self.refusals.append(answer.text)
                except httpx.HTTPError as exc:
                    said = f"{'fresh' if is_fresh else 'kept'} {type(exc).__name__}: {exc}"
                with self._lock:
                    self.seen[said] += 1

    def answered(self) -> int:
        """Return how many calls ended, well or not."""
        return sum(self.seen.values())

    def end(self) -> None:
        self.is_over.set()
        for thread in self.threads:
            thread.join(90)
