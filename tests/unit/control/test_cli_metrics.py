"""`rhodeck metrics` by its output and exit code, on real pages."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from control.cli_metrics import metrics
from fleet.errors import InvalidInput

PAGES = Path(__file__).parents[2] / "data" / "metrics"
SATURATED = str(PAGES / "vllm-0.32.0-cpu-saturated-waiting.prom.txt")
STEADY = str(PAGES / "vllm-0.32.0-cpu-steady-load.prom.txt")
RUST = str(PAGES / "vllm-0.32.0-rustfrontend-saturated-waiting.prom.txt")


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(metrics, list(arguments), input=stdin)


def parsed(result: Result) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(result.stdout, parse_constant=refuse)


def test_read_prints_one_object_a_page():
    result = run("read", SATURATED, RUST, "--json")
    assert result.exit_code == 0
    text, rust = parsed(result)
    assert (text["source"], text["dialect"], text["shape"], text["state"], text["dropped"]) == (
        SATURATED,
        "vllm",
        "prometheus_text",
        "ok",
        [],
    )
    (engine,) = text["engines"]
    assert (engine["engine"], engine["model"], engine["running"], engine["waiting"]) == (
        "0",
        "tiny",
        4,
        109,
    )
    assert engine["finished"] == {"stop": 0, "length": 131, "abort": 0, "error": 0, "repetition": 0}
    assert (engine["prompt_tokens"], engine["generation_tokens"], engine["preemptions"]) == (
        13875,
        31782,
        0,
    )
    assert (engine["prefix_cache_hits"], engine["prefix_cache_queries"]) == (0, 13875)
    assert engine["cache_config"]["num_gpu_blocks"] == "16384"
    e2e = engine["histograms"]["e2e_s"]
    assert (len(e2e["edges"]), len(e2e["counts"]), e2e["count"], sum(e2e["counts"])) == (21, 22, 131, 131)
    (engine,) = rust["engines"]
    assert (rust["shape"], engine["cache_config"]) == ("openmetrics", None)


def test_every_page_is_read_and_a_bad_one_shows_in_the_exit_code(tmp_path: Path):
    (tmp_path / "page.html").write_text("<html></html>")
    missing, html = str(tmp_path / "missing"), str(tmp_path / "page.html")
    with socket.socket() as closed:  # bound and not listening
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/metrics"
        result = run("read", missing, SATURATED, html, address, str(tmp_path), "--json")
    assert result.exit_code == 1
    pages = parsed(result)
    assert [p["source"] for p in pages][:3] == [missing, SATURATED, html]
    assert [p["state"] for p in pages] == ["unreadable", "ok", "not_metrics", "refused", "unreadable"]
    assert [len(p["engines"]) for p in pages] == [0, 1, 0, 0, 0]
    assert result.stderr.count("not read:") == 4


def test_an_address_reads_like_a_file_and_shows_no_secret():
    body = Path(RUST).read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path.startswith("/metrics") else 404)
            self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            port = server.server_address[1]
            result = run(
                "read", f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}/metrics?key=k3y", "--json"
            )
        finally:
            server.shutdown()
            thread.join()
    assert result.exit_code == 0
    pages = parsed(result)
    assert [page["engines"] for page in pages] == [parsed(run("read", RUST, "--json"))[0]["engines"]] * 2
    assert pages[1]["source"] == f"http://127.0.0.1:{port}/metrics"
    assert "k3y" not in result.output


def test_a_page_without_engines_is_a_page():
    result = run("read", str(PAGES / "vllm-0.32.0-cpu-disable-log-stats.prom.txt"), "--json")
    assert result.exit_code == 0
    assert parsed(result)[0]["state"] == "no_engine_series"


def test_absent_is_null_and_not_0():
    result = run("read", "-", "--json", stdin=b'vllm:num_requests_running{engine="0"} 3\n')
    (engine,) = parsed(result)[0]["engines"]
    assert engine["running"] == 3
    assert [engine[k] for k in ("waiting", "kv_used_ratio", "prompt_tokens", "model")] == [None] * 4
    assert (engine["finished"], engine["histograms"]) == ({}, {})


def test_the_table_says_a_dash_for_what_is_not_said():
    result = run("read", SATURATED, "-", stdin=b'vllm:num_requests_running{engine="0"} 3\n')
    assert result.exit_code == 0
    assert "109" in result.stdout
    assert result.stdout.splitlines()[-1].split() == ["0", "-", "3", *["-"] * 7]


def test_names_from_a_page_cannot_move_the_cursor():
    page = 'vllm:num_requests_running{engine="0",model_name="\x1b[2J\u202eevil"} 3\n'
    result = run("read", "-", stdin=page.encode())
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout
    assert r"\x1b[2J" in result.stdout


def test_window_gives_increments_rates_and_honest_quantiles():
    result = run("window", STEADY, SATURATED, "--seconds", "60", "--json")
    assert result.exit_code == 0
    got = parsed(result)
    (engine,) = got["engines"]
    # completed 131 - 43 in 60 s; 4 running and 109 waiting at the end of what began empty
    assert engine["increments"]["completed"] == 88
    assert engine["rates"]["completed"] == pytest.approx(88 / 60)
    assert engine["increments"]["arrivals"] == 88 + 113
    assert engine["increments"]["generation_tokens"] == 31782 - 11335
    p99 = engine["histograms"]["prefill_s"]["quantiles"]["p99"]
    assert (p99["lo"], p99["hi"], p99["below_first_edge"], p99["too_few"]) == (0.0, 0.3, True, True)
    p50 = engine["histograms"]["e2e_s"]["quantiles"]["p50"]
    assert (p50["lo"], p50["hi"], p50["too_few"], p50["censored"]) == (2.5, 5.0, False, False)
    assert set(engine["histograms"]["e2e_s"]["quantiles"]) == {"p50", "p95", "p99", "p99.9"}


def test_a_window_of_several_ranks_has_the_node_too(tmp_path: Path):
    body = (PAGES / "vllm-0.32.0-cpu-dp2-load.prom.txt").read_text()
    later = body.replace(
        'finished_reason="length",model_name="tiny"} 20.0',
        'finished_reason="length",model_name="tiny"} 23.0',
    )
    (tmp_path / "a").write_text(body)
    (tmp_path / "b").write_text(later)
    got = parsed(run("window", str(tmp_path / "a"), str(tmp_path / "b"), "--seconds", "10", "--json"))
    assert [e["increments"]["completed"] for e in got["engines"]] == [3, 3]
    assert (got["node"]["engine"], got["node"]["increments"]["completed"]) == ("all", 6)
    assert (got["node"]["end"]["running"], got["node"]["end"]["waiting"]) == (4, 29)


def test_a_quantile_above_the_last_bucket_is_censored(tmp_path: Path):
    def page(beyond: int) -> bytes:
        return "".join(
            f'vllm:e2e_request_latency_seconds_bucket{{engine="0",le="{le}"}} {n}\n'
            for le, n in (("30", 0), ("60", 0), ("+Inf", beyond))
        ).encode()

    (tmp_path / "a").write_bytes(page(0))
    (tmp_path / "b").write_bytes(page(5000))
    result = run("window", str(tmp_path / "a"), str(tmp_path / "b"), "--seconds", "10", "--json")
    p99 = parsed(result)["engines"][0]["histograms"]["e2e_s"]["quantiles"]["p99"]
    assert (p99["censored"], p99["lo"], p99["hi"], p99["estimate"]) == (True, 60.0, None, 60.0)
    text = run("window", str(tmp_path / "a"), str(tmp_path / "b"), "--seconds", "10")
    assert "> 60 s" in text.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        (STEADY, SATURATED, "--seconds", "0"),
        (STEADY, SATURATED, "--seconds", "nan"),
        (STEADY, SATURATED, "--seconds", "soon"),
        (STEADY, SATURATED),
        (STEADY, "/does/not/exist", "--seconds", "5"),
        (STEADY, str(PAGES / "vllm-0.32.0-cpu-disable-log-stats.prom.txt"), "--seconds", "5"),
    ],
)
def test_a_window_that_cannot_be_is_refused(arguments: tuple[str, ...]):
    result = run("window", *arguments)
    assert result.exit_code != 0
    assert result.stdout == ""


@pytest.mark.parametrize("seconds", ["1e-320", "nan", "inf", "0"])
def test_a_window_of_no_length_is_refused(seconds: str):
    with pytest.raises(InvalidInput, match="seconds apart"):
        CliRunner().invoke(
            metrics, ["window", STEADY, SATURATED, "--seconds", seconds, "--json"], catch_exceptions=False
        )


def test_a_deadline_is_a_number():
    result = run("read", STEADY, "--deadline", "nan")
    assert (result.exit_code, "not a number" in result.stderr) == (2, True)


def rhodeck(*arguments: str, **how: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "control", *arguments], stderr=subprocess.PIPE, **how)


def test_ctrl_c_ends_the_wait_for_a_pipe_in_which_nothing_comes(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Tests started in the background of a shell ignore SIGINT, and their children would too.
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with rhodeck("metrics", "read", str(pipe), stdout=subprocess.PIPE, **heard) as process:
        writer = os.open(pipe, os.O_WRONLY)  # returns when the reader has come
        # A signal that comes just before the read begins is seen after it: people press again, so do we.
        for _ in range(60):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
                break
        ended = process.poll()  # while the pipe is still open
        os.close(writer)
        assert ended == 1
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def test_a_closed_standard_input_is_said_plainly():
    command = [sys.executable, "-m", "control", "metrics", "read", "-"]
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, timeout=60, check=False
    )
    assert closed.returncode == 1
    assert b"standard input is closed" in closed.stderr
    assert b"Traceback" not in closed.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_the_output_is_said_plainly(unbuffered: str):
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with (
        Path("/dev/full").open("wb") as full,
        rhodeck("metrics", "read", STEADY, stdout=full, env=env) as process,
    ):
        assert process.wait(timeout=60) == 1
        assert process.stderr is not None
        said = process.stderr.read()
        assert b"No space left" in said
        assert b"Traceback" not in said
