"""A build is used only whole, and only while exactly its sources lie there: else it is plain Python.

A project of two tiny packages stands for ours, with the same `compiled` package over a list of its own.
"""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compiled import build, compiler, load, sources
from compiled.compiler import CannotBuild
from compiled.modules import ACYCLIC, MODULES, REUSED
from tests.compiled.conftest import ROOT, environment

pytestmark = pytest.mark.timeout(900)

LISTS = """MODULES: tuple[str, ...] = ("first.sums", "second.pairs")
REUSED: dict[str, tuple[str, ...]] = {}
ACYCLIC: tuple[str, ...] = ()
"""
PACKAGE = "from compiled.load import prefer\n\nprefer(__name__, __path__)\n"
TINY = {
    "first/__init__.py": PACKAGE,
    "second/__init__.py": PACKAGE,
    "first/sums.py": "from first.limits import MOST\n\ndef add(one: int, other: int) -> int:\n"
    "    return min(one + other, MOST)\n",
    "first/limits.py": "from typing import Final\n\nMOST: Final = 10\n",  # read, not compiled
    "first/apart.py": "ONE = 1\n",  # nobody's concern
    "second/pairs.py": "from dataclasses import dataclass\n\nfrom first.sums import add\n\n\n"
    "@dataclass(frozen=True, slots=True)\nclass Pair:\n    one: int\n    other: int\n\n"
    "    def total(self) -> int:\n        return add(self.one, self.other)\n",
}
ASK = (
    "from compiled import load; from second.pairs import Pair; import second.pairs, first.sums;"
    "print(load.state(), Pair(4, 5).total(), Pair(40, 5).total(),"
    " {m.__file__.rpartition('.')[2] for m in (second.pairs, first.sums)})"
)
BY_MACHINE_CODE = "compiled 9 10 {'so'}"


class Project:
    """A copy of the two packages and of `compiled`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(ROOT / "compiled", root / "compiled", ignore=shutil.ignore_patterns("__pycache__"))
        self.write("compiled/modules.py", LISTS)
        for path, text in TINY.items():
            self.write(path, text)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def start_build(self, *options: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "compiled.build", *options],
            cwd=self.root,
            env=environment("1") | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def build(self, *options: str, **variables: str) -> tuple[int, str]:
        """Build to the end. Returns the exit code and all that was said."""
        running = self.start_build(*options, **variables)
        said = "".join(running.communicate(timeout=600))
        return running.returncode, said

    def says(self, switch: str = "1") -> str:
        """Return how a new process runs the two modules, and what they say."""
        command = [sys.executable, "-B", "-c", ASK]
        done = subprocess.run(
            command, cwd=self.root, env=environment(switch), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def builds(self) -> list[str]:
        """Return what lies in the folder of builds but for its lock."""
        return sorted(path.name for path in (self.root / load.BUILDS).iterdir() if path.name != ".lock")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project that two builders were started on at once."""
    try:
        compiler.command()
        compiler.require_headers()
    except CannotBuild as exc:
        pytest.skip(f"everything runs in plain Python here: {exc}")
    project = Project(tmp_path_factory.mktemp("built"))
    both = [project.start_build(), project.start_build()]
    said = sorted("".join(one.communicate(timeout=600)) for one in both)
    assert [one.returncode for one in both] == [0, 0], said
    assert ["compiled already" in line for line in said] == [True, False] or [
        "compiled already" in line for line in said
    ] == [False, True], said
    return project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    """Return a project of this test's own, with a finished build."""
    shutil.copytree(built.root, tmp_path / "copy")
    project = object.__new__(Project)
    project.root = tmp_path / "copy"
    return project


def test_a_finished_build_of_the_present_sources_runs_and_says_so(project: Project) -> None:
    assert project.says() == BY_MACHINE_CODE
    assert len(project.builds()) == 1


def test_it_can_be_switched_off(project: Project) -> None:
    assert project.says("0") == "plain: switched off 9 10 {'py'}"
    assert project.says("maybe") == "plain: RHODECK_COMPILED is 'maybe', neither 0 nor 1 9 10 {'py'}"
    assert project.says("") == BY_MACHINE_CODE


@pytest.mark.parametrize(
    ("path", "old", "new", "total"),
    [
        ("first/sums.py", "one + other", "one + other + 1", 10),  # compiled
        ("first/limits.py", "10", "7", 7),  # its constant is in the machine code
        ("compiled/modules.py", '"first.sums", ', "", 9),  # the list itself
        ("first/__init__.py", "\n\n", "\n\n\n", 9),
    ],
)
def test_an_edit_is_seen_at_once_and_undoing_it_too(
    project: Project, path: str, old: str, new: str, total: int
) -> None:
    before = (project.root / path).read_text()
    project.write(path, before.replace(old, new, 1))
    assert project.says().startswith(f"plain: sources changed since the build {total} ")
    project.write(path, before)
    assert project.says() == BY_MACHINE_CODE


