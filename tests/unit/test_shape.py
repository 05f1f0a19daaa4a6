"""The shape of the house: caps, docstrings, names, the lock file, and documents that keep up with code."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("compiled", "fleet", "control", "admission", "simfleet", "dashboard")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
PAGES = sorted((ROOT / "dashboard" / "app_pages").glob("[!_]*.py"))
FORBIDDEN_NAMES = {
    "utils",
    "util",
    "common",
    "helpers",
    "helper",
    "core",
    "managers",
    "manager",
    "services",
    "misc",
}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_file_has_at_most_400_lines_and_says_what_it_owns(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring is not None, "no module docstring"
    is_entry = path.name == "__main__.py"
    assert is_entry or len(docstring) >= 40, "the docstring does not say what the module owns"


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_a_page_has_at_most_80_lines_and_asks_a_question(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 80
    docstring = ast.get_docstring(ast.parse(text)) or ""
    assert "?" in docstring.split("\n\n")[0], "a page's docstring is the question it answers"


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_a_page_holds_no_sql_and_no_arithmetic(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not {name for name in imported if name.split(".")[0] in {"sqlalchemy", "psycopg", "control"}}
    arithmetic = (ast.Mult, ast.Div, ast.Sub, ast.Pow, ast.FloorDiv, ast.Mod)
    found = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.BinOp) and isinstance(n.op, arithmetic)]
    assert found == [], f"arithmetic on lines {found}"


def test_nobody_hides_behind_a_name_that_says_nothing() -> None:
    assert [relative(p) for p in SOURCES if p.stem in FORBIDDEN_NAMES] == []


def test_packages_are_flat() -> None:
    deep = [relative(p) for p in SOURCES if len(p.relative_to(ROOT).parts) > 2]
    assert [p for p in deep if not p.startswith("dashboard/app_pages/")] == []


def test_no_two_test_files_share_a_name() -> None:
    """Without packages, the runner imports test files by name: a second of one name stops them all."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_every_requirement_is_hashed_and_no_address_is_locked() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"https?://|file:|--index-url|--extra-index-url|--find-links|@ ", lock)
    entries = re.findall(r"^(?![ #]).+?(?=^(?![ #])|\Z)", lock, flags=re.MULTILINE | re.DOTALL)
    assert len(entries) > 50
    assert [e.splitlines()[0] for e in entries if "--hash=sha256:" not in e] == []


def test_no_file_names_this_machine_or_a_registry() -> None:
    spoken = re.compile(
        r"/work/|/root/|\.\./shared|pypi\.org|pythonhosted|registry\.npmjs|deb\.debian\.org|/tmp/bash_jobs"
    )
    guilty = [
        relative(path)
        for path in tracked_files()
        if path.suffix not in {".gz", ".xz", ".png"}
        and path != Path(__file__).resolve()
        and spoken.search(path.read_text(errors="replace"))
    ]
    assert guilty == []


def test_every_command_of_the_command_line_loads() -> None:
    cli = importlib.import_module("control.cli")
    for target, _ in cli.COMMANDS.values():
        module, attribute = target.split(":")
        assert callable(getattr(importlib.import_module(module), attribute)), target


def documents() -> str:
    return "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))


def test_every_setting_of_the_control_plane_is_documented() -> None:
    described = importlib.import_module("control.settings").described_settings()
    assert len(described) > 10
    text = documents()
    for setting in described:
        assert setting.description, f"{setting.variable} has no description"
        assert f"`{setting.variable}`" in text, f"{setting.variable} is in no page of docs/"


def test_every_setting_of_the_gateway_is_documented() -> None:
    settings = importlib.import_module("admission.settings")
    text = documents()
    assert len(settings.Settings.model_fields) > 10
    for name, field in settings.Settings.model_fields.items():
        assert field.description, f"{name} has no description"
        assert f"`{settings.ENV_PREFIX}{name.upper()}`" in text, f"{name} is in no page of docs/"


def test_every_metric_of_ours_is_documented() -> None:
    control = importlib.import_module("control.own_metrics").ControlMetrics().page().decode()
    gateway = importlib.import_module("admission.metrics").GatewayMetrics(0.0).page([]).decode()
    ours = set(re.findall(r"^# TYPE (rhodeck_\w+)", control + gateway, flags=re.MULTILINE))
    assert len(ours) > 10
    text = documents()
    # prometheus_client adds a *_created family to each counter and histogram.
    unknown = {n for n in ours if not n.endswith("_created") and n.removesuffix("_total") not in text}
    assert unknown == set()


def policy_fields(part: type[BaseModel], at: str = "") -> dict[str, str]:
    """Return the leaf fields of a part of the policy: name by pointer."""
    found: dict[str, str] = {}
    for name, field in part.model_fields.items():
        pointer = f"{at}/{field.alias or name}"
        inner = [one for one in _types_in(field.annotation) if issubclass(one, BaseModel)]
        for one in inner:
            found |= policy_fields(one, pointer)
        if not inner:
            found[pointer] = field.alias or name
    return found


def _types_in(annotation: Any) -> list[type]:
    arguments: tuple[Any, ...] = getattr(annotation, "__args__", ())
    if isinstance(annotation, type) and not arguments:
        return [annotation]
    return [one for argument in arguments for one in _types_in(argument)]


def test_every_knob_of_the_policy_is_described_by_what_an_operator_will_see() -> None:
    fields = policy_fields(importlib.import_module("fleet.policy").Policy)
    assert {"/tiers/interactive/weight", "/admission/size_classes/max_tokens"} <= set(fields)
    text = (ROOT / "docs" / "policy.md").read_text().split("## What each knob does")[1]
    named = set(re.findall(r"[`/]([a-z_]+)`", text.split("## From document to gateways")[0]))
    assert {pointer for pointer, name in fields.items() if name not in named} == set()
