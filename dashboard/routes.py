"""What the dashboard serves beside its pages: health, sign-in, the chart library, finance's file.

Blocking work (database, scrypt) runs in threads. Prevents: an export cut off by the page's own download
button, a password form that answers as fast as somebody can guess or never while the database hangs, and a
chart script from elsewhere.
"""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Mapping
from functools import lru_cache, partial
from importlib.resources import files
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from control import accounts, audit
from control.api_exports import spend_file, usage_file
from control.database import require_head, session_scope
from control.export_month import issuer_of
from control.http_errors import status_code
from control.roles import Actor, Permission, require
from dashboard import access
from dashboard.deps import Deps, deps
from dashboard.live_plot import PLOTLY_PATH
from dashboard.outage import public
from dashboard.patience import Patience
from dashboard.sign_in_page import safe_next, sign_in_page
from fleet.clock import SystemClock
from fleet.errors import FleetError, InvalidInput, Unauthenticated
from fleet.fluid import simulate
from fleet.strategies import Strategy

SIGN_IN_PATH = "/sign-in"
MAX_FORM_BYTES = 8_192
#: Password checks under way at once: each takes 32 MiB and tenths of a second of one core.
CHECKS_AT_ONCE = 2
#: How long a sign-in waits for the database and the check, seconds: a busy machine takes some of it.
SIGN_IN_WAIT_S = 15.0


def routes() -> list[BaseRoute]:
    """Return our own routes; Streamlit's follow them."""
    return [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route(PLOTLY_PATH, plotly),
        Route(SIGN_IN_PATH, ask, methods=["GET"]),
        Route(SIGN_IN_PATH, Checker().check, methods=["POST"]),
        Route("/exports/spend/{month}.{format}", spend),
        Route("/exports/usage/{month}.{format}", usage),
    ]


async def healthz(_request: Request) -> Response:
    """Say that the process answers."""
    return PlainTextResponse("ok")


async def readyz(_request: Request) -> Response:
    """Say whether pages can be shown: the database answers and has our schema."""
    try:
        await run_in_threadpool(deps().patience.ask, lambda: require_head(deps().reader))
    except FleetError as exc:
        return PlainTextResponse(public(exc).message, status_code=503)
    return PlainTextResponse("ready")


@lru_cache(maxsize=1)
def _plotly_gzipped() -> bytes:
    return gzip.compress((files("plotly") / "package_data" / "plotly.min.js").read_bytes(), 6)


async def plotly(_request: Request) -> Response:
    """Serve the chart library the plotly package carries, compressed once."""
    body = await run_in_threadpool(_plotly_gzipped)
    headers = {"Content-Encoding": "gzip", "Cache-Control": "public, max-age=86400"}
    return Response(body, media_type="text/javascript; charset=utf-8", headers=headers)


async def ask(request: Request) -> Response:
    """Show the sign-in form, or go on where nobody has to sign in."""
    next_path = safe_next(request.query_params.get("next", "/"))
    if deps().everybody_is_admin:
        return RedirectResponse(next_path, status_code=303)
    return _form(next_path)


def _form(next_path: str, *, name: str = "", problem: str = "", code: int = 200) -> Response:
    headers = {
        "Cache-Control": "no-store",
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'",
    }
    return HTMLResponse(sign_in_page(next_path, name=name, problem=problem), code, headers)


class Checker:
    """Checks passwords, a few at a time, and waits for the database so long and no longer.

    A check that was given up may still begin a session: nobody has its token, and it ends by itself.
    """

    def __init__(self, patience: Patience | None = None) -> None:
        self._room = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._patience = patience or Patience(SystemClock(), wait_s=SIGN_IN_WAIT_S)

    async def check(self, request: Request) -> Response:
        """Check name and password; on success set the cookie and go where the person wanted to go."""
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return PlainTextResponse("This form was sent from another site.", status_code=403)
        try:
            fields = await _fields(request)
        except InvalidInput as exc:
            return _form("/", problem=exc.message, code=422)
        name, next_path = fields.get("name", "")[:63], safe_next(fields.get("next", "/"))
        try:
            async with self._room:
                token = await run_in_threadpool(
                    self._patience.ask, partial(_token, deps(), name, fields.get("password", ""))
                )
        except FleetError as exc:
            said, code = public(exc), status_code(exc)
            problem = f"{said.message[:1].upper()}{said.message[1:]}. {said.hint}."
            return _form(next_path, name=name, problem=problem, code=code)
        if token is None:
            return _form(next_path, name=name, problem="Name or password is wrong.", code=401)
        response = RedirectResponse(next_path, status_code=303)
        response.set_cookie(
            access.COOKIE,
            token,
            max_age=int(accounts.LIFETIME.total_seconds()),
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
            path="/",
        )
        return response


async def _fields(request: Request) -> dict[str, str]:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise InvalidInput(f"the form is over {MAX_FORM_BYTES} bytes")
    try:
        parsed = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=10)
    except ValueError as exc:
        raise InvalidInput("the form cannot be read") from exc
    return {key: values[0] for key, values in parsed.items()}


def _token(of: Deps, name: str, password: str) -> str | None:
    if "\x00" in name or not name:
        return None
    with session_scope(of.writer) as session:
        return accounts.sign_in(session, name=name, password=password, now=of.clock.now())


async def spend(request: Request) -> Response:
    """Send a month's spend as a file to finance and admin; the download is on the record."""
    token, path, query = request.cookies.get(access.COOKIE), request.path_params, request.query_params
    try:
        return await run_in_threadpool(_export, deps(), token, path, query)
    except FleetError as exc:
        return _refused(exc)


async def usage(request: Request) -> Response:
    """Send a month's usage records as a file to finance and admin; the download is on the record."""
    token, path = request.cookies.get(access.COOKIE), request.path_params
    try:
        return await run_in_threadpool(_usage, deps(), token, path)
    except FleetError as exc:
        return _refused(exc)


def _refused(exc: FleetError) -> Response:
    said = public(exc)
    return PlainTextResponse(f"{said.message}\n{said.hint}\n", status_code=status_code(exc))


def _exporter(of: Deps, token: str | None) -> Actor:
    person = access.person_of(token, of, is_active=True)
    if person is None:
        raise Unauthenticated("nobody is signed in", hint="Sign in, then download again")
    require(person.actor, Permission.EXPORT_SPEND)
    return person.actor


def _export(of: Deps, token: str | None, path: Mapping[str, str], query: Mapping[str, str]) -> Response:
    actor, now = _exporter(of, token), of.clock.now()
    with session_scope(of.writer) as session:
        made, answer = spend_file(
            session, path, query, zone=of.zone, now=now, issuer=issuer_of(of.settings)
        )
        subject, detail = f"month {made.month}", dict(made.manifest())
        audit.append(session, actor, "spend.export", subject, "", detail, now)
    return answer


def _usage(of: Deps, token: str | None, path: Mapping[str, str]) -> Response:
    actor, now = _exporter(of, token), of.clock.now()
    manifest, answer = usage_file(of.writer, path, zone=of.zone, now=now)
    with session_scope(of.writer) as session:
        audit.append(session, actor, "usage.export", f"month {manifest['month']}", "", dict(manifest), now)
    return answer


def warm() -> None:
    """Do at the start what the first visitor would wait for."""
    deps()
    _plotly_gzipped()
    threading.Thread(target=compile_estimates, name="compile-estimates", daemon=True).start()


def compile_estimates() -> None:
    """Compile the loop of estimates, or load it from the cache: seconds that no visitor should wait."""
    simulate([1.0], Strategy(1))