def test_an_edit_of_what_no_compiled_module_imports_leaves_the_build_in_use(project: Project) -> None:
    project.write("first/apart.py", "ONE = 2\n")
    assert project.says() == BY_MACHINE_CODE


@pytest.mark.parametrize("lost", ["rhodeck__mypyc", "second.pairs"])
def test_a_build_that_lost_a_file_is_not_used(project: Project, lost: str) -> None:
    [name] = project.builds()
    load.library(project.root / load.BUILDS / name, lost).unlink()
    assert project.says().startswith("plain: sources changed since the build 9 10")
    assert project.build(CC="false")[0] == 1  # it is taken for none: a builder sets to work


def test_a_build_cut_short_is_not_used(project: Project) -> None:
    [name] = project.builds()
    library = load.library(project.root / load.BUILDS / name, "second.pairs")
    os.truncate(library, library.stat().st_size - 1)  # as by a copy that broke off
    assert project.says() == "plain: sources changed since the build 9 10 {'py'}"


@pytest.mark.parametrize("edited", ["first", "second"])
def test_sources_of_another_folder_are_not_run_by_the_machine_code_beside_ours(
    project: Project, tmp_path: Path, edited: str
) -> None:
    """A path before ours holds a package of its own: nothing of the build may stand for it."""
    shutil.copytree(project.root / edited, tmp_path / "other" / edited)
    for source in (tmp_path / "other").rglob("*.py"):
        source.write_text(
            source.read_text().replace("one + other", "one - other").replace("self.one,", "1,")
        )
    # from the folder "other" first, then from the project's own
    command = f"import sys; sys.path[0:0] = [{str(tmp_path / 'other')!r}, {str(project.root)!r}]; {ASK}"
    done = subprocess.run(
        [sys.executable, "-B", "-c", command],
        cwd=tmp_path,
        env=environment("1"),
        capture_output=True,
        text=True,
        check=False,
    )
    totals = {"first": "-1 10", "second": "6 6"}[edited]  # 4 - 5, min(40 - 5, 10); 1 + 5
    assert done.stdout.strip() == (
        f"plain: {edited} comes from another folder than {project.root} {totals} {{'py'}}"
    ), done.stderr


def test_a_build_this_system_cannot_load_is_not_used(project: Project) -> None:
    [name] = project.builds()
    group = load.library(project.root / load.BUILDS / name, load.GROUP)
    group.write_bytes(b"of another system".ljust(group.stat().st_size))
    assert project.says().startswith("plain: the build does not load here (")


def test_a_build_killed_half_way_is_not_used_and_its_rests_go(project: Project, tmp_path: Path) -> None:
    shutil.rmtree(project.root / load.BUILDS)
    reached, hanging = tmp_path / "reached", tmp_path / "hanging-cc"
    hanging.write_text(f"#!/bin/sh\n: > {reached}\nexec sleep 1000\n")
    hanging.chmod(0o755)
    running = project.start_build(CC=str(hanging))
    deadline_s = time.monotonic() + 300
    while not reached.exists():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate(timeout=60)
    [rest] = project.builds()
    assert rest.startswith(".building-")
    assert project.says() == "plain: not built 9 10 {'py'}"
    # The next one clears up, though it comes to nothing itself.
    code, said = project.build(CC="false")
    assert code == 1
    assert "false " in said
    assert project.builds() == []


def test_a_build_that_fails_says_why_and_leaves_the_last_one(project: Project) -> None:
    [before] = project.builds()
    assert project.build(CC="false")[0] == 0  # there is nothing to do
    good = (project.root / "first/sums.py").read_text()
    project.write("first/sums.py", good.replace("return min", "return 'ten' if one else min"))
    code, said = project.build()
    assert code == 1
    assert "first/sums.py:4: error: Incompatible return value type" in said
    code, again = project.build("--if-possible")
    assert code == 0
    assert "plain Python" in again
    project.write("first/sums.py", "def add(:\n")
    assert project.build()[0] == 1
    project.write("first/sums.py", good)
    assert project.builds() == [before]
    assert project.says() == BY_MACHINE_CODE


