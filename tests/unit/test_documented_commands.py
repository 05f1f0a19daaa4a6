"""Every command line in README.md, docs/ and our own messages exists, with the options it is shown with.

Words in capitals, quotes and angle brackets are values; `[...]` may be left out; `A|B` are alternatives.
Prevents: a page that tells people to type what the program does not know.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from admission.__main__ import main as gateway
from control.cli import PROCESSES, WORDS, rhodeck
from control.cli_explain import explain
from simfleet.__main__ import main as simfleet

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```[a-z]*\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
#: The name a line starts our program by, and the words it stands for.
NAMES = {
    ".venv/bin/rhodeck": [],
    "rhodeck": [],
    "admission": ["gateway"],
    "simfleet": ["simfleet"],
    "dashboard": ["dashboard"],
}


def typed_lines(text: str) -> Iterator[str]:
    """Return what a text tells people to type: fenced and indented lines whole, and spans in backticks."""
    for block in FENCED.findall(text):
        yield from re.sub(r"\\\n\s*", " ", block).splitlines()
    yield from re.findall(r"^ {4}(rhodeck .*)", text, flags=re.MULTILINE)
    yield from SPAN.findall(FENCED.sub("", text))


def words_of(line: str) -> list[str] | None:
    """Return the words after our program's name, or None if the line does not run it."""
    found = re.search(
        r"(?:^|[;|] *|-- |do )\s*(?:python -m (?=admission|simfleet|dashboard))?"
        r"(\.venv/bin/rhodeck|rhodeck|(?<=-m )(?:admission|simfleet|dashboard))(?= |$)(.*)",
        line,
    )
    if found is None:
        return None
    rest = re.split(r"\s#|; done| > ", re.sub(r"(?<=\s)\[|\](?=\s|$)|…|\|(?=--)| \| ", " ", found[2]))[0]
    return [*NAMES[found[1]], *shlex.split(rest)]


def complaint(words: list[str]) -> str | None:
    """Return what the program would not know of these words, or None."""
    command: click.Command = rhodeck
    others = {"gateway": gateway, "simfleet": simfleet}
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        word, *words = (words[0].split("|")[0], *words[1:])
        name = "nodes" if command is simfleet and word not in simfleet.commands else word
        if command is rhodeck and word in others:
            known: click.Command | None = others[word]
            if (word, *words[:1]) in WORDS:
                known, words = explain, words[1:]
        else:
            known = command.get_command(click.Context(command), name)
        if known is None:
            return None if not word.islower() else f"no command {word!r}"
        command = known
    if command is simfleet:
        command = simfleet.commands["nodes"]
    if command.name in PROCESSES and command not in others.values():
        return None
    options = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
    options |= set(command.get_help_option_names(click.Context(command))) | {"--help"}
    unknown = [word for word in words if re.match(r"--[a-z]", word) and word.split("=")[0] not in options]
    return f"{command.name} has no {', '.join(unknown)}" if unknown else None


def complaints(text: str) -> list[str]:
    found = ((line, words_of(line)) for line in typed_lines(text))
    judged = ((line, complaint(words)) for line, words in found if words is not None)
    return [f"{line}: {said}" for line, said in judged if said is not None]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_tells_people_to_type_exists(page: Path) -> None:
    assert complaints(page.read_text()) == []


@pytest.mark.parametrize("package", ["admission", "control", "dashboard", "fleet", "simfleet"])
def test_what_a_message_tells_people_to_type_exists(package: str) -> None:
    texts = [
        node.value
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "rhodeck " in node.value
    ]
    assert [said for text in texts for said in complaints(text)] == []


def test_what_the_program_does_not_know_is_named() -> None:
    text = """Use `rhodeck polices show`, `rhodeck policy publish FILE --parents 7`, `rhodeck policy show`.

```
rhodeck gateway explain ID --gate gw-1
kubectl exec -it pod -- rhodeck users append admin   # makes one
rhodeck gateway --name gw-1 --process 3
rhodeck estimate run FILE.json [--json] [--day 2]
```
"""
    assert [said.rsplit(": ", 1)[1] for said in complaints(text)] == [
        "explain has no --gate",
        "no command 'append'",
        "admission has no --process",
        "run has no --day",
        "no command 'polices'",
        "publish has no --parents",
    ]
