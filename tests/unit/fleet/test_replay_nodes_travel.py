"""A node of a replay reaches another process as it was, whichever way the hot modules run."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from fleet import gate_task  # registers how nodes are sent
from fleet.engine_profile import EngineProfile
from fleet.replay_servers import ReplayNode

ROOT = Path(__file__).parents[3]
NODES = [
    ReplayNode("n1"),
    ReplayNode(
        "n2",
        EngineProfile("toy", 0.01, 1e-4, 1e-6, max_num_seqs=7),
        models=("a", "b"),
        kv_capacity_tokens=1_000,
        max_num_seqs=3,
        price_class="spot",
        prefill_s_per_token=1e-5,
        decode_s_per_token=0.5,
        is_prefill_only=True,
        transfer_s_per_token=1e-6,
    ),
]


#: Reads nodes, asks each for its behaviour, and sends all back.
ECHO = """
import pickle, sys
from fleet import gate_task
nodes = pickle.load(sys.stdin.buffer)
pickle.dump([(node, node.honours_priority) for node in nodes], sys.stdout.buffer)
"""


@pytest.mark.parametrize("node", NODES)
def test_a_node_is_the_same_after_a_round_trip(node: ReplayNode) -> None:
    assert ReplayNode in gate_task.copyreg.dispatch_table
    back = pickle.loads(pickle.dumps(node, protocol=5))
    assert back == node
    assert [getattr(back, one.name) for one in fields(node)] == [
        getattr(node, one.name) for one in fields(node)
    ]


def test_a_fresh_process_gets_it_whole() -> None:
    line = [sys.executable, "-c", ECHO]
    child = subprocess.run(line, input=pickle.dumps(NODES), cwd=ROOT, check=True, capture_output=True)
    assert pickle.loads(child.stdout) == [(node, node.honours_priority) for node in NODES]