def test_a_build_on_a_full_disk_or_by_no_program_says_so(project: Project, tmp_path: Path) -> None:
    shutil.rmtree(project.root / load.BUILDS)
    code, said = project.build("--if-possible", CC=str(tmp_path / "nowhere"))
    assert code == 0, said
    assert f"{tmp_path / 'nowhere'} cannot be run (No such file or directory)" in said
    full = "import resource, runpy, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    full += "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); sys.argv[1:] = ['--if-possible'];"
    full += "runpy.run_module('compiled.build', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-B", "-c", full],
        cwd=project.root,
        env=environment("1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the build cannot be written: [Errno 27] File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert project.builds() == []


def test_a_new_build_takes_the_place_of_the_old_one(project: Project) -> None:
    [before] = project.builds()
    project.write("first/limits.py", "from typing import Final\n\nMOST: Final = 8\n")
    code, said = project.build()
    assert code == 0, said
    [after] = project.builds()
    assert after != before
    assert project.says() == "compiled 8 8 {'so'}"


def test_without_a_compiler_or_headers_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert compiler.command({"CC": "ccache gcc", "PATH": ""}) == ["ccache", "gcc"]
    (tmp_path / "cc").write_text("#!/bin/sh\n")
    (tmp_path / "cc").chmod(0o755)
    assert compiler.command({"PATH": str(tmp_path)}) == [str(tmp_path / "cc")]
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CannotBuild, match=r"no C compiler .*make compile"):
        compiler.command({"PATH": ""})
    with pytest.raises(CannotBuild, match=r"Python\.h is not in .*-dev"):
        compiler.require_headers(str(tmp_path))


def test_the_digest_covers_all_of_ours_that_the_compiled_modules_import_and_how_they_are_built() -> None:
    covered = set(sources.read(ROOT, MODULES))
    assert {"compiled/modules.py", "compiled/build.py", "compiled/compiler.py"} <= covered
    assert {module.replace(".", "/") + ".py" for module in MODULES} <= covered
    listed = "import sys; import " + ", ".join(MODULES)
    listed += (
        "; print(*[m.__file__ for n, m in sys.modules.items() if n.startswith(('fleet', 'admission'))])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", listed],
        cwd=ROOT,
        env=environment("0"),
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {str(Path(path).relative_to(ROOT)) for path in loaded.stdout.split()}
    assert len(imported) >= len(MODULES)
    assert imported <= covered


def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "build").write_text("a file, where builds are to go")
    with pytest.raises(CannotBuild, match=r"builds go into .*, which cannot be written"):
        build.build(tmp_path, MODULES)


def test_the_digest_depends_on_each_source_its_path_and_the_compiler() -> None:
    given = [("a.py", b"x = 1\n"), ("b.py", b"y = 2\n")]
    others = [
        [("a.py", b"x = 1\n"), ("b.py", b"y = 3\n")],
        [("a.py", b"x = 1\n"), ("c.py", b"y = 2\n")],
        [("a.py", b"x = 1\n")],
        [("a.py", b""), ("b.py", b"x = 1\ny = 2\n")],
    ]
    names = {load.digest("mypy 1", one) for one in (given, *others)} | {load.digest("mypy 2", given)}
    assert len(names) == 6
    assert load.digest("mypy 1", given) in names


def test_slots_go_from_dataclasses_and_nothing_else_moves() -> None:
    text = (
        "@dataclass(frozen=True, slots=True)  # µ slots=True\nclass A:\n    x: int\n\n\n"
        "@dataclasses.dataclass(slots=True, frozen=True)\nclass B:\n    y = dict(slots=True)\n"
    )
    assert sources.without_slots(text) == text.replace(
        "frozen=True, slots=True", "frozen=True, slots=False"
    ).replace("dataclass(slots=True", "dataclass(slots=False")
    assert build.HALF_DONE.startswith(".")  # hidden: never taken for a build


def test_classes_to_be_reused_are_marked_for_the_compiler_and_no_line_moves() -> None:
    top = '"""A."""\n\nfrom __future__ import annotations\n\nimport os\n\n\n'
    text = top + "class A:\n    x = 1\n\n\nclass B:\n    y = os.sep\n\n\nclass C:\n    z = 3\n"
    marked = sources.with_reuse(text, ("A", "B"), ("B",))
    before, after = text.splitlines(), marked.splitlines()
    added = {
        3: "from __future__ import annotations; from typing import TYPE_CHECKING",
        4: "if TYPE_CHECKING: from mypy_extensions import mypyc_attr",
        7: "@mypyc_attr(free_list_len=1, acyclic=False)",
        11: "@mypyc_attr(free_list_len=1, acyclic=True)",
    }
    assert after == [added.get(number, line) for number, line in enumerate(before, 1)]
    assert sources.with_reuse(text, (), ("B",)) == text
    with pytest.raises(ValueError, match="A needs a blank line above it and no decorator"):
        sources.with_reuse(top + "@final\nclass A:\n    x = 1\n", ("A",), ())


def test_the_lists_of_classes_name_classes_that_are_there() -> None:
    for module, names in REUSED.items():
        assert module in MODULES
        tree = ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text())
        assert set(names) <= {one.name for one in tree.body if isinstance(one, ast.ClassDef)}
    assert set(ACYCLIC) <= {name for names in REUSED.values() for name in names}
