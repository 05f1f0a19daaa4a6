"""Files that are whole or absent: written beside, synced, renamed.

Prevents: half a file that looks like a whole one, and a device that was removed by a rename over it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fleet.errors import InvalidInput


def write_whole(out: Path, body: bytes, *, mode: int = 0o600, follows_links: bool = True) -> None:
    """Write `body` as the file `out`. Raises InvalidInput if it cannot be; then nothing changed."""
    with whole_file(out, mode=mode, follows_links=follows_links) as file:
        file.write(body)


@contextmanager
def whole_file(out: Path, *, mode: int = 0o600, follows_links: bool = True) -> Generator[IO[bytes]]:
    """A file to write, open for reading too, that becomes `out` when the block ends well.

    Keeps the mode of a file that was there; a new one gets `mode`. `follows_links` False: a link called
    `out` is refused, in a folder where others could set one. Raises InvalidInput if it cannot be.
    """
    beside: Path | None = None
    try:
        target = out.resolve() if follows_links else out.parent.resolve() / out.name
        before = target.lstat().st_mode if os.path.lexists(target) else None
        if before is not None and not stat.S_ISREG(
            before
        ):  # renaming over a device would remove the device
            raise InvalidInput(f"{out} cannot be written: it is not a file", field="--out")
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".rhodeck-", delete=False) as file:
            beside = Path(file.name)
            os.fchmod(file.fileno(), mode if before is None else stat.S_IMODE(before))
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
        beside = None
    except (OSError, RuntimeError) as exc:  # RuntimeError: links in a circle
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise InvalidInput(
            f"{out} cannot be written: {reason}", hint="Choose a folder that exists", field="--out"
        ) from exc
    finally:
        if beside is not None:
            with contextlib.suppress(OSError):
                beside.unlink()
