"""The simulator as a process: start, ports, signals, refusals, and traffic whose count is right."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet.dialects import read_page
from simfleet.traffic import TENANTS

KEYS = json.dumps({tenant.name: f"key-{tenant.name}" for tenant in TENANTS})


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "simfleet", *arguments]


@contextmanager
def running_nodes(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[dict[str, str]]]]:
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            if line.strip() == "ready":
                break
            lines.append(line)
        yield process, [json.loads(line) for line in lines]
    finally:
        process.kill()
        process.communicate()


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()


def test_nodes_say_where_they_are_and_stop_at_sigterm(tmp_path: Path):
    file = tmp_path / "ports.json"
    arguments = ("--nodes", "3", "--profile", "tiny", "--seed", "1", "--ports-file", str(file))
    with running_nodes(*arguments) as (process, nodes):
        assert [node["name"] for node in nodes] == ["node-01", "node-02", "node-03"]
        assert json.loads(file.read_text()) == nodes
        for node in nodes:
            assert json.loads(fetch(node["base_url"] + "/version")) == {"version": "0.32.0"}
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")
        with pytest.raises(OSError, match="refused"):
            fetch(nodes[0]["base_url"] + "/health")


def test_sigterm_under_load_is_quiet_and_clean():
    with running_nodes("--nodes", "2", "--profile", "tiny", "--speed", "0.2") as (process, nodes):
        body = json.dumps({"prompt": [1, 2], "max_tokens": 1000, "ignore_eos": True, "stream": True})
        streams = [
            urllib.request.urlopen(
                urllib.request.Request(nodes[n % 2]["base_url"] + "/v1/completions", data=body.encode()),
                timeout=30,
            )
            for n in range(8)
        ]
        first = [stream.readline() for stream in streams[:2]]
        assert all(line.startswith(b"data: {") for line in first)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")
        for stream in streams:
            stream.close()


def test_a_taken_port_is_named_and_nothing_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = subprocess.run(
            command("--nodes", "1", "--profile", "tiny", "--base-port", str(port)),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert result.returncode == 1
    assert result.stdout == ""
    assert str(port) in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--nodes", "0"), "0"),
        (("--profile", "abacus"), "h100-70b-fp8"),
        (("--speed", "0"), "speed"),
        (("--base-port", "70000"), "70000"),
        (("--ports-file", "/nowhere/at/all.json"), "/nowhere/at/all.json"),
        (("--host", "not an address"), "address"),
        (("traffic", "--gateway", "http://127.0.0.1:1"), "keys"),
        (("traffic",), "--gateway"),
        (("fault", "--url", "ftp://x", "--kind", "freeze"), "ftp://x"),
        (("fault", "--url", "http://127.0.0.1:1", "--kind", "freeze"), "127.0.0.1:1"),
    ],
)
def test_bad_flags_fail_with_a_word_of_help(arguments, word):
    environment = {name: value for name, value in os.environ.items() if name != "RHODECK_TRAFFIC_KEYS"}
    result = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=60, env=environment
    )
    assert result.returncode != 0
    assert word in result.stderr
    assert "Traceback" not in result.stderr
    assert "ready" not in result.stdout


def test_traffic_reports_exactly_what_the_nodes_finished():
    with running_nodes("--nodes", "2", "--profile", "h100-70b-fp8", "--speed", "50") as (_, nodes):
        urls = [node["base_url"] for node in nodes]
        arguments = [part for url in urls for part in ("--gateway", url)]
        result = subprocess.run(
            command("traffic", *arguments, "--rate", "60", "--duration", "3", "--report-every", "1"),
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "RHODECK_TRAFFIC_KEYS": KEYS},
        )
        assert (result.returncode, result.stderr) == (0, "")
        reports = [json.loads(line) for line in result.stdout.splitlines()]
        engines = [read_page(fetch(url + "/metrics"), source=url).engines[0] for url in urls]
        finished = [sum(engine.finished.values()) for engine in engines]
        assert sum(finished) == sum(report["outcomes"].get("ok", 0) for report in reports)
        assert {name for report in reports for name in report["outcomes"]} == {"ok"}
        assert abs(finished[0] - finished[1]) <= 1  # spread evenly
        assert sum(finished) > 50
        assert len(reports) >= 3


def test_a_fault_can_be_given_from_the_command_line():
    with running_nodes("--nodes", "1", "--profile", "tiny") as (_, nodes):
        url = nodes[0]["base_url"]
        ordered = subprocess.run(
            command("fault", "--url", url, "--kind", "kv_shortage", "--ratio", "0.5"),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ordered.returncode == 0, ordered.stderr
        (engine,) = read_page(fetch(url + "/metrics"), source=url).engines
        assert engine.kv_used_ratio == pytest.approx(0.5)


def test_clients_that_meet_refusals_and_dead_gateways_count_them():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        result = subprocess.run(
            command(
                "traffic", "--gateway", f"http://127.0.0.1:{unused.getsockname()[1]}", "--rate", "50",
                "--duration", "1",
            ),
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "RHODECK_TRAFFIC_KEYS": KEYS},
        )  # fmt: skip
    assert result.returncode == 0
    (report,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert set(report["outcomes"]) == {"unreachable"}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://[::1", "is not a node's URL"),
        ("http://127.0.0.1:port", "nonnumeric port"),
        ("ftp://x", "URL"),
    ],
)
def test_a_fault_for_an_address_that_is_none_is_refused(url: str, says: str) -> None:
    done = subprocess.run(
        command("fault", "--url", url, "--kind", "freeze"), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_fault_for_something_that_speaks_no_http_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        order = subprocess.Popen(
            command("fault", "--url", f"http://127.0.0.1:{server.getsockname()[1]}", "--kind", "freeze"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        _, said = order.communicate(timeout=60)
    assert order.returncode == 1
    assert "no node answers" in said
    assert "Traceback" not in said
