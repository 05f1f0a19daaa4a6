"""Who may pass: every page, socket and file but a few needs a sign-in. Also the headers of every answer.

Pure ASGI, in front of Streamlit. Prevents: a websocket opened around the sign-in page, a page framed by
another site, and a deep link that is lost on the way through the sign-in form.
"""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboard import access
from dashboard.deps import deps
from dashboard.routes import SIGN_IN_PATH
from fleet.errors import Unavailable

#: What is served to anybody: nothing here says anything about the fleet.
OPEN = ("/static/", "/vendor/", "/_stcore/health", "/_stcore/host-config")
OPEN_EXACTLY = (SIGN_IN_PATH, "/healthz", "/readyz", "/favicon.png", "/favicon.ico")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Door:
    """Lets signed-in browsers through, sends others to the form, and adds headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if not is_open(scope["path"]) and not await _is_signed_in(scope):
            await _turn_away(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)


def is_open(path: str) -> bool:
    """Say whether anybody may have this path."""
    return path in OPEN_EXACTLY or path.startswith(OPEN)


def token_in(cookie_header: str) -> str | None:
    """Return the sign-in token of a Cookie header; None for none, or for a header that cannot be read."""
    try:
        found = SimpleCookie(cookie_header).get(access.COOKIE)
    except CookieError:
        return None
    return found.value if found else None


async def _is_signed_in(scope: Scope) -> bool:
    of = deps()
    if of.everybody_is_admin:
        return True
    token = token_in(Headers(scope=scope).get("cookie", ""))
    try:
        person = await run_in_threadpool(lambda: access.person_of(token, of, is_active=False))
    except Unavailable:
        return True  # the page itself says that the database is away; it shows strangers nothing else
    return person is not None


async def _turn_away(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 4401, "reason": "sign in first"})
        return
    if "text/html" not in Headers(scope=scope).get("accept", ""):
        await PlainTextResponse("Sign in first.\n", status_code=401)(scope, receive, send)
        return
    query = scope.get("query_string", b"").decode("ascii", "ignore")
    wanted = scope["path"] + (f"?{query}" if query else "")
    await RedirectResponse(f"{SIGN_IN_PATH}?next={quote(wanted, safe='/')}", status_code=303)(
        scope, receive, send
    )
