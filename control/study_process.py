"""Studies run as a process of their own: the command line's, with its JSON read back.

Bounded in size and time (seconds). Prevents: half a minute of simulation inside the process that answers
every browser.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from fleet.errors import InvalidInput, Unavailable

TIMEOUT_S = 120.0
MAX_ANSWER_BYTES = 5_000_000


def study(arguments: Sequence[str], timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Return the JSON that `rhodeck estimate ARGUMENTS --json` prints.

    Raises InvalidInput with the command's own words when it refuses, Unavailable past `timeout_s`.
    """
    command = [sys.executable, "-P", "-m", "control", "estimate", *arguments, "--json"]
    try:
        done = subprocess.run(  # noqa: S603 - our own command, arguments without a shell
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise Unavailable(
            f"the simulation took over {timeout_s:.0f} s and was ended", hint="Ask for less traffic"
        ) from exc
    if done.returncode != 0:
        raise _refused(done.stderr.decode("utf-8", "replace"))
    if len(done.stdout) > MAX_ANSWER_BYTES:
        raise Unavailable(f"the simulation answered {len(done.stdout):,} bytes", hint="Ask for less")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _refused(said: str) -> InvalidInput:
    """Return the command's last error as ours."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error:")]
    hints = [line.removeprefix("hint:").strip() for line in lines if line.startswith("hint:")]
    message = errors[-1].partition(":")[2].strip() if errors else "the simulation ended without an answer"
    return InvalidInput(message, hint=hints[-1] if hints else "Change the inputs")
