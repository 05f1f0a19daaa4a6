"""A simulation in progress as bytes, and back: the month goes on exactly where it stopped.

Arrays only, never objects: what is read back is checked against a simulation of the same inputs. Prevents:
a month that differs because a process was restarted in it, and bytes that run code when they are read.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInput

VERSION = 3
MAX_BYTES = 200_000_000


class Resumable(Protocol):
    """A simulation that can say where it stands, and go on from there."""

    def state(self) -> dict[str, NDArray[Any]]: ...
    def restore(self, state: dict[str, NDArray[Any]]) -> None: ...


def snapshot(run: Resumable) -> bytes:
    """Return where `run` stands."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, values in {"version": np.array([VERSION]), **run.state()}.items():
            part = io.BytesIO()
            np.lib.format.write_array(part, values, allow_pickle=False)
            archive.writestr(name, part.getvalue())
    return out.getvalue()


def resume(run: Resumable, body: bytes) -> None:
    """Let a fresh `run` of the same inputs go on from a snapshot. Raises InvalidInput for another's."""
    misfit = InvalidInput("the snapshot does not fit", hint="Start the simulation anew")
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            if sum(info.file_size for info in archive.infolist()) > MAX_BYTES:
                raise misfit
            found = {name: _read(archive.read(name)) for name in archive.namelist()}
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, KeyError, NotImplementedError) as exc:
        raise misfit from exc
    version = found.pop("version", np.zeros(1))
    if version.tolist() != [VERSION]:
        raise misfit
    run.restore(found)


def _read(part: bytes) -> NDArray[Any]:
    return np.lib.format.read_array(io.BytesIO(part), allow_pickle=False)
