"""A process that owns an embedded server, to be killed by tests.

Usage: embedded_owner.py FOLDER [--watchdog]. Prints one JSON object a line: `ready` with the process
ids and the URL, or `refused` with the error (exit code 3). Obeys lines on stdin: `restart`, `stop`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from control import embedded
from fleet.errors import FleetError


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def own(folder: Path, orders: Iterable[str]) -> int:
    """Own the server in `folder` until told to stop or out of orders."""
    server = embedded.EmbeddedPostgres(folder, progress=lambda line: say("progress", line=line))
    try:
        server.start()
        say("ready", owner=os.getpid(), postmaster=server.pid, dsn=server.dsn)
        for order in orders:
            if order.strip() == "stop":
                break
            server.start()
            say("ready", owner=os.getpid(), postmaster=server.pid, dsn=server.dsn)
    except FleetError as exc:
        say("refused", **exc.as_dict())
        return 3
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    if "--watchdog" in sys.argv:
        from control import embedded_process

        embedded.has_death_signal = embedded_process.has_death_signal = lambda: False
    sys.exit(own(Path(sys.argv[1]), sys.stdin))
