"""Which ports the parts of one machine get, agreed between all supervisors that start at the same time.

A port is free when it can be bound, but whoever will listen on it starts seconds later. A claim bridges
that time: a name in Linux's abstract socket namespace, gone when its owner closes it or dies. Elsewhere
ports are only probed. Prevents: two machines started together that both choose 8501.
"""

from __future__ import annotations

import socket
import sys
from types import TracebackType
from typing import Self

from control.supervise import free_port


class PortClaims:
    """Claims held until the block ends, when the parts listen themselves."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for held in self._held.values():
            if held is not None:
                held.close()
        self._held.clear()

    def take(self, preferred: int) -> int:
        """Claim `preferred` if nobody has it, else another free port; return it. Raises Unavailable."""
        port = free_port(preferred)
        while not self._claim(port):
            port = free_port(0)
        return port

    def _claim(self, port: int) -> bool:
        if port in self._held:
            return False
        if not sys.platform.startswith("linux"):
            self._held[port] = None
            return True
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0rhodeck-port-{port}")
        except OSError:
            name.close()
            return False
        self._held[port] = name
        return True

    def take_row(self, first: int, count: int) -> int:
        """Claim `count` ports in a row from `first` on and return `first`, or 0 where one is taken."""
        ports = range(first, first + count)
        return first if all(free_port(port) == port and self._claim(port) for port in ports) else 0
