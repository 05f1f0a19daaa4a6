"""`rhodeck budgets`: who will run over its budget, when, and what happens then.

Prevents: a tenant that learns of its budget from a 429.
"""

from __future__ import annotations

import json
from zoneinfo import ZoneInfo

import click

from control.budgets import BudgetReport, TenantBudget, as_json, budget_report
from control.cli_session import transaction
from control.settings import load_settings
from fleet.budgets import Crossing
from fleet.clock import SystemClock
from fleet.percentages import percent
from fleet.spend_forecast import COVERAGE


@click.command()
@click.option("--json", "as_text", is_flag=True, help="Print JSON.")
def budgets(as_text: bool) -> None:
    """Show tenants' budgets of this month, worst first: spent, forecast, and what gateways do."""
    now, zone = SystemClock().now(), ZoneInfo(load_settings().finance_timezone)
    with transaction() as session:
        report = budget_report(session, zone=zone, now=now)
    if as_text:
        click.echo(json.dumps(as_json(report), indent=2))
        return
    _show(report)


def _show(report: BudgetReport) -> None:
    upto = (
        "nothing is counted" if report.counted_to is None else f"{report.counted_to:%Y-%m-%d %H:%M:%S} UTC"
    )
    click.echo(f"{report.month.name} ({report.month.zone}), node time counted to {upto}")
    for budget in report.budgets:
        _one(budget, is_counted=report.counted_to is not None)
    if not report.budgets:
        click.echo("no tenant has a budget; set monthly_budget_usd in the policy")
    for tenant, usd in report.unbudgeted:
        click.echo(f"{tenant}: {usd:,.2f} USD, no budget")


def _one(budget: TenantBudget, *, is_counted: bool) -> None:
    state, ahead = budget.state, budget.state.forecast
    part = "-" if state.ratio is None or not is_counted else f"{100 * state.ratio:.1f} %"
    spent = f"{state.spent_usd:,.2f}" if is_counted else "not recorded"
    click.echo(f"{state.tenant}: {spent} of {state.limit_usd:,.2f} USD ({part}), {state.standing}")
    if ahead is None:
        click.echo(f"  {state.why_unknown}")
    else:
        end = ahead.end
        click.echo(
            f"  month's end {end.usd:,.2f} USD, "
            f"{end.low:,.2f} to {end.high:,.2f} in {percent(COVERAGE)} of cases"
        )
    if (words := reached_words(state.crossing)) is not None:
        click.echo(f"  budget spent {words}; then: {budget.action}")
    for each in budget.gateways:
        click.echo(f"  {each.gateway}: {each.doing}, {each.words}")


def reached_words(crossing: Crossing) -> str | None:
    """Return when the budget is spent, in words; None if not this month."""
    if crossing.earliest is None:
        return None
    if crossing.earliest == crossing.latest:
        return f"on {crossing.earliest}"
    likely = "" if crossing.day is None else f", likely {crossing.day}"
    latest = "or not this month" if crossing.latest is None else f"at the latest {crossing.latest}"
    return f"{crossing.earliest} at the earliest{likely}, {latest}"
