"""What `--help` says: whole sentences in lists of commands, a word for every option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from control.cli import rhodeck


def commands(
    command: click.Command, path: str = "rhodeck", parent: click.Context | None = None
) -> Iterator[tuple[str, click.Command, click.Context]]:
    ctx = click.Context(command, info_name=path.rsplit(" ", 1)[-1], parent=parent)
    yield path, command, ctx
    for name in command.list_commands(ctx) if isinstance(command, click.Group) else ():
        inner: Any = command.get_command(ctx, name) if isinstance(command, click.Group) else None
        yield from commands(inner, f"{path} {name}", ctx)


def test_lists_of_commands_are_not_cut():
    groups = {
        path: command.get_help(ctx)
        for path, command, ctx in commands(rhodeck)
        if isinstance(command, click.Group)
    }
    assert "rhodeck estimate traces" in groups
    lines = [
        (path, line)
        for path, text in groups.items()
        for line in text.split("\nCommands:\n")[1].splitlines()
    ]
    assert [(path, line) for path, line in lines if line.rstrip().endswith("...")] == []


def test_every_command_and_option_says_what_it_is():
    for path, command, _ in commands(rhodeck):
        assert command.help, path
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.help, f"{path} {option.opts}"
