"""The HTTP API for scripts: status, policy, spend. The same queries and commands as the pages.

Every call carries `Authorization: Bearer <token>` with the scope it needs, except `/healthz`, `/readyz`
and `/openapi.json`. Errors are `FleetError` as JSON: message, hint, field. Prevents: a second set of
rules beside the pages', and a traceback in an answer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import orjson
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from control import (
    api_alerts,
    api_estimates,
    api_exports,
    api_finance,
    api_flow,
    api_months,
    api_nodes,
    commands_policy,
    month_close,
    queries_policy,
    queries_rho,
)
from control.api_calls import Call, Later, require_storable
from control.commands_policy import OvertakenEdit
from control.database import require_head, session_scope
from control.diagnose import diagnosis, span_of
from control.diagnosis_report import as_json
from control.http_errors import status_code
from control.openapi import document
from control.queries_quality import findings
from control.roles import Actor, Role
from control.status_report import status_report
from control.tokens import ApiToken, Scope, authenticate
from fleet.clock import Clock
from fleet.errors import FleetError, InvalidInput, NotFound, Unauthenticated, Unavailable
from fleet.focus import Issuer

MAX_BODY_BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class ApiDeps:
    """What the API is given by its entry point."""

    engine: Engine
    clock: Clock
    zone: ZoneInfo
    issuer: Issuer = field(default_factory=Issuer)
    finance_key: Path | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One authenticated call."""

    request: Request
    token: ApiToken
    body: bytes

    @property
    def actor(self) -> Actor:
        return Actor(f"token {self.token.id} ({self.token.name})", Role.OPERATOR, "api")

    @property
    def idempotency_key(self) -> str | None:
        return self.request.headers.get("idempotency-key")


#: What is worked out when the transaction has ended.
Rest = Callable[[], Response]
Work = Callable[[Session, ApiDeps, Asked], Response | Rest]


def build_app(deps: ApiDeps) -> Starlette:
    """Return the ASGI application."""

    def route(path: str, work: Work, scope: Scope, method: str = "GET") -> Route:
        return Route(path, _guarded(_call(work, scope, deps), deps), methods=[method])

    routes = [
        Route("/healthz", _healthz),
        Route("/readyz", _guarded(_readyz, deps)),
        Route("/openapi.json", _openapi),
        route("/api/v1/status", _status, Scope.STATUS_READ),
        route("/api/v1/rho", _rho, Scope.STATUS_READ),
        route("/api/v1/quality", _quality, Scope.STATUS_READ),
        route("/api/v1/diagnosis", _diagnosis, Scope.STATUS_READ),
        route("/api/v1/policy", _policy, Scope.POLICY_READ),
        route("/api/v1/policy", _publish, Scope.POLICY_WRITE, "POST"),
        route("/api/v1/policy/rollback", _rollback, Scope.POLICY_WRITE, "POST"),
        route(api_exports.SPEND_PATH, _spend_file, Scope.SPEND_READ),
        route(api_exports.USAGE_PATH, _usage_file, Scope.SPEND_READ),
        route("/api/v1/months", _months, Scope.SPEND_READ),
        *(
            route(call.path, _called(call), call.scope, call.method)
            for call in (
                *api_alerts.CALLS,
                *api_nodes.CALLS,
                *api_flow.CALLS,
                *api_months.CALLS,
                *api_finance.CALLS,
                *api_exports.CALLS,
                *api_estimates.CALLS,
            )
        ),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={404: _no_such_path, 405: _no_such_path, Exception: _bug},
    )
    app.router.redirect_slashes = False  # it would send people to whatever the Host header says
    return app


async def _healthz(_request: Request) -> Response:
    return JSONResponse({"status": "up"})


async def _readyz(_request: Request, deps: ApiDeps) -> Response:
    def check() -> None:
        require_head(deps.engine)
        with deps.engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    try:
        await run_in_threadpool(check)
    except FleetError as exc:
        raise Unavailable(exc.message, hint=exc.hint, field=exc.field) from exc
    return JSONResponse({"status": "ready"})


async def _openapi(_request: Request) -> Response:
    return JSONResponse(document())


async def _no_such_path(request: Request, _exc: Exception) -> Response:
    return _error(
        NotFound(f"there is no {request.method} {request.url.path[:200]}", hint="See /openapi.json")
    )


