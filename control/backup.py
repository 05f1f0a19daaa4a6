"""Backup to one file and restore from it, by Postgres's own `pg_dump` and `pg_restore`.

Prevents: a half-written backup under the name of a whole one, a restore over data somebody still needs,
a password in the list of processes, and a restored database whose pages cannot read.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from psycopg.conninfo import make_conninfo
from sqlalchemy import URL, Connection, text

from control.database import READER, Role, make_engine, make_reader, parse_dsn, reporting_outages
from control.embedded_binaries import installed_binaries
from fleet.errors import Conflict, InvalidInput, Unavailable
from fleet.logs import redact

_MAGIC = b"PGDMP"  # how an archive in custom format begins
_DEBIAN = Path("/usr/lib/postgresql")


def backup(dsn: str, file: Path, *, overwrite: bool = False) -> int:
    """Write the whole database into `file` (mode 0600) and return its size in bytes.

    A consistent snapshot while others write. Raises Conflict if `file` exists, InvalidInput if it
    cannot be written, Unavailable if the database or a fitting pg_dump cannot be reached.
    """
    if file.exists() and not overwrite:
        raise Conflict(f"{file} exists already", hint="Choose another name, or add --force", field="FILE")
    program = client_program("pg_dump", server_major(dsn))
    try:
        fd, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.absolute().parent)
    except OSError as exc:
        raise InvalidInput(
            f"{file} cannot be written: {exc.strerror}",
            hint="Name a file in a writable folder",
            field="FILE",
        ) from exc
    beside = Path(name)
    try:
        _run(dsn, [str(program), "--format=custom", f"--file={beside}"])
        os.fsync(fd)
        os.replace(beside, file)
    finally:
        os.close(fd)
        beside.unlink(missing_ok=True)
    return file.stat().st_size


def restore(dsn: str, file: Path) -> None:
    """Restore `file` into the empty database of `dsn`, in one transaction.

    Raises InvalidInput if `file` is no backup, Conflict if the database holds tables already.
    """
    _refuse_what_is_no_archive(file)
    engine = make_engine(dsn, role=Role.MIGRATION, pool_size=1)
    try:
        with reporting_outages(engine.url), engine.begin() as connection:
            _refuse_used_database(connection)
            has_reader = make_reader(connection)
        program = client_program("pg_restore", server_major(dsn))
        with tempfile.NamedTemporaryFile("w", suffix=".toc") as contents:
            contents.write(_contents(program, file))
            contents.flush()
            flags = ["--single-transaction", "--exit-on-error", "--no-owner", f"--use-list={contents.name}"]
            if not has_reader:
                flags.append("--no-privileges")
            _run(dsn, [str(program), *flags, str(file)])
        if has_reader:
            with reporting_outages(engine.url), engine.begin() as connection:
                connection.execute(
                    text(f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {READER}")
                )
    finally:
        engine.dispose()


def server_major(dsn: str) -> int:
    """Return the major version of the server, such as 18. Raises Unavailable if it cannot be reached."""
    engine = make_engine(dsn, pool_size=1)
    try:
        with reporting_outages(engine.url), engine.connect() as connection:
            return int(connection.scalar(text("SHOW server_version_num"))) // 10_000
    finally:
        engine.dispose()


def client_program(name: str, major: int) -> Path:
    """Return `name` of the lowest version that can talk to a server of `major`.

    Looks on PATH, where Debian keeps its versions, and in the wheel. An older program refuses the
    server; a much newer one writes what the server does not understand.
    """
    on_path = shutil.which(name)
    candidates = [*([Path(on_path)] if on_path else []), *sorted(_DEBIAN.glob(f"*/bin/{name}"))]
    with contextlib.suppress(Unavailable):  # another source may do
        candidates.append(installed_binaries().path(name))
    fitting = [(version, path) for path in candidates if (version := _version_of(path)) >= major]
    if not fitting:
        raise Unavailable(
            f"no {name} for a server of version {major} is installed",
            hint=f"Install the Postgres client programs of version {major} or newer",
            retryable=False,
        )
    return min(fitting, key=lambda pair: pair[0])[1]


def _version_of(program: Path) -> int:
    try:
        output = subprocess.run(  # noqa: S603 - a program we found ourselves
            [program, "--version"], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return 0
    match = re.search(r"(\d+)(\.|\s|$)", output)
    return int(match[1]) if match else 0


def _run(dsn: str, argv: list[str]) -> None:
    """Run a client program. The password goes by environment: arguments are visible to everybody."""
    url = parse_dsn(dsn)
    env = {**os.environ, "PGCONNECT_TIMEOUT": "5"}
    password = url.password or url.query.get("password")
    if isinstance(password, str):
        env["PGPASSWORD"] = password
    target = _conninfo(url)
    done = subprocess.run(  # noqa: S603 - a program we found ourselves
        [argv[0], f"--dbname={target}", *argv[1:]],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        said = redact(done.stderr.decode(errors="replace").strip())[-600:]
        raise Unavailable(
            f"{Path(argv[0]).name} failed with exit code {done.returncode}: {said}",
            hint="Nothing was changed; check free space and the rights of the login",
        )


def _conninfo(url: URL) -> str:
    """Return libpq's form of `url` without the password."""
    named = {"host": url.host, "port": url.port, "user": url.username, "dbname": url.database}
    values = {name: str(value) for name, value in named.items() if value is not None}
    for name, value in url.query.items():
        values[name] = value if isinstance(value, str) else ",".join(value)
    values.pop("password", None)
    return make_conninfo("", **values)


def _contents(program: Path, file: Path) -> str:
    """Return the archive's table of contents without default privileges.

    Those name the login that made the backup; here the database may belong to another one.
    """
    done = subprocess.run(  # noqa: S603 - a program we found ourselves
        [program, "--list", file], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise InvalidInput(
            f"{file} cannot be read as a backup: {done.stderr.strip()[-300:]}",
            hint="The file may be cut short; use another backup",
            field="FILE",
        )
    return "".join(line for line in done.stdout.splitlines(keepends=True) if " DEFAULT ACL " not in line)


def _refuse_what_is_no_archive(file: Path) -> None:
    try:
        with file.open("rb") as opened:
            begins = opened.read(len(_MAGIC))
    except OSError as exc:
        raise InvalidInput(
            f"{file} cannot be read: {exc.strerror}",
            hint="Check the path and its permissions",
            field="FILE",
        ) from exc
    if begins != _MAGIC:
        raise InvalidInput(
            f"{file} is not a backup made by `rhodeck db backup`",
            hint="Name a file that command wrote",
            field="FILE",
        )


def _refuse_used_database(connection: Connection) -> None:
    count = connection.scalar(
        text(
            "SELECT count(*) FROM pg_class "
            "WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
        )
    )
    if count:
        raise Conflict(
            f"the database holds {count} tables already",
            hint="Restore into an empty database: create one and name it in DATABASE_URL",
            field="DATABASE_URL",
        )
