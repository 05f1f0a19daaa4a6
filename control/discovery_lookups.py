"""Asking a discovery source: a file, an address, DNS. Kubernetes has a module of its own.

Deadlines are seconds. Every failure is a FleetError whose words never quote what a file or answer holds.
Prevents: a named pipe that holds the controller up, a secret file read back through an error message, and
an answer without end.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import dns.asyncresolver
import dns.exception
import dns.resolver
from dns.rdtypes.IN.SRV import SRV

from control.discovery_settings import DnsSettings, FileSettings, HttpSettings
from control.discovery_targets import BYTES_MAX, TARGETS_MAX, Answer, Found, read_lines, read_target_groups
from control.fetch import Ask, PageCaps, fetch_page
from fleet.clock import Clock
from fleet.errors import InvalidInput, Unavailable

DEADLINE_S = 10.0
_TOKEN_BYTES = 16 * 1024
_CA_BYTES = 1024 * 1024
_JSON = {"Accept": "application/json"}


@dataclass(frozen=True, slots=True)
class FileMark:
    """What tells one state of a file from another."""

    inode: int
    size: int
    modified_ns: int


def file_mark(path: str) -> FileMark | None:
    """Return the state of a file, None where there is none. Links are followed: ConfigMaps are links."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return FileMark(found.st_ino, found.st_size, found.st_mtime_ns)


def read_bounded(path: str, most: int, what: str, *, is_secret: bool = True) -> bytes:
    """Return a regular file's bytes. Raises Unavailable (not there, not readable) or InvalidInput.

    What is no secret is shown to people, so a file that only its owner may read is refused for it.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(handle).st_mode
            if not stat.S_ISREG(mode):
                raise InvalidInput(f"the {what} {path} is no regular file", hint="Name a regular file")
            if not is_secret and not mode & (stat.S_IRGRP | stat.S_IROTH):
                raise InvalidInput(
                    f"the {what} {path} is private to its owner (mode {stat.S_IMODE(mode):o})",
                    hint="What it names is shown to people: let its group read it, or name another file",
                )
            with os.fdopen(handle, "rb", closefd=False) as file:
                body = file.read(most + 1)
        finally:
            os.close(handle)
    except OSError as exc:
        raise Unavailable(
            f"the {what} {path} cannot be read: {exc.strerror}", hint="Check the path and who may read it"
        ) from exc
    if len(body) > most:
        raise InvalidInput(f"the {what} {path} has more than {most} bytes", hint="Name another file")
    return body


async def look_in_file(settings: FileSettings) -> Answer:
    """Read the file: target groups where its name ends in .json or its text begins with [, else lines."""
    body = await asyncio.to_thread(read_bounded, settings.path, BYTES_MAX, "file", is_secret=False)
    name = settings.path.lower()
    if name.endswith((".yml", ".yaml")):
        raise InvalidInput(
            f"{settings.path} is YAML", hint="Write it as JSON: Prometheus reads both alike", field="path"
        )
    if name.endswith(".json") or body.lstrip()[:1] in {b"[", b"{"}:
        return read_target_groups(body)
    return read_lines(body)


async def look_at_address(
    session: aiohttp.ClientSession, clock: Clock, settings: HttpSettings, *, interval_s: float
) -> Answer:
    """Ask an http_sd endpoint. Source: Prometheus documentation, "Writing HTTP Service Discovery"."""
    headers = _JSON | {"X-Prometheus-Refresh-Interval-Seconds": f"{interval_s:g}"}
    ask = await asked_with(settings.token_file, settings.ca_file, headers)
    page = await fetch_page(
        session,
        settings.url,
        clock=clock,
        deadline_s=DEADLINE_S,
        caps=PageCaps(wire_bytes=BYTES_MAX, decoded_bytes=BYTES_MAX),
        ask=ask,
    )
    kind = (page.content_type or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidInput(
            f"the answer is {kind[:60] or 'of no'} type, not application/json",
            hint="An http_sd endpoint says Content-Type: application/json",
        )
    return read_target_groups(page.body)


async def asked_with(token_file: str | None, ca_file: str | None, headers: dict[str, str]) -> Ask:
    """Return how to ask: with the token and certificates as their files hold them now."""

    def read() -> Ask:
        sent = dict(headers)
        if token_file is not None:
            token = read_bounded(token_file, _TOKEN_BYTES, "token file").decode("ascii", "replace").strip()
            if not token or not token.isprintable() or not token.isascii():
                raise InvalidInput(f"the token file {token_file} holds no token", hint="One line of text")
            sent["Authorization"] = f"Bearer {token}"
        return Ask(headers=sent, tls=None if ca_file is None else _trusting(ca_file))

    return await asyncio.to_thread(read)


def _trusting(ca_file: str) -> ssl.SSLContext:
    text = read_bounded(ca_file, _CA_BYTES, "certificate file").decode("ascii", "replace")
    try:
        return ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError) as exc:
        raise InvalidInput(f"{ca_file} holds no certificates", hint="PEM, as for curl --cacert") from exc


async def look_in_dns(settings: DnsSettings) -> Answer:
    """Ask for SRV records; each is a target `host:port`. Source: RFC 2782.

    Priorities and weights are not kept: every record is a node. A lone record with target "." says that
    there is no such service, which is an empty answer.
    """
    resolver = _resolver(settings.server)
    try:
        answer = await resolver.resolve(settings.service, "SRV", lifetime=DEADLINE_S, search=False)
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer) as exc:
        raise Unavailable(
            f"DNS has no SRV record {settings.service}", hint="Check the name: _service._tcp.domain"
        ) from exc
    except (dns.exception.DNSException, OSError) as exc:
        raise Unavailable(f"DNS did not answer for {settings.service}: {type(exc).__name__}") from exc
    records = [record for record in answer if isinstance(record, SRV)]
    if len(records) > TARGETS_MAX:
        raise InvalidInput(f"more than {TARGETS_MAX} SRV records", hint="Split the source")
    found = [
        Found(f"{record.target.to_text(omit_final_dot=True)}:{record.port}", {"service": settings.service})
        for record in records
        if record.target.to_text() != "."
    ]
    return Answer(tuple(sorted(found, key=lambda f: f.address)))


def _resolver(server: str | None) -> dns.asyncresolver.Resolver:
    if server is None:
        try:
            return dns.asyncresolver.Resolver()
        except dns.resolver.NoResolverConfiguration as exc:
            raise Unavailable("this machine has no DNS configured", hint="Name a server") from exc
    address, _, port = server.partition("]:") if server.startswith("[") else server.partition(":")
    resolver = dns.asyncresolver.Resolver(configure=False)
    try:
        resolver.nameservers = [address.strip("[]")]
        resolver.port = int(port or 53)
    except ValueError as exc:
        raise InvalidInput(f"{server} is no address of a DNS server", field="server") from exc
    return resolver


def exists(path: str | None) -> bool:
    """Say whether a file is there; None is not."""
    return path is not None and Path(path).is_file()