async def _bug(_request: Request, _exc: Exception) -> Response:
    return JSONResponse(
        FleetError("the call failed inside the API", hint="The API's log says where").as_dict(), 500
    )


def _guarded(
    handler: Callable[[Request, ApiDeps], Awaitable[Response]], deps: ApiDeps
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            return await handler(request, deps)
        except FleetError as exc:
            return _error(exc)
        except OperationalError:  # a statement or a lock that took longer than its limit
            return _error(Unavailable("the database took too long", hint="Try again in a while"))

    return answer


def _error(exc: FleetError) -> Response:
    if isinstance(exc, Unavailable) and exc.field == "DATABASE_URL":  # its address is no caller's
        logging.getLogger(__name__).warning("the database is away", extra={"reason": exc.message})
        exc = Unavailable("the database does not answer", hint="Try again in a while")
    code = status_code(exc)
    headers = {"WWW-Authenticate": "Bearer"} if code == 401 else {}
    said: dict[str, Any] = exc.as_dict() | (_newest(exc) if isinstance(exc, OvertakenEdit) else {})
    # ASCII: the message may quote half a surrogate pair, which UTF-8 cannot carry
    return Response(json.dumps(said), status_code=code, headers=headers, media_type="application/json")


def _newest(exc: OvertakenEdit) -> dict[str, Any]:
    """Return what an overtaken editor needs to publish again: the newest revision, what it changed."""
    head = exc.head
    return {
        "newest": head
        and {"revision": head.number, "digest": head.digest, "author": head.author, "note": head.note},
        "changes": [list(change) for change in exc.changes],
    }


def _call(work: Work, scope: Scope, deps: ApiDeps) -> Callable[[Request, ApiDeps], Awaitable[Response]]:
    def admit(secret: str) -> ApiToken:  # committed before the work: twins must not wait for each other
        with session_scope(deps.engine) as session:
            return authenticate(session, secret, scope, deps.clock.now())

    def run(asked: Asked) -> Response:
        with session_scope(deps.engine) as session:
            found = work(session, deps, asked)
        return found if isinstance(found, Response) else found()

    async def handler(request: Request, _deps: ApiDeps) -> Response:
        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not secret.strip():
            raise Unauthenticated("no token was given", hint="Send Authorization: Bearer <token>")
        token = await run_in_threadpool(admit, secret.strip())
        body = await _body(request)
        require_storable((*request.path_params.items(), *request.query_params.multi_items()), body)
        return await run_in_threadpool(run, Asked(request, token, body))

    return handler


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise InvalidInput(f"the body is over {MAX_BODY_BYTES} bytes", hint="Send less")
    return bytes(body)


def _status(session: Session, deps: ApiDeps, _asked: Asked) -> Response:
    return _json(status_report(session, deps.clock.now()).as_dict())


def _rho(session: Session, deps: ApiDeps, asked: Asked) -> Response:
    """Verdicts of the scopes asked for (fleet, pools, models and tiers unless said), with the reasons."""
    query = asked.request.query_params
    asked_for: list[queries_rho.Named] = [queries_rho.scope_named(n) for n in query.getlist("scope")]
    scopes = asked_for or list(queries_rho.WIDE)
    found = queries_rho.verdicts(session, deps.clock.now(), scopes, name=query.get("name"))
    return _json({"verdicts": [queries_rho.as_dict(view) for view in found]})


def _quality(session: Session, deps: ApiDeps, asked: Asked) -> Response:
    """Findings that stand, and those that ended in the last `hours` (0 to 720, default 24)."""
    query = asked.request.query_params
    hours = query.get("hours", "24")
    if not hours.isascii() or not hours.isdigit() or len(hours) > 3 or int(hours) > 720:
        raise InvalidInput(
            f"hours is {hours[:20]!r}", hint="Send a whole number from 0 to 720", field="hours"
        )
    window = timedelta(hours=int(hours))
    found = findings(session, deps.clock.now(), window=window, source=query.get("source"))
    return _json({"findings": [each.as_dict() for each in found]})


def _diagnosis(session: Session, deps: ApiDeps, asked: Asked) -> Response:
    """The verdict on the last `since` (3m to 6h, default 15m)."""
    span = span_of(asked.request.query_params.get("since", "15m"))
    return _json(as_json(diagnosis(session, deps.clock.now(), span)))


def _policy(session: Session, _deps: ApiDeps, _asked: Asked) -> Response:
    head = queries_policy.head(session)
    if head is None:
        raise NotFound("no policy was published yet", hint="POST one to /api/v1/policy with parent 0")
    return _json(
        {
            "revision": head.number,
            "digest": head.digest,
            "author": head.author,
            "note": head.note,
            "created_at": head.created_at,
            "document": head.document,
        }
    )


def _called(call: Call) -> Work:
    def work(session: Session, deps: ApiDeps, asked: Asked) -> Response | Rest:
        answer = call.answer(
            session,
            deps.clock.now(),
            asked.actor,
            path=asked.request.path_params,
            query=asked.request.query_params,
            body=asked.body,
            key=asked.idempotency_key,
            zone=deps.zone,
            finance_key=deps.finance_key,
        )
        if isinstance(answer, Later):
            return lambda: _json(answer.work(), call.code)
        return _json(answer, call.code)

    return work


def _publish(session: Session, deps: ApiDeps, asked: Asked) -> Response:
    needed = {"document", "parent", "note"}
    fields = _fields(asked.body, needed | {"strategy"}, required=needed)
    published = commands_policy.publish(
        session,
        document=fields["document"],
        parent=_integer(fields, "parent"),
        author=asked.actor,
        note=_text(fields, "note"),
        now=deps.clock.now(),
        strategy=_strategy(fields),
        idempotency_key=asked.idempotency_key,
    )
    return _published(published)


def _rollback(session: Session, deps: ApiDeps, asked: Asked) -> Response:
    fields = _fields(asked.body, {"to", "note"}, required={"to", "note"})
    published = commands_policy.rollback(
        session,
        to=_integer(fields, "to"),
        author=asked.actor,
        note=_text(fields, "note"),
        now=deps.clock.now(),
        idempotency_key=asked.idempotency_key,
    )
    return _published(published)


def _published(made: commands_policy.Published) -> Response:
    return _json({"revision": made.number, "digest": made.digest, "rollout": made.rollout_id}, 201)


def _spend_file(session: Session, deps: ApiDeps, asked: Asked) -> Response:
    path, query = asked.request.path_params, asked.request.query_params
    now = deps.clock.now()
    return api_exports.spend_file(session, path, query, zone=deps.zone, now=now, issuer=deps.issuer)[1]


def _usage_file(_session: Session, deps: ApiDeps, asked: Asked) -> Response:
    path, now = asked.request.path_params, deps.clock.now()
    return api_exports.usage_file(deps.engine, path, zone=deps.zone, now=now)[1]


def _months(session: Session, deps: ApiDeps, _asked: Asked) -> Response:
    """Months since the first observed node time, newest first; of closed ones checksum and signature."""
    found = month_close.months(session, zone=deps.zone, now=deps.clock.now())
    return _json({"months": [each.as_dict() for each in found]})


def _fields(body: bytes, known: set[str], *, required: set[str]) -> dict[str, Any]:
    try:
        asked: object = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput("the body is not JSON", hint="See /openapi.json") from exc
    if not isinstance(asked, dict):
        raise InvalidInput("the body is not a JSON object", hint="See /openapi.json")
    fields: dict[str, Any] = {str(key): value for key, value in asked.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] # JSON
    missing, unknown = sorted(required - fields.keys()), sorted(fields.keys() - known)
    if missing or unknown:
        said = [f"{name} is missing" for name in missing] + [
            f"{name[:40]} is not known" for name in unknown
        ]
        raise InvalidInput(
            "; ".join(said), hint=f"Send {', '.join(sorted(known))}", field=(missing + unknown)[0]
        )
    return fields


def _integer(asked: dict[str, Any], name: str) -> int:
    value = asked[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise InvalidInput(f"{name} is not a revision number", hint="Send an integer", field=name)
    return value


def _text(asked: dict[str, Any], name: str) -> str:
    value = asked[name]
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is not text", hint="Send a string", field=name)
    return value


def _strategy(asked: dict[str, Any]) -> commands_policy.Strategy:
    match asked.get("strategy", "staged"):
        case "staged":
            return "staged"
        case "all_at_once":
            return "all_at_once"
        case _:
            raise InvalidInput("strategy is staged or all_at_once", field="strategy")


def _json(content: object, code: int = 200) -> Response:
    return Response(orjson.dumps(content), status_code=code, media_type="application/json")
