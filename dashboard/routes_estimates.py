"""An estimate's files: a sheet and a printable page, made from the document in the address.

Only who may look at the pages gets them. The work is bounded by the document: six strategies at most.
Prevents: a download that differs from the page, and a report anybody outside can ask for.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from control.comparison_documents import from_link
from control.comparison_report import as_csv
from control.http_errors import status_code
from control.roles import Permission, require
from dashboard import access, data_estimates
from dashboard import viewmodels_comparison as vm
from dashboard.deps import deps
from dashboard.outage import public
from dashboard.report_page import HEADERS, report_page
from fleet.errors import FleetError, Unauthenticated

LINK = "e"


def routes() -> list[BaseRoute]:
    """Return the routes of estimates."""
    return [Route("/exports/estimate.csv", sheet), Route("/exports/estimate.html", report)]


async def sheet(request: Request) -> Response:
    """Send the comparison as CSV."""
    return await _answered(request, _sheet)


async def report(request: Request) -> Response:
    """Show the comparison as a page to print or save as PDF."""
    return await _answered(request, _report)


async def _answered(request: Request, made: Callable[[str | None, str], Response]) -> Response:
    token, link = request.cookies.get(access.COOKIE), request.query_params.get(LINK, "")
    try:
        return await run_in_threadpool(made, token, link)
    except FleetError as exc:
        said = public(exc)
        return PlainTextResponse(f"{said.message}\n{said.hint}\n", status_code=status_code(exc))


def _admit(token: str | None) -> None:
    person = access.person_of(token, deps(), is_active=True)
    if person is None:
        raise Unauthenticated("nobody is signed in", hint="Sign in, then open the file again")
    require(person.actor, Permission.VIEW)


def _sheet(token: str | None, link: str) -> Response:
    _admit(token)
    ready = data_estimates.ready(from_link(link))
    body = as_csv(ready, data_estimates.answer(ready).compared)
    name = f"estimate-{ready.sha256[:12]}.csv"
    return Response(
        body.encode(),
        media_type="text/csv; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        },
    )


def _report(token: str | None, link: str) -> Response:
    _admit(token)
    ready = data_estimates.ready(from_link(link))
    found = data_estimates.answer(ready)
    made = f"{deps().clock.now().astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    more = [*vm.flips(found.axes), vm.reserve_line(found.reserve)]
    return HTMLResponse(report_page(ready, found.compared, more, made), headers=HEADERS)
