"""`rhodeck policy`: show, validate, compare, publish and roll back the policy, and steer its rollout.

Files are JSON; `-` is standard input. Results go to stdout. Prevents: a publish whose difference nobody
looked at, and a script that overwrites a colleague's edit (`--parent` is not optional).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from control import commands_policy, commands_rollout, queries_policy
from control.cli_session import me, transaction
from control.commands_policy import DEFAULT_BAKE_S, OvertakenEdit, Published
from control.finite import FiniteRange
from control.queries_policy import Revision, Rollout
from control.unserved_requests import lose_their_nodes
from fleet.clock import SystemClock
from fleet.errors import InvalidInput, NotFound
from fleet.policy import MAX_DOCUMENT_BYTES, Policy, differences, parse

_SHOWN_CHANGES = 200


@click.group()
def policy() -> None:
    """Show, compare, publish and roll back the policy."""


@policy.command()
@click.option("--revision", "number", type=click.IntRange(1), help="Show this revision, not the newest.")
def show(number: int | None) -> None:
    """Print a revision's document as JSON."""
    with transaction() as session:
        found = queries_policy.head(session) if number is None else queries_policy.revision(session, number)
    click.echo(json.dumps(_existing(found, number).document, indent=2, ensure_ascii=False))


@policy.command()
@click.argument("file", type=click.File("rb"))
def validate(file: Any) -> None:
    """Say whether FILE is a policy every gateway would accept. Needs no database."""
    found = _read(file)
    click.echo(f"valid: {len(found.tenants)} tenants, digest {found.digest()}")


@policy.command()
@click.argument("file", type=click.File("rb"))
@click.option("--revision", "number", type=click.IntRange(1), help="Compare with this revision.")
def diff(file: Any, number: int | None) -> None:
    """Print what publishing FILE would change, one field a line."""
    wanted = _read(file)
    with transaction() as session:
        found = queries_policy.head(session) if number is None else queries_policy.revision(session, number)
        base = _existing(found, number)
        unserved = lose_their_nodes(session, base.document, wanted)
    changes = differences(base.document, wanted.as_document())
    click.echo(f"against revision {base.number}: {len(changes)} fields differ")
    _print_changes(changes)
    _print_unserved(unserved)


@policy.command()
@click.argument("file", type=click.File("rb"))
@click.option("--note", required=True, help="Why, for whoever reads it later.")
@click.option("--parent", required=True, type=click.IntRange(0), help="Revision FILE was edited from.")
@click.option("--all-at-once", is_flag=True, help="Skip the first gateway's bake.")
@click.option(
    "--bake",
    "bake_s",
    type=FiniteRange(0, commands_policy.MAX_BAKE_S),
    default=DEFAULT_BAKE_S,
    show_default=True,
    help="Seconds the first gateway runs it alone.",
)
@click.option("--key", help="Idempotency key: a repeat with the same key publishes once.")
def publish(file: Any, note: str, parent: int, all_at_once: bool, bake_s: float, key: str | None) -> None:
    """Publish FILE as the next revision. Fails if somebody published since --parent."""
    wanted = _read(file)
    try:
        with transaction() as session:
            base = queries_policy.revision(session, parent)
            unserved = lose_their_nodes(session, None if base is None else base.document, wanted)
            published = commands_policy.publish(
                session,
                document=wanted.as_document(),
                parent=parent,
                author=me(),
                note=note,
                now=SystemClock().now(),
                strategy="all_at_once" if all_at_once else "staged",
                bake_s=bake_s,
                idempotency_key=key,
            )
    except OvertakenEdit as exc:
        click.echo(f"changed since revision {parent}:", err=True)
        _print_changes(exc.changes, err=True)
        raise
    _print_published(published)
    _print_unserved(unserved)


@policy.command()
@click.argument("number", type=click.IntRange(1))
@click.option("--note", required=True, help="Why, for whoever reads it later.")
def rollback(number: int, note: str) -> None:
    """Publish the content of revision NUMBER again and send it to every gateway at once."""
    with transaction() as session:
        published = commands_policy.rollback(
            session, to=number, author=me(), note=note, now=SystemClock().now()
        )
    _print_published(published)


