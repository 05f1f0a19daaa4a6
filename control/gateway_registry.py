"""Which gateways the controller keeps converged: add and remove. Commands join the caller's transaction.

Names follow the policy's name rule; addresses are http(s) origins without path or credentials. Prevents:
an address that makes the controller call something it should not, and a removed gateway whose shares
stay booked.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from control import audit
from control.fetch import is_allowed
from control.roles import Actor, Permission, require
from control.tables import AssignmentRow, GatewayObservedRow, GatewayRow
from fleet.errors import Conflict, InvalidInput, NotFound

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")
MAX_URL_CHARACTERS = 300
MAX_PROCESSES = 64
MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Gateway:
    """A registered gateway."""

    name: str
    url: str
    created_at: datetime


def add_processes(
    session: Session, *, name: str, url: str, processes: int, actor: Actor, now: datetime
) -> list[Gateway]:
    """Register the processes of one gateway (`rhodeck gateway --processes N`), each a gateway of its own.

    They are called NAME-1 to NAME-N; `url` is the first one's admin address, the next ones have the ports
    after it. Raises as `add_gateway`, and then none is added.
    """
    if not 2 <= processes <= MAX_PROCESSES:
        raise InvalidInput(
            f"a gateway of several processes has 2 to {MAX_PROCESSES} of them, not {processes}",
            hint="Give the number that the gateway was started with",
            field="processes",
        )
    parts = urlsplit(checked_origin(url))
    first = parts.port
    if first is None or first + processes - 1 > MAX_PORT:
        raise InvalidInput(
            f"{url} names no port that {processes} admin ports can begin at",
            hint="Give the first process's admin address, http://host:port",
            field="url",
        )
    host = parts.netloc.removesuffix(f":{first}")
    return [
        add_gateway(
            session,
            name=f"{name}-{number}",
            url=f"{parts.scheme}://{host}:{first + number - 1}",
            actor=actor,
            now=now,
            group=name,
        )
        for number in range(1, processes + 1)
    ]


def add_gateway(
    session: Session, *, name: str, url: str, actor: Actor, now: datetime, group: str | None = None
) -> Gateway:
    """Register a gateway; the controller sends it its assignment at the next tick.

    `group` names the gateway it is one process of. Raises InvalidInput for a bad name or address, Conflict
    if either is in use.
    """
    require(actor, Permission.MANAGE_FLEET)
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is not a gateway name",
            hint="Use 1 to 63 of a-z, 0-9, '-', '_', '.', starting with a letter or digit",
            field="name",
        )
    origin = checked_origin(url)
    _check_no_namesake(session, name, group)
    row = session.get(GatewayRow, name)
    if row is not None and row.state == "active":
        raise Conflict(
            f"gateway {name} exists, at {row.base_url}", hint="Choose another name", field="name"
        )
    try:
        with session.begin_nested():
            if row is None:
                row = GatewayRow(name=name, base_url=origin, state="active", created_at=now)
                session.add(row)
            else:
                row.base_url, row.state, row.removed_at = origin, "active", None
            row.process_group = group
    except IntegrityError as exc:
        raise Conflict(
            f"{origin} or the name {name} is registered already",
            hint="See `rhodeck gateways list`",
            field="url",
        ) from exc
    audit.append(session, actor, "gateway.add", f"gateway {name}", "", {"url": origin}, now)
    return Gateway(name, origin, now)


def _check_no_namesake(session: Session, name: str, group: str | None) -> None:
    """Raise Conflict if a gateway and a group of processes would have one name: which is then taken out?"""
    g = GatewayRow
    is_group = select(g.name).where(g.process_group == name, g.state == "active").limit(1)
    if session.scalar(is_group) is not None:
        raise Conflict(f"{name} is the name of several processes", hint="Choose another name", field="name")
    is_gateway = select(g.name).where(g.name == group, g.state == "active")
    if group is not None and session.scalar(is_gateway) is not None:
        raise Conflict(f"gateway {group} exists", hint="Choose another name", field="name")


def remove_processes(session: Session, *, name: str, actor: Actor, now: datetime) -> list[str]:
    """Take out all processes of a gateway; return their names. Raises NotFound where it has none."""
    require(actor, Permission.MANAGE_FLEET)
    g = GatewayRow
    names = list(
        session.scalars(select(g.name).where(g.process_group == name, g.state == "active").order_by(g.name))
    )
    if not names:
        raise NotFound(f"there is no gateway {name}", hint="See `rhodeck gateways list`", field="name")
    for one in names:
        remove_gateway(session, name=one, actor=actor, now=now)
    return names


def remove_gateway(session: Session, *, name: str, actor: Actor, now: datetime) -> None:
    """Take a gateway out; the others take over its shares at the next tick.

    The gateway itself is not told and keeps admitting within its last share until it is stopped. Its
    address may be registered again. Raises NotFound.
    """
    require(actor, Permission.MANAGE_FLEET)
    row = session.get(GatewayRow, name, with_for_update=True)
    if row is None or row.state != "active":
        raise NotFound(f"there is no gateway {name}", hint="See `rhodeck gateways list`", field="name")
    url = row.base_url
    row.state, row.removed_at = "removed", now
    row.base_url = (
        f"{url}#removed-{now:%Y%m%dT%H%M%S.%f}"  # the column is unique; the address is free again
    )
    session.execute(delete(GatewayObservedRow).where(GatewayObservedRow.gateway == name))
    session.execute(delete(AssignmentRow).where(AssignmentRow.gateway == name))
    audit.append(session, actor, "gateway.remove", f"gateway {name}", "", {"url": url}, now)


def gateways(session: Session) -> list[Gateway]:
    """Return registered gateways by name."""
    g = GatewayRow
    rows = session.execute(
        select(g.name, g.base_url, g.created_at).where(g.state == "active").order_by(g.name)
    )
    return [Gateway(*row) for row in rows]


def checked_origin(url: str) -> str:
    """Return `url` as scheme://host:port. Raises InvalidInput unless it is a plain http(s) origin.

    Link-local, multicast and reserved addresses are refused: they reach metadata services or nobody in
    particular. Private and loopback addresses are where gateways live. Host names are checked again, by
    the addresses they stand for, at each connection.
    """

    def bad(why: str) -> InvalidInput:
        return InvalidInput(
            f"the gateway's address {why}", hint="Write it as http://host:port", field="url"
        )

    if len(url) > MAX_URL_CHARACTERS or not url.isascii() or not url.isprintable() or " " in url:
        raise bad(f"must be plain ASCII of at most {MAX_URL_CHARACTERS} characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise bad(f"cannot be read: {exc}") from exc
    if parts.scheme not in ("http", "https") or not host:
        raise bad("must begin with http:// or https:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise bad("must not carry a user name or password")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise bad("must not have a path, query or fragment")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host) or re.fullmatch(r"[0-9.]+|0[xX].*", host):
            raise bad(f"has no usable host: {host}") from None
        address = None
    if address is not None and not is_allowed(address):
        raise bad(f"must not be the link-local, multicast or reserved address {host}")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port is not None else "")
