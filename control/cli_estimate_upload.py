"""`rhodeck estimate read-traffic`: the child that reads an uploaded file for a page (see `upload_reading`).

Prevents: a file somebody uploaded being parsed in the process that answers every browser.
"""

from __future__ import annotations

import sys

import click

from control.progress_lines import progress
from control.rate_profile_uploads import MAX_UPLOAD_MB, uploaded_profile
from control.upload_reading import as_answer, bound_memory
from fleet.errors import InvalidInput


@click.command("read-traffic", hidden=True)
@click.option("--name", required=True, help="The file's name, for messages.")
@click.option("--source", required=True, help="Where the traffic is from.")
def read_traffic(name: str, source: str) -> None:
    """Read traffic from standard input; answer its rates on standard output."""
    body = sys.stdin.buffer.read(MAX_UPLOAD_MB * 1_000_000 + 1)
    bound_memory()
    try:
        with progress(len(body), "reading") as told:
            found = uploaded_profile(name, body, source, told)
    except MemoryError as exc:
        raise InvalidInput(
            f"{name[:60]} needs more memory than a file may",
            hint="Give a shorter trace, or rates by bin",
            field="/profile",
        ) from exc
    sys.stdout.buffer.write(as_answer(found))
