"""`rhodeck calc`: one value of one queueing model, so that a person can check a number by hand.

Rates are per second, times are seconds. Prevents: a misspelt parameter or a NaN turning into an answer.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, cast

import click

from fleet.errors import InvalidInput
from fleet.model_cards import model_card, model_cards
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


def _evaluate(model: str, params: dict[str, Any], quantity: str) -> float:
    """Return the value. Raises InvalidInput that also says what the model takes."""
    card = model_card(model)
    try:
        return calculate(model, params, quantity).value
    except InvalidInput as exc:
        names = {p.name for p in card.parameters}
        if exc.field is not None and (exc.field in names or exc.field in params):
            hint = f"{model} takes {card.takes}"
            raise InvalidInput(exc.message, hint=hint, field=exc.field) from exc
        raise


def _listed(as_json: bool) -> str:
    cards = model_cards()
    if as_json:
        return json.dumps(
            [
                {
                    "model": card.name,
                    "parameters": [
                        {"name": p.name, "kind": p.kind, "optional": p.is_optional} for p in card.parameters
                    ],
                    "quantities": card.quantities,
                }
                for card in cards
            ],
            indent=1,
        )
    lines = [f"{card.name}\n  takes {card.takes}\n  gives {', '.join(card.quantities)}" for card in cards]
    return "\n".join([*lines, "* stands for a number: Wq_p99, P_Wq_gt_0.5"])


@click.command()
@click.argument("model", required=False)
@click.option("--list", "as_list", is_flag=True, help="List the models, what they take and what they give.")
@click.option("--params", "params_text", metavar="JSON", help="Parameters as a JSON object.")
@click.option("--quantity", help="What to print, for example Wq or Wq_p99.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print model, parameters, quantity and value as JSON."
)
def calc(
    model: str | None, as_list: bool, params_text: str | None, quantity: str | None, as_json: bool
) -> None:
    """Print QUANTITY of MODEL at the given parameters.

    An unknown name is refused with the list of those there are.
    """
    if as_list:
        click.echo(_listed(as_json))
        return
    if model is None or params_text is None or quantity is None:
        raise click.UsageError("give MODEL, --params and --quantity, or --list")
    params = read_params(params_text)
    value = _evaluate(model, params, quantity)
    if as_json:
        shown = {"model": model, "params": params, "quantity": quantity, "value": value}
        click.echo(json.dumps(shown, allow_nan=False))
    else:
        click.echo(f"{value:.12g}")


calc.epilog = f"Models: {', '.join(MODELS)}."
