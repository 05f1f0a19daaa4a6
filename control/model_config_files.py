"""Where a model's configuration comes from: a bundled name, or a file somebody has.

Sources and what was left out are in the folder's README. Prevents: a file of any size read whole, and a
name that becomes a path.
"""

from __future__ import annotations

from pathlib import Path

from fleet.errors import InvalidInput
from fleet.model_config import MAX_BYTES

FOLDER = Path(__file__).with_name("data") / "models"


def bundled() -> list[str]:
    """Return the names of bundled configurations."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def config_bytes(name: str) -> bytes:
    """Return a bundled configuration by name, else the file of that path, up to the size a reader takes.

    Raises InvalidInput for a file that cannot be read.
    """
    path = FOLDER / f"{name}.json" if name in bundled() else Path(name)
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise InvalidInput(
            f"cannot read {name[:200]!r}: {why}",
            field="CONFIG",
            hint="Give a config.json, or one of " + ", ".join(bundled()),
        ) from exc
