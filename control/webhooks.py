"""Webhooks: where notices go, and the secrets they are signed with.

A secret is a file in the controller's folder for them, named by the webhook's row; the database never
holds it. Addresses are http(s) without user name, query or fragment, and every address a name stands for
is checked again at each call. Prevents: a secret in a backup or a log, a webhook that calls the cloud's
metadata service, and a receiver that disappears without a word.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import secrets
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from control import audit
from control.alert_notices import iso, runbook_path
from control.fetch import FetchFailed, is_allowed, split_url
from control.roles import Actor, Permission, require
from control.secret_files import write_secret
from control.tables import AlertDeliveryRow, AlertNoticeRow, WebhookRow
from fleet.errors import Conflict, InvalidInput, NotFound, Unavailable

KINDS = ("generic", "alertmanager")
SECRET_PREFIX = "whsec_"  # noqa: S105 # what every secret of the kind begins with
MAX_URL_CHARACTERS = 500
MAX_SECRET_BYTES = 4_096
MAX_WEBHOOKS = 20
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_NUMBER_HOST = re.compile(r"[0-9.]+|0[xX].*")


def add_webhook(
    session: Session,
    actor: Actor,
    *,
    name: str,
    url: str,
    now: datetime,
    kind: str = "generic",
    secret_name: str | None = None,
) -> None:
    """Send notices to `url` from now on, signed with the secret in the file `secret_name`.

    For kind alertmanager the file, if named, holds a bearer token. Raises InvalidInput for what cannot
    be, Conflict if the name is in use or there are 20 webhooks already.
    """
    require(actor, Permission.MANAGE_ALERTS)
    checked_name(name, "name")
    target = checked_url(url)
    if kind not in KINDS:
        raise InvalidInput(
            f"kind {kind!r} does not exist", hint="Write generic or alertmanager", field="kind"
        )
    if secret_name is not None:
        checked_name(secret_name, "secret_name")
    elif kind == "generic":
        raise InvalidInput(
            "a generic webhook is always signed", hint="Name the file of its secret", field="secret_name"
        )
    row = session.get(WebhookRow, name, with_for_update=True)
    if row is not None and row.removed_at is None:
        raise Conflict(f"webhook {name} exists", hint="Choose another name or remove it", field="name")
    active = session.scalars(select(WebhookRow.name).where(WebhookRow.removed_at.is_(None))).all()
    if len(active) >= MAX_WEBHOOKS:
        raise Conflict(f"there are {len(active)} webhooks", hint="Remove one first", field="name")
    if row is None:
        row = WebhookRow(name=name)
        session.add(row)
    row.kind, row.url, row.secret_name = kind, target, secret_name
    row.created_at, row.created_by, row.removed_at = now, actor.name, None
    row.refreshed_at = row.last_ok_at = row.last_error = row.last_error_at = None
    detail = {"kind": kind, "url": target, "secret_name": secret_name}
    audit.append(session, actor, "webhook.add", f"webhook {name}", "", detail, now)


def remove_webhook(session: Session, actor: Actor, *, name: str, now: datetime, note: str = "") -> None:
    """Send it nothing more; what waits for it is given up. Raises NotFound."""
    require(actor, Permission.MANAGE_ALERTS)
    row = _active(session, name)
    row.removed_at = now
    d = AlertDeliveryRow
    session.execute(
        update(d)
        .where(d.webhook == name, d.state == "pending")
        .values(state="dead", done_at=now, error="the webhook was removed")
    )
    audit.append(session, actor, "webhook.remove", f"webhook {name}", note, {}, now)


def retry_dead(session: Session, actor: Actor, *, name: str, now: datetime) -> int:
    """Try again what was given up for a webhook; return how many notices. Raises NotFound."""
    require(actor, Permission.MANAGE_ALERTS)
    _active(session, name)
    d = AlertDeliveryRow
    again = session.scalars(
        update(d)
        .where(d.webhook == name, d.state == "dead")
        .values(state="pending", attempts=0, next_at=now, done_at=None)
        .returning(d.notice)
    ).all()
    if again:
        audit.append(session, actor, "webhook.retry", f"webhook {name}", "", {"notices": len(again)}, now)
    return len(again)


def send_test(session: Session, actor: Actor, *, name: str, now: datetime) -> str:
    """Put a test notice in line for one webhook and return its id. Raises NotFound."""
    require(actor, Permission.MANAGE_ALERTS)
    _active(session, name)
    number = f"msg_{secrets.token_hex(16)}"
    entry = {
        "id": 0,
        "rule": "test",
        "scope": "fleet",
        "subject": "",
        "pool": None,
        "state": "resolved",
        "severity": "warning",
        "opened_at": iso(now),
        "resolved_at": iso(now),
        "value": None,
        "threshold": None,
        "unit": None,
        "summary": f"A test asked for by {actor.name}; nothing is wrong",
        "page": "/alerts",
        "runbook": runbook_path("test"),
    }
    body = {
        "type": "alert.test",
        "timestamp": iso(now),
        "data": {
            "rule": "test",
            "scope": "fleet",
            "pool": None,
            "title": "Test",
            "severity": "warning",
            "summary": entry["summary"],
            "firing": 0,
            "resolved": 1,
            "runbook": runbook_path("test"),
            "alerts": [entry],
            "omitted": 0,
        },
    }
    session.add(
        AlertNoticeRow(id=number, at=now, rule="test", scope="fleet", pool="", kind="test", body=body)
    )
    session.flush()
    session.add(AlertDeliveryRow(notice=number, webhook=name, state="pending", attempts=0, next_at=now))
    audit.append(session, actor, "webhook.test", f"webhook {name}", "", {"notice": number}, now)
    return number


def _active(session: Session, name: str) -> WebhookRow:
    row = session.get(WebhookRow, name, with_for_update=True)
    if row is None or row.removed_at is not None:
        raise NotFound(
            f"no webhook is called {name[:80]!r}",
            hint="List them with `rhodeck webhooks list`",
            field="name",
        )
    return row


def checked_name(name: str, field: str) -> str:
    """Return `name` if it can be a webhook's or a secret file's. Raises InvalidInput."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is not a name",
            hint="Use 1 to 63 of a-z, 0-9, '-', '_', '.', starting with a letter or digit",
            field=field,
        )
    return name