@policy.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Revisions.")
@click.option("--before", type=click.IntRange(1), help="Only revisions below this number.")
def history(limit: int, before: int | None) -> None:
    """List revisions, newest first."""
    with transaction() as session:
        rows = queries_policy.history(session, limit=limit, before=before)
    for row in rows:
        restores = f" (content of {row.restores})" if row.restores else ""
        line = f"{row.number:>5}  {row.created_at:%Y-%m-%d %H:%M:%S}  {row.rollout_state or '-':<10}  "
        click.echo(f"{line}{row.author}: {_one_line(row.note)}{restores}")


@policy.group(invoke_without_command=True)
@click.pass_context
def rollout(context: click.Context) -> None:
    """Say how far the newest revision has come, or steer it."""
    if context.invoked_subcommand is None:
        context.invoke(status)


@rollout.command()
def status() -> None:
    """Say how far the newest revision has come, gateway by gateway."""
    with transaction() as session:
        found = queries_policy.current_rollout(session)
        states = queries_policy.gateway_states(session, SystemClock().now())
    if found is None:
        raise NotFound("there is no rollout", hint="Publish a revision first")
    click.echo(_rollout_line(found))
    for state in states:
        age = "never" if state.age_s is None else f"{state.age_s:.0f} s ago"
        click.echo(
            f"  {state.name}: {state.condition}, revision {state.revision_observed or '-'} of "
            f"{state.revision_desired or '-'}, heard {age}{': ' if state.message else ''}{state.message}"
        )
        if state.unsupported:
            click.echo(f"    does not enforce {', '.join(state.unsupported)}")


def _steer(name: str, act: Callable[..., Rollout], summary: str) -> None:
    @rollout.command(name, help=summary)
    @click.option("--note", required=True, help="Why, for whoever reads it later.")
    def step(note: str) -> None:
        with transaction() as session:
            found = act(session, actor=me(), note=note, now=SystemClock().now())
        click.echo(_rollout_line(found))

    policy.add_command(step, name)  # `policy abort` is as good as `policy rollout abort`


_steer("abort", commands_rollout.abort, "Stop the rollout and take the revision back.")
_steer("pause", commands_rollout.pause, "Keep the revision at its first gateway.")
_steer("resume", commands_rollout.resume, "Bake again from the start.")
_steer("promote", commands_rollout.promote, "Send the revision to every gateway now.")


def _read(file: Any) -> Policy:
    raw: bytes = file.read(MAX_DOCUMENT_BYTES + 1)
    try:
        return parse(raw.decode("utf-8"))
    except UnicodeDecodeError as exc:
        raise InvalidInput(
            f"{file.name} is not UTF-8 text", hint="Save it as UTF-8 JSON", field="FILE"
        ) from exc


def _existing(found: Revision | None, number: int | None) -> Revision:
    if found is None:
        raise NotFound(
            "there is no revision yet" if number is None else f"there is no revision {number}",
            hint="See `rhodeck policy history`",
        )
    return found


def _print_changes(changes: Sequence[tuple[str, Any, Any]], *, err: bool = False) -> None:
    for pointer, old, new in changes[:_SHOWN_CHANGES]:
        click.echo(f"  {pointer}: {_value(old)} -> {_value(new)}", err=err)
    if len(changes) > _SHOWN_CHANGES:
        click.echo(f"  and {len(changes) - _SHOWN_CHANGES} more", err=err)


def _print_unserved(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(f"warning: {line}", err=True)


def _print_published(published: Published) -> None:
    click.echo(f"revision {published.number} published, digest {published.digest}")
    click.echo("follow it with `rhodeck policy rollout`")


def _value(value: Any) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def _rollout_line(found: Rollout) -> str:
    reason = f": {_one_line(found.reason)}" if found.reason else ""
    return f"revision {found.revision} is {found.state} ({found.strategy.replace('_', ' ')}){reason}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
