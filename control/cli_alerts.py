"""`rhodeck alerts` and `rhodeck webhooks`: what is wrong, who looks after it, who is told.

Prevents: an operator at night who needs a browser to say "I have it".
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import click
import orjson

from control import webhooks as hooks
from control.alert_json import book_json, rule_json
from control.alert_rule_store import RuleView, change_rule, reset_rule, rule_views
from control.alert_silences import SCOPES, add_silence, end_silence
from control.alerts import runbook_of
from control.cli_session import me, transaction
from control.commands_fleet import acknowledge_alert
from control.queries_alerts import AlertEntry, alert_book, webhook_views
from control.settings import load_settings
from fleet.alert_rules import RULES, AlertRule
from fleet.clock import SystemClock
from fleet.errors import InvalidInput

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.group()
def alerts() -> None:
    """See, acknowledge and silence alerts; change their rules."""


@alerts.command("list")
@click.option("--all", "with_resolved", is_flag=True, help="Also those resolved in the last week.")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def list_alerts(with_resolved: bool, as_json: bool) -> None:
    """List unresolved alerts and the silences that hold."""
    now = SystemClock().now()
    with transaction() as session:
        book = alert_book(session, now)
    if as_json:
        click.echo(orjson.dumps(book_json(book, with_resolved=with_resolved), option=orjson.OPT_INDENT_2))
        return
    for alert in book.unresolved:
        click.echo(_line(alert))
    if not book.unresolved:
        click.echo("no alert is open")
    for alert in book.resolved if with_resolved else ():
        click.echo(_line(alert))
    for silence in book.silences:
        click.echo(
            f"silence {silence.id}  {silence.matcher}  until {_stamp(silence.expires_at)}  "
            f"by {silence.created_by}: {silence.reason}"
        )


@alerts.command()
@click.argument("alert_id", type=click.IntRange(1))
@click.option("--note", default="", help="For whoever reads it later.")
def ack(alert_id: int, note: str) -> None:
    """Say that you look after the alert ALERT_ID; nobody is told about it again."""
    with transaction() as session:
        acknowledge_alert(session, me(), alert_id=alert_id, now=SystemClock().now(), note=note)
    click.echo(f"alert {alert_id} is acknowledged")


@alerts.command()
@click.option("--rule", type=click.Choice(list(RULES)), help="Only alerts of this rule.")
@click.option("--scope", type=click.Choice(SCOPES), help="Only alerts about such things.")
@click.option("--subject", help="Only alerts about the node, pool, tenant, ... of this name.")
@click.option("--pool", help="Only alerts about nodes of this pool, and the pool itself.")
@click.option("--for", "length", required=True, help="How long: 90m, 8h, 2d. At most 30 days.")
@click.option("--reason", required=True, help="Why; whoever is on call reads it.")
def silence(
    rule: str | None, scope: str | None, subject: str | None, pool: str | None, length: str, reason: str
) -> None:
    """Tell nobody about matching alerts for a while."""
    now = SystemClock().now()
    with transaction() as session:
        number = add_silence(
            session,
            me(),
            length_s=seconds(length),
            reason=reason,
            now=now,
            rule=rule,
            scope=scope,
            subject=subject,
            pool=pool,
        )
    click.echo(f"silence {number} holds for {length}")


@alerts.command()
@click.argument("silence_id", type=click.IntRange(1))
def unsilence(silence_id: int) -> None:
    """End the silence SILENCE_ID now; what is open is told about."""
    with transaction() as session:
        end_silence(session, me(), silence_id=silence_id, now=SystemClock().now())
    click.echo(f"silence {silence_id} is over")


@alerts.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.pass_context
def rules(ctx: click.Context, as_json: bool) -> None:
    """List the rules in force; change them with set and reset."""
    if ctx.invoked_subcommand is not None:
        return
    with transaction() as session:
        views = rule_views(session)
    if as_json:
        click.echo(orjson.dumps([rule_json(view) for view in views], option=orjson.OPT_INDENT_2))
        return
    for view in views:
        click.echo(_rule_line(view))


@rules.command("set")
@click.argument("name", type=click.Choice(list(RULES)))
@click.argument("values", nargs=-1, required=True)
@click.option("--note", default="", help="Why, for whoever reads it later.")
def set_rule(name: str, values: tuple[str, ...], note: str) -> None:
    """Change fields of the rule NAME, as in `set rho_high open_at=0.9 is_enabled=true`."""
    with transaction() as session:
        made = change_rule(
            session, me(), name=name, values=dict(map(_pair, values)), now=SystemClock().now(), note=note
        )
    click.echo(f"rule {name}: {words_of(made)}")


@rules.command("reset")
@click.argument("name", type=click.Choice(list(RULES)))
def reset(name: str) -> None:
    """Make the rule NAME as it is delivered again."""
    with transaction() as session:
        made = reset_rule(session, me(), name=name, now=SystemClock().now())
    click.echo(f"rule {name}: {words_of(made)}")


@alerts.command("test-webhook")
@click.argument("name")
def test_webhook(name: str) -> None:
    """Put a test notice in line for the webhook NAME; `rhodeck webhooks list` says how it went."""
    with transaction() as session:
        number = hooks.send_test(session, me(), name=name, now=SystemClock().now())
    click.echo(f"notice {number} waits for the controller to deliver it")


@click.group("webhooks")
def webhooks() -> None:
    """Add, list and remove where notices go."""


@webhooks.command()
@click.argument("name")
@click.argument("url")
@click.option(
    "--kind",
    type=click.Choice(hooks.KINDS),
    default="generic",
    show_default=True,
    help="What the receiver speaks.",
)
@click.option("--secret-name", help="File of the secret in RHODECK_WEBHOOK_SECRETS_DIR (default: NAME).")
def add(name: str, url: str, kind: str, secret_name: str | None) -> None:
    """Send notices to URL, signed (generic) or as an Alertmanager takes them (alertmanager).

    A generic webhook's secret is made if its file is not there, and printed once: the receiver needs it.
    """
    settings = load_settings()
    file = secret_name or (name if kind == "generic" else None)
    with transaction() as session:
        hooks.add_webhook(
            session, me(), name=name, url=url, kind=kind, secret_name=file, now=SystemClock().now()
        )
        secret, is_new = (
            (None, False) if file is None else hooks.make_secret(settings.webhook_secrets, file)
        )
    click.echo(f"webhook {name} added", err=True)
    if file is not None:
        click.echo(f"its secret is in {settings.webhook_secrets / file}", err=True)
    if is_new and kind == "generic":
        click.echo(secret)


@webhooks.command("list")
def list_webhooks() -> None:
    """List webhooks with how their last calls went."""
    with transaction() as session:
        views = webhook_views(session)
    for view in views:
        said = f"last taken {_stamp(view.last_ok_at)}" if view.last_ok_at else "nothing taken yet"
        waits = f"{view.pending} wait, {view.dead} given up"
        failed = f"; failed {_stamp(view.last_error_at)}: {view.last_error}" if view.last_error else ""
        click.echo(f"{view.name}  {view.kind}  {view.url}  {said}  {waits}{failed}")
    if not views:
        click.echo("no webhooks; add one with `rhodeck webhooks add NAME URL`")


@webhooks.command()
@click.argument("name")
def remove(name: str) -> None:
    """Send nothing more to the webhook NAME. Its secret's file stays; delete it yourself."""
    with transaction() as session:
        hooks.remove_webhook(session, me(), name=name, now=SystemClock().now())
    click.echo(f"webhook {name} removed")


