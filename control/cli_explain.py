"""`rhodeck gateway explain`: what gateways decided about one request, in words.

Prevents: an answer pieced together from counters, and the admin token sent to an address nobody registered.
"""

from __future__ import annotations

import asyncio

import click
from pydantic import SecretStr

from control import gateway_registry, gateways
from control.cli_session import transaction
from control.settings import Settings, load_settings
from control.up import Folders
from fleet.decision import Decision, in_words
from fleet.errors import FleetError, InvalidInput, NotFound

_DEADLINE_S = 5.0


@click.command(name="explain")
@click.argument("request_id")
@click.option("--gateway", "only", help="Ask this gateway only, not all that are registered.")
@click.option("--json", "as_json", is_flag=True, help="Print the decision as JSON.")
def explain(request_id: str, only: str | None, as_json: bool) -> None:
    """Say what was decided about REQUEST_ID (the answer's x-request-id header) and why.

    What it was taken to need, where it waited, which node it went to by which rule, how it ended. Gateways
    keep their last requests in memory (RHODECK_GATEWAY_DECISIONS).
    """
    with transaction() as session:
        known = [(one.name, one.url) for one in gateway_registry.gateways(session)]
    asked = [place for place in known if only in (None, place[0])]
    if not asked:
        raise NotFound(
            f"no gateway {only!r} is registered" if only else "no gateway is registered",
            hint="`rhodeck gateways list` names them",
        )
    token = gateways_token(load_settings())
    decision, failures = asyncio.run(_found(request_id, asked, token.get_secret_value()))
    if decision is None:
        said = "; ".join(f"{name}: {exc.message}" for name, exc in failures)
        raise NotFound(said, hint=failures[0][1].hint if failures else "")
    click.echo(
        decision.model_dump_json(indent=1, by_alias=True) if as_json else "\n".join(in_words(decision))
    )


def gateways_token(settings: Settings) -> SecretStr:
    """Return the token as set, else the one `rhodeck up` or `demo` made in the state folder.

    Raises InvalidInput if there is neither.
    """
    token, made = settings.read_admin_token(), Folders(settings.state_dir).admin_token
    if token is None and made.is_file():
        token = settings.model_copy(update={"admin_token_file": made}).read_admin_token()
    if token is None:
        raise InvalidInput(
            f"no token for the gateways is set, and {made} is not there",
            field="RHODECK_ADMIN_TOKEN",
            hint="Set RHODECK_ADMIN_TOKEN_FILE to the file the controller uses, or RHODECK_STATE_DIR",
        )
    return token


async def _found(
    request_id: str, places: list[tuple[str, str]], token: str
) -> tuple[Decision | None, list[tuple[str, FleetError]]]:
    """Return the decision of the gateway that has it, or what each said instead."""
    async with gateways.new_session() as http:
        answers = await asyncio.gather(
            *(
                gateways.decision(http, name, url, request_id, token=token, deadline_s=_DEADLINE_S)
                for name, url in places
            ),
            return_exceptions=True,
        )
    failures: list[tuple[str, FleetError]] = []
    for (name, _), answer in zip(places, answers, strict=True):
        if isinstance(answer, Decision):
            return answer, failures
        if not isinstance(answer, FleetError):
            raise answer
        failures.append((name, answer))
    return None, failures
