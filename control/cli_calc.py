"""`rhodeck calc`: one value of one queueing model, so that a person can check a number by hand.

Rates are per second, times are seconds. Prevents: a misspelt parameter or a NaN turning into an answer.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, cast

import click

from fleet.errors import InvalidInput
from fleet.queueing import MODELS, calculate

MAX_PARAMS_CHARS = 10_000


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidInput(f"{name} is not a number a model can take", field="--params")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidInput("a parameter is given twice", field="--params", hint="Give each name once")
    return found


def read_params(text: str) -> dict[str, Any]:
    """Return the parameters of a JSON object. Raises InvalidInput for anything else."""
    example = 'Give a JSON object like \'{"lam": 12, "mu": 3, "c": 5}\''
    if len(text) > MAX_PARAMS_CHARS:
        raise InvalidInput(f"--params is {len(text)} characters long", field="--params", hint=example)
    try:
        found = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_no_key_twice)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput(f"--params is not JSON: {exc}", field="--params", hint=example) from exc
    if not isinstance(found, dict):
        raise InvalidInput("--params is not a JSON object", field="--params", hint=example)
    return cast("dict[str, Any]", found)


@click.command()
@click.argument("model")
@click.option("--params", "params_text", required=True, metavar="JSON", help="Parameters as a JSON object.")
@click.option("--quantity", required=True, help="What to print, for example Wq or Wq_p99.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print model, parameters, quantity and value as JSON."
)
def calc(model: str, params_text: str, quantity: str, as_json: bool) -> None:
    """Print QUANTITY of MODEL at the given parameters.

    An unknown name is refused with the list of those there are.
    """
    params = read_params(params_text)
    value = calculate(model, params, quantity).value
    if as_json:
        shown = {"model": model, "params": params, "quantity": quantity, "value": value}
        click.echo(json.dumps(shown, allow_nan=False))
    else:
        click.echo(f"{value:.12g}")


calc.epilog = f"Models: {', '.join(MODELS)}."
