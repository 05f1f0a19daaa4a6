"""Days done by several processes: the month of one, and nobody left behind when it ends or is killed."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import psutil
import pytest

from control.gate_crew import Crew, usual_processes
from fleet.engine_profile import H100_70B_FP8
from fleet.errors import Unavailable
from fleet.fluid import DAY_BINS
from fleet.gate_month import GateRun
from fleet.gate_rules import GateRules, flows_of_tiers
from fleet.month_result import NodeClass, as_dict
from fleet.outcomes import Tier
from fleet.simulate import EventRun, ServiceModel
from fleet.simulation_snapshot import resume, snapshot
from fleet.strategies import read_strategy
from tests.gateway_process import ROOT

PATIENCE_S = 60.0


def a_month(days: float = 2.5) -> GateRun:
    """A few days of few requests, with nodes that come and go and engines behind the gate."""
    auto = {"mode": "reactive", "rho": 0.8, "min": 1, "max": 4, "stab_s": 300, "cold_s": 240}
    rates = 0.04 * (1 + 0.9 * np.sin(np.arange(int(days * DAY_BINS)) / DAY_BINS * 2 * np.pi))
    node = NodeClass(service_rate=0.03)
    events = EventRun(
        rates, read_strategy({"n": 2, "D": 20, "auto": auto}), node, ServiceModel(3), 5, keeps_waits=False
    )
    shares = {Tier.INTERACTIVE: 0.7, Tier.BATCH: 0.3}
    return GateRun(events, GateRules(flows_of_tiers(shares), engine=H100_70B_FP8))


def done(run: GateRun) -> GateRun:
    while not run.is_done:
        run.advance()
    return run


def go_on(crew: Crew) -> None:
    while not crew.is_done:
        crew.advance()


def test_two_processes_find_the_month_of_one_also_after_a_break() -> None:
    straight, run = done(a_month()), a_month()
    with Crew(run, 2) as crew:
        while crew.days_done < 1:
            crew.advance()
        kept = snapshot(crew)
    again = a_month()
    with Crew(again, 2) as crew:
        resume(crew, kept)
        go_on(crew)
        assert crew.requests_done == straight.requests_done
        pids = [member.process.pid or 0 for member in crew._members]
    assert as_dict(again.result()) == as_dict(straight.result())
    assert again.tiers() == straight.tiers()
    assert straight.result().refused > 0
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)  # ended, and waited for


def test_a_process_that_dies_is_said_and_the_days_counted_stay() -> None:
    run = a_month()
    with Crew(run, 2) as crew:
        crew.advance()
        os.kill(crew._members[0].process.pid or 0, signal.SIGKILL)
        with pytest.raises(Unavailable, match="ended"):
            go_on(crew)
        counted = run.days_done
    assert run.days_done == counted < run.days
    assert done(run).result().offered > 0


def test_a_process_killed_in_the_middle_of_telling_its_day_is_said() -> None:
    with Crew(a_month(), 2) as crew:
        crew.advance()
        ours, theirs = Pipe()
        os.write(theirs.fileno(), struct.pack("!i", 1_000) + b"half of it")  # a length, and less than that
        theirs.close()
        crew._members[0].pipe.close()
        crew._members[0].pipe = ours
        with pytest.raises(Unavailable, match="ended"):
            go_on(crew)


SCRIPT = """
from tests.integration.test_gate_crew import a_month
from control.gate_crew import Crew
crew = Crew(a_month(30), 2)
crew.advance()
print(*(member.process.pid for member in crew._members), flush=True)
while not crew.is_done:
    crew.advance()
"""


def test_nobody_goes_on_when_the_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "month.py"
    script.write_text(f"if __name__ == '__main__':\n    import sys; sys.path.insert(0, {str(ROOT)!r})\n")
    with script.open("a") as out:
        out.writelines(f"    {line}\n" for line in SCRIPT.strip().splitlines())
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdout is not None
        children = [psutil.Process(int(word)) for word in parent.stdout.readline().split()]
        parent.kill()
    assert len(children) == 2
    gone, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert not alive
    assert len(gone) == 2


def test_one_process_a_core_and_never_more_than_four() -> None:
    assert 1 <= usual_processes() <= 4
