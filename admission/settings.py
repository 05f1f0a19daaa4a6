"""What an operator may set on a gateway, checked before anything starts.

Times are seconds, sizes bytes. Values arrive as flags or RHODECK_GATEWAY_* variables (see `__main__`).
Prevents: a gateway whose admin API is open to the network, and limits that are only in the source.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import InvalidInput

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
MIN_TOKEN_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """What one client connection may ask for."""

    header_bytes: int = 16_384
    header_count: int = 100
    header_deadline_s: float = 10.0  # first byte of a request (or the connection) to the end of its headers
    body_idle_s: float = 10.0  # longest silence inside a body
    body_deadline_s: float = 60.0  # end of the headers to the end of the body
    keep_alive_s: int = 30  # longest silence between requests
    write_deadline_s: float = 30.0  # longest time a client may leave our answer unread
    connections: int = 4_096
    connections_per_address: int = 2_048


@dataclass(frozen=True, slots=True)
class Settings:
    """One gateway process."""

    name: str
    state_dir: Path
    host: str = "127.0.0.1"
    port: int = 8400
    admin_token: str | None = None
    node_api_key: str | None = None  # sent to the nodes as their own bearer key
    body_bytes: int = 8 << 20
    answer_bytes: int = 32 << 20  # largest answer that is not streamed
    drain_s: float = 30.0
    poll_interval_s: float = 0.5
    poll_timeout_s: float = 1.0
    connect_timeout_s: float = 2.0
    first_byte_timeout_s: float = 300.0  # request sent to first byte of the answer
    idle_timeout_s: float = 120.0  # longest silence of an engine inside an answer
    total_timeout_s: float = 1_800.0  # longest time one request may hold its lease
    retries: int = 2  # on another node, before the first byte
    spool_bytes: int = 512 << 20
    listener: ListenerLimits = ListenerLimits()

    def check(self) -> None:
        """Raise InvalidInput naming the first setting that cannot be used."""
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"{self.name!r} is not a gateway name",
                field="--name",
                hint="Lower-case letters, digits, - _ . ; at most 63",
            )
        if self.admin_token is not None and len(self.admin_token) < MIN_TOKEN_CHARACTERS:
            raise InvalidInput(
                f"the admin token has {len(self.admin_token)} characters; {MIN_TOKEN_CHARACTERS} are asked",
                field="--admin-token-file",
                hint="For example: openssl rand -hex 32",
            )
        if self.admin_token is None and not is_loopback(self.host):
            raise InvalidInput(
                f"{self.host} can be reached from other machines and there is no admin token",
                field="--host",
                hint="Give --admin-token-file, or listen on 127.0.0.1",
            )
        if self.poll_interval_s + self.poll_timeout_s > 2.0:
            raise InvalidInput(
                f"polling each {self.poll_interval_s:g} s with a deadline of {self.poll_timeout_s:g} s "
                "lets node states grow older than 2 s",
                field="--poll-interval-s",
                hint="Keep their sum at or below 2",
            )


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach a listener on `host` (a name counts as not)."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_secret(path: Path, field: str) -> str:
    """Return the secret in a file, without blanks around. Raises InvalidInput, never with its content."""
    try:
        secret = path.read_text(encoding="ascii").strip()
    except OSError as exc:
        raise InvalidInput(f"{path} cannot be read: {exc.strerror}", field=field) from exc
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"{path} is not plain ASCII text", field=field) from exc
    if not secret or any(character.isspace() for character in secret):
        raise InvalidInput(f"{path} must hold one token on one line", field=field)
    return secret
