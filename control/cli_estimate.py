"""`rhodeck estimate`: what a fleet costs by the closed form, and what the closed form hides.

Money is US dollars, rates are requests/s. Every default is printed with its source and date. Prevents: a
saving quoted without the requests it refuses, and a price without a date.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from decimal import Decimal, InvalidOperation
from typing import Any

import click

from control.cli_estimate_compare import compare
from control.cli_estimate_confirm import confirm
from control.cli_estimate_disciplines import disciplines
from control.cli_estimate_goodput import goodput
from control.cli_estimate_replay import replay_command
from control.cli_estimate_run import run
from control.cli_estimate_runs import COMMANDS as BACKGROUND
from control.cli_estimate_upload import read_traffic
from fleet.cost import (
    CalendarRow,
    ClosedForm,
    ClosedFormInputs,
    Option,
    PeakShape,
    SpotRow,
    closed_form,
    sources_in_use,
)

DEFAULTS = ClosedFormInputs()


class Money(click.ParamType[Decimal]):
    """A decimal amount as typed: no binary rounding."""

    name = "usd"

    def __init__(self, name: str = "usd") -> None:
        self.name = name  # the unit, as the help shows it

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        if isinstance(value, Decimal):
            return value
        try:
            amount = Decimal(str(value))
        except InvalidOperation:
            self.fail(f"{value!r} is not an amount like 28 or 6.50", param, ctx)
        if not amount.is_finite():
            self.fail(f"{value!r} is not a finite amount", param, ctx)
        return amount


@click.group()
def estimate() -> None:
    """Estimate what autoscaling and admission cost."""


estimate.add_command(run)
estimate.add_command(confirm)
estimate.add_command(disciplines)
estimate.add_command(goodput)
estimate.add_command(replay_command)
estimate.add_command(compare)
estimate.add_command(read_traffic)
for _command in BACKGROUND:
    estimate.add_command(_command)


def _option(flag: str, attribute: str, kind: Any, about: str) -> Any:
    return click.option(
        flag, attribute, type=kind, default=getattr(DEFAULTS, attribute), show_default=True, help=about
    )


@estimate.command("closed-form")
@_option("--peak-rps", "peak_rps", float, "Requests/s at the peak.")
@_option("--mean-rps", "mean_rps", float, "Requests/s on average.")
@_option("--tokens-in", "tokens_in", float, "Prompt tokens a request.")
@_option("--tokens-out", "tokens_out", float, "Output tokens a request.")
@_option("--tokens-per-s", "tokens_per_s", float, "Prompt + output tokens/s a node serves.")
@_option("--price", "price", Money(), "USD per node-hour on demand.")
@_option("--hours", "hours", Money("hours"), "Hours a month.")
@_option("--nodes", "admission_nodes", int, "Nodes kept with admission.")
@_option("--burst-nodes", "burst_nodes", int, "Spot nodes of the burst pool.")
@_option("--spot-price", "spot_price", Money(), "USD per spot node-hour.")
@_option("--burst-usd", "burst_realistic_usd", Money(), "What the burst pool really costs a month.")
@click.option("--no-refusals", is_flag=True, help="Refusing a request is not acceptable.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; money as strings.")
def closed(as_json: bool, no_refusals: bool, **values: Any) -> None:
    """Compare static peak with admission and a burst pool, to the dollar.

    Also: rho at peak, what is refused there, calendar months, spot prices, and when admission is wrong.
    """
    result = closed_form(replace(DEFAULTS, **values, refusal_acceptable=not no_refusals))
    click.echo(json.dumps(as_json_form(result), indent=1, allow_nan=False) if as_json else as_text(result))


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def as_json_form(result: ClosedForm) -> dict[str, Any]:
    """Return the estimate as JSON-ready values, with the source of each default still in use."""
    sources = {key: asdict(source) for key, source in sources_in_use(result.inputs).items()}
    return {**_plain(asdict(result)), "sources": sources}


def _money(amount: Decimal) -> str:
    return f"{amount:,.0f}" if amount == amount.to_integral_value() else f"{amount:,.2f}"


def as_text(result: ClosedForm) -> str:
    """Return the estimate as lines for people."""
    i = result.inputs
    lines = [
        f"A node serves {i.tokens_per_s:g} / ({i.tokens_in:g} + {i.tokens_out:g}) = {result.node_rps:.3g} "
        f"requests/s; peak {i.peak_rps:g}, mean {i.mean_rps:g}, peak / mean {result.peak_to_mean:.2f}",
        "",
        "                            nodes  USD/month   rho at peak  at mean  refused while at peak",
        _option_line(result.static_peak),
        _option_line(result.headroom),
        _option_line(result.admission),
        _option_line(result.with_burst),
        "",
        f"Burst pool            always on {_money(result.burst_always_on)}, "
        f"realistic {_money(result.burst_realistic)} USD/month",
        f"Admission + burst     {_money(result.total)} USD/month (burst pool at its realistic cost)",
        f"Less than static peak {_money(result.saving_month)} USD/month, "
        f"{_money(result.saving_year)} USD/year",
        "",
        *_hidden_lines(result),
        "",
        *(f"! {warning}" for warning in result.warnings),
        "",
        *_default_lines(result),
    ]
    return "\n".join(lines)


def _default_lines(result: ClosedForm) -> list[str]:
    kept = sources_in_use(result.inputs)
    lines = [f"  {key}: {source.what} ({source.date})" for key, source in kept.items()]
    return ["Defaults:", *lines] if lines else []


def _option_line(option: Option) -> str:
    nodes = f"{option.nodes}+{option.spot_nodes}" if option.spot_nodes else str(option.nodes)
    return (
        f"{option.name:27} {nodes:>5} {_money(option.usd_month):>10} {option.rho_at_peak:>12.2f} "
        f"{option.rho_at_mean:>8.2f} {option.shed_at_peak:>21.1%}"
    )


def _hidden_lines(result: ClosedForm) -> list[str]:
    return [
        "Time at peak   requests refused   static peak pays when a refusal costs over (no burst pool)",
        *(_shape_line(shape) for shape in result.peak_shapes),
        "Spot price   burst always on   total   less than static peak",
        *(_spot_line(row) for row in result.spot),
        "Calendar month   static peak   admission   burst always on",
        *(_calendar_line(row) for row in result.calendar),
    ]


def _shape_line(shape: PeakShape) -> str:
    cost = "nothing is refused" if shape.break_even_usd is None else f"{shape.break_even_usd} USD"
    return f"{shape.time_above:>12.0%} {shape.refused:>18.2%}   {cost}"


def _spot_line(row: SpotRow) -> str:
    return (
        f"{_money(row.spot_price):>10} {_money(row.burst_always_on):>17} "
        f"{_money(row.total_always_on):>7} {_money(row.saving_month):>23}"
    )


def _calendar_line(row: CalendarRow) -> str:
    month = f"{row.days} days, {row.hours} h"
    return (
        f"{month:14} {_money(row.static_peak):>13} {_money(row.admission):>11} "
        f"{_money(row.burst_always_on):>17}"
    )