@webhooks.command()
@click.argument("name")
def retry(name: str) -> None:
    """Try again what was given up for the webhook NAME."""
    with transaction() as session:
        count = hooks.retry_dead(session, me(), name=name, now=SystemClock().now())
    click.echo(f"{count} notices wait again")


def seconds(text: str) -> float:
    """Return a length such as 90m, 8h or 2d in seconds. Raises InvalidInput."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isdecimal() or len(number) > 9:
        raise InvalidInput(f"{text[:40]!r} is not a length", hint="Write 90m, 8h or 2d", field="for")
    return float(int(number) * _UNITS[unit])


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput(f"{text[:40]!r} is not name=value", hint="Write open_at=0.9", field="values")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def words_of(rule: AlertRule) -> str:
    """Return a rule's numbers as one sentence."""
    off = "" if rule.is_enabled else "off; "
    return f"{off}{rule.severity_words}; opens: {rule.opens_words}; resolves: {rule.resolves_words}"


def _rule_line(view: RuleView) -> str:
    by = f"  (changed by {view.updated_by})" if view.changes else ""
    return f"{view.rule.name:<15} {words_of(view.rule)}{by}  {runbook_of(view.rule.name)}"


def _line(alert: AlertEntry) -> str:
    by = f" by {alert.acknowledged_by}" if alert.acknowledged_by else ""
    hidden = f"  silenced until {_stamp(alert.silence.expires_at)}" if alert.silence else ""
    return (
        f"{alert.id}  {alert.state}{by}  {alert.severity}  since {_stamp(alert.opened_at)}  "
        f"{alert.summary}{hidden}  {runbook_of(alert.rule)}"
    )


def _stamp(at: datetime | None) -> str:
    return "never" if at is None else f"{at:%Y-%m-%d %H:%M} UTC"