def checked_url(url: str) -> str:
    """Return `url` if notices may be sent there. Raises InvalidInput.

    Forbidden addresses written as numbers are refused here; names are checked at every call.
    """

    def bad(why: str) -> InvalidInput:
        return InvalidInput(
            f"the webhook's address {why}", hint="Write it as https://host/path", field="url"
        )

    if len(url) > MAX_URL_CHARACTERS:
        raise bad(f"is longer than {MAX_URL_CHARACTERS} characters")
    try:
        parts = split_url(url, default_path="/")
    except FetchFailed as problem:
        raise bad(f"cannot be used: {problem.message}") from problem
    if urlsplit(url).query or "#" in url or "?" in url:
        raise bad("must not have a query or fragment: a token in it would be kept in clear")
    host = parts.hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if _NUMBER_HOST.fullmatch(host):
            raise bad(f"has no usable host: {host}") from None
    else:
        if not is_allowed(address):
            raise bad(f"must not be {host}, which is never called")
    return parts.geturl()


def new_secret() -> str:
    """Return a new signing secret: 32 random bytes in the form receivers' libraries take."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def make_secret(folder: Path, name: str) -> tuple[str, bool]:
    """Return the secret in `folder`/`name`, and whether it was made now. Raises as `read_secret` does."""
    path = folder / checked_name(name, "secret_name")
    if path.exists():
        return read_secret(folder, name), False
    secret = new_secret()
    write_secret(path, secret + "\n")
    return secret, True


def read_secret(folder: Path, name: str) -> str:
    """Return the secret in `folder`/`name`. Raises Unavailable naming the file, never its content."""
    path = folder / checked_name(name, "secret_name")
    hint = "Put the secret there, readable by the controller's account alone"
    try:
        with path.open("rb") as file:
            found = file.read(MAX_SECRET_BYTES + 1)
    except OSError as problem:
        raise Unavailable(
            f"the secret file {path} cannot be read: {problem.strerror}", hint=hint
        ) from problem
    secret = found.decode("utf-8", "replace").strip()
    if len(found) > MAX_SECRET_BYTES or len(secret) < 16 or not secret.isprintable():
        raise Unavailable(f"the secret file {path} holds no secret of 16 to 4096 characters", hint=hint)
    return secret


def signature(secret: str, message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the value of `webhook-signature`: "v1," and the base64 HMAC-SHA256 of "id.timestamp.body".

    A secret that begins with whsec_ is base64 of the key; another one is the key itself. Source: Standard
    Webhooks specification 1.0, "Signature scheme".
    """
    key = secret.encode()
    if secret.startswith(SECRET_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except ValueError as problem:  # binascii.Error, or characters beyond ASCII
            raise Unavailable(
                "the webhook's secret is not base64 after whsec_", hint="Make a new one"
            ) from problem
    signed = message_id.encode() + b"." + str(timestamp_s).encode() + b"." + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
