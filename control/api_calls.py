"""What calls of the API have in common: what they are given, who may make them, how they are described.

Bodies are checked by models that refuse unknown fields. Writes take an idempotency key. Prevents: a
description of calls that is not the one that answers, and a write that happens twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy.orm import Session

from control import idempotency
from control.roles import Actor
from control.tokens import Scope
from fleet.errors import InvalidInput

#: The escape of NUL, not a backslash before a plain u0000.
_NUL_IN_JSON = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class Body(BaseModel):
    """A JSON object with the fields named, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NoteBody(Body):
    """Why, for whoever reads it later."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call was given."""

    session: Session
    now: datetime
    actor: Actor
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any = None
    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))  # the declared one, which cuts months
    finance_key: Path | None = None  # what months are signed with


@dataclass(frozen=True, slots=True)
class Later:
    """An answer that takes seconds to work out and needs no database: nothing is open meanwhile.

    It follows from the body alone, so it is not remembered under an idempotency key.
    """

    work: Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the API."""

    method: str
    path: str
    summary: str
    run: Callable[[Asked], dict[str, Any] | Later]
    body: type[Body] | None = None
    code: int = 200
    reads: Scope = Scope.ALERTS_READ
    writes: Scope = Scope.ALERTS_WRITE
    query: Mapping[str, str] = field(default_factory=dict[str, str])  # what may be asked, and what it means

    @property
    def scope(self) -> Scope:
        return self.reads if self.method == "GET" else self.writes

    def answer(
        self,
        session: Session,
        now: datetime,
        actor: Actor,
        *,
        path: Mapping[str, str],
        query: Mapping[str, str],
        body: bytes,
        key: str | None,
        zone: ZoneInfo,
        finance_key: Path | None = None,
    ) -> dict[str, Any] | Later:
        """Carry the call out once for `key` and return what it answers. Raises what its command raises."""
        model = None if self.body is None else _parsed(self.body, body)
        asked = Asked(session, now, actor, path, query, model, zone, finance_key)
        if self.method == "GET":
            return self.run(asked)
        action = f"{self.method} {self.path}"
        request = dict(path) | ({} if model is None else {"body": model.model_dump(mode="json")})
        before = idempotency.recall(session, key, action, request)
        if before is not None:
            return before
        answer = self.run(asked)
        if isinstance(answer, Later):
            return answer
        idempotency.remember(session, key, action, request, answer, now)
        return answer


def require_storable(texts: Iterable[tuple[str, str]], body: bytes) -> None:
    """Refuse the one character that Postgres keeps in no text, in path, query (name, text) or JSON body."""
    found = [name for name, text in texts if "\x00" in text]
    if found:
        raise _holds_nul(found[0])
    if _NUL_IN_JSON.search(body):
        raise _holds_nul(_field_with_nul(body))


def _holds_nul(field: str | None) -> InvalidInput:
    said = f"{field or 'a text'} holds the character NUL"
    return InvalidInput(said, hint="Leave it out: it cannot be kept", field=field)


def _field_with_nul(body: bytes) -> str | None:
    """Return the first field of a JSON object that holds NUL; None: no object, or a name holds it."""
    try:
        parsed: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    fields = cast("dict[str, object]", parsed)
    return next(
        (name for name, value in fields.items() if _NUL_IN_JSON.search(json.dumps(value).encode())), None
    )


def _parsed(model: type[Body], body: bytes) -> Body:
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        field = "/".join(str(part) for part in first["loc"])[:80] or None
        raise InvalidInput(
            f"{field or 'the body'}: {first['msg']}"[:300], hint="See /openapi.json", field=field
        ) from None


def described(calls: Iterable[Call], operation: Callable[..., dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return calls as OpenAPI paths, made by `operation(summary, scope, responses, body=, ...)`."""
    paths: dict[str, dict[str, Any]] = {}
    for call in calls:
        names = [part[1:-1] for part in call.path.split("/") if part.startswith("{")]
        given: list[dict[str, Any]] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
        schema = None if call.body is None else call.body.model_json_schema()
        made = operation(
            call.summary,
            call.scope,
            {str(call.code): {"description": "Done", "content": {"application/json": {"schema": _ANY}}}},
            body=None if schema is None else schema["properties"],
            required=None if schema is None else schema.get("required"),
        )
        given += [
            {"name": name, "in": "query", "schema": {"type": "string"}, "description": meaning}
            for name, meaning in call.query.items()
        ]
        made["parameters"] = [*given, *made.get("parameters", ())]
        paths.setdefault(call.path, {})[call.method.lower()] = made
    return paths


_ANY = {"type": "object"}
