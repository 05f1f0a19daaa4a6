"""The supervisor keeps real processes running and never leaves one behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from control.supervise import Part, Supervisor, free_port
from fleet.clock import SystemClock
from fleet.errors import Unavailable

SLEEPER = ("-c", "import signal; signal.pause()")


def supervisor(folder: Path, said: list[str]) -> Supervisor:
    return Supervisor(SystemClock(), folder / "logs", said.append)


async def eventually(claim: object, *, within_s: float = 20.0) -> None:
    assert callable(claim)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not claim():
        assert loop.time() < deadline, "did not come true in time"
        await asyncio.sleep(0.05)


def test_a_killed_part_is_started_again_and_stop_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        said: list[str] = []
        boss = supervisor(tmp_path, said)
        await boss.start(Part("sleeper", SLEEPER))
        children = psutil.Process().children()
        first = next(c for c in children if "signal.pause" in " ".join(c.cmdline()))
        first.send_signal(signal.SIGKILL)

        def back() -> bool:
            return any(
                c.pid != first.pid and "signal.pause" in " ".join(c.cmdline())
                for c in psutil.Process().children()
                if c.status() != psutil.STATUS_ZOMBIE
            )

        await eventually(back)
        assert any("code -9" in line for line in said)
        await boss.stop()
        assert not back()

    asyncio.run(scenario())


def test_pauses_grow_and_a_start_that_fails_is_said_and_tried_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        said: list[str] = []
        boss, logs = supervisor(tmp_path, said), tmp_path / "logs"
        await boss.start(Part("brief", ("-c", "pass")))
        await eventually(lambda: any("starting again in 1 s" in line for line in said))
        logs.rename(tmp_path / "aside")
        logs.write_text("a file where the folder of logs was")
        await eventually(lambda: any("brief" in line and "cannot be started" in line for line in said))
        logs.unlink()
        await eventually((logs / "brief.log").exists)
        await boss.stop()
        pauses = [line.rsplit(" in ", 1)[1] for line in said if "starting again" in line]
        assert pauses[:2] == ["1 s", "2 s"]

    asyncio.run(scenario())


def test_a_part_that_dies_at_once_is_reported_with_its_last_words(tmp_path: Path) -> None:
    async def scenario() -> None:
        boss = supervisor(tmp_path, [])
        port = free_port(0)
        part = Part(
            "broken", ("-c", "raise SystemExit('port is taken')"), ready_url=f"http://127.0.0.1:{port}/"
        )
        with pytest.raises(Unavailable, match=r"(?s)exited with code 1.*port is taken"):
            await boss.start(part)
        await boss.stop()

    asyncio.run(scenario())


def test_the_last_words_are_of_this_start_and_nothing_is_imported_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the current folder that is called like a module must not run."""
    (tmp_path / "csv.py").write_text("raise SystemExit('I should not have run')\n")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "broken.log").write_text("words of an earlier start\n")
    monkeypatch.chdir(tmp_path)

    async def scenario() -> str:
        boss = supervisor(tmp_path, [])
        program = "import csv; raise SystemExit(f'csv has {hasattr(csv, \"reader\")}')"
        part = Part("broken", ("-c", program), ready_url=f"http://127.0.0.1:{free_port(0)}/")
        with pytest.raises(Unavailable) as failed:
            await boss.start(part)
        await boss.stop()
        return failed.value.message

    said = asyncio.run(scenario())
    assert "csv has True" in said
    assert "earlier start" not in said


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="parent-death signals are Linux's")
def test_parts_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    script = (
        "import asyncio, pathlib\n"
        "from control.supervise import Part, Supervisor\n"
        "from fleet.clock import SystemClock\n"
        "async def main():\n"
        f"    boss = Supervisor(SystemClock(), pathlib.Path({str(tmp_path)!r}), print)\n"
        f"    await boss.start(Part('sleeper', {SLEEPER!r}))\n"
        "    print('up', flush=True)\n"
        "    await boss.run()\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "up" not in process.stdout.readline():
        pass
    (child,) = psutil.Process(process.pid).children()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert psutil.wait_procs([child], timeout=20)[1] == []


def test_a_taken_port_is_avoided() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) != port
