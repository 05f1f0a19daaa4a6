"""Starting the dashboard: what it refuses, and that it then says what to do and ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.pages.conftest import NOWHERE
from tests.postgres_server import FreshDatabase

ROOT = Path(__file__).resolve().parents[2]


def start(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RHODECK_") and k != "DATABASE_URL"}
    return subprocess.run(
        [sys.executable, "-m", "dashboard", *flags],
        cwd=ROOT,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_it_listens_beyond_loopback_only_with_sign_in() -> None:
    ended = start("--host", "0.0.0.0", DATABASE_URL=NOWHERE)
    assert ended.returncode == 1
    assert "nobody has to sign in" in ended.stderr
    assert "RHODECK_SIGN_IN=local" in ended.stderr


def test_a_taken_port_is_refused_with_its_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = start("--port", str(port), DATABASE_URL=NOWHERE)
    assert ended.returncode == 1
    assert str(port) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_a_database_it_says_how_to_start_one(tmp_path: Path) -> None:
    ended = start("--port", "0", RHODECK_STATE_DIR=str(tmp_path))
    assert ended.returncode == 1
    assert "rhodeck db up" in ended.stderr


@pytest.mark.postgres
def test_it_serves_pages_answers_foreign_host_names_not_and_ends_on_sigterm(
    database: FreshDatabase,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = os.environ | {"DATABASE_URL": database.dsn, "RHODECK_SIGN_IN": "none"}
    process = subprocess.Popen(
        [sys.executable, "-m", "dashboard", "--port", str(port)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30)
        transport = httpx.HTTPTransport(retries=12)  # its pauses double: about a minute in all
        with httpx.Client(transport=transport, trust_env=False, timeout=30) as waiting:
            assert waiting.get(f"http://127.0.0.1:{port}/healthz").text == "ok"
        assert client.get("/readyz").text == "ready"
        page = client.get("/policy")
        assert page.status_code == 200
        assert page.headers["x-frame-options"] == "DENY"
        socket_request = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        ours = client.get("/_stcore/stream", headers=socket_request)
        theirs = client.get("/_stcore/stream", headers={**socket_request, "Host": "evil.example"})
        assert (ours.status_code, theirs.status_code) == (101, 403)
        client.close()
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=60)
    assert process.returncode in (0, -15), output.decode()[-2_000:]
    lines = [json.loads(line) for line in output.decode().splitlines()]
    assert "the dashboard listens" in [line["message"] for line in lines]


def test_what_streamlit_logs_becomes_json_lines_with_secrets_redacted() -> None:
    script = (
        "from fleet import logs; logs.configure('dashboard')\n"
        "from dashboard import server_logs, theme; server_logs.adopt()\n"
        "from streamlit import config\n"
        "from streamlit.logger import get_logger\n"
        "from streamlit.error_util import handle_uncaught_app_exception\n"
        "get_logger('streamlit.made_later').error('cannot open postgresql://u:hunter2@db/x')\n"
        "settings = theme.server_settings('x', 1, is_loopback=True)\n"
        "config.set_option('logger.enableRich', settings['logger.enableRich'])\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError as exc: handle_uncaught_app_exception(exc)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in (ended.stdout + ended.stderr).splitlines()]
    said = {line["message"]: line for line in lines}
    assert "cannot open postgresql://u:***@db/x" in said
    assert any("ZeroDivisionError" in line.get("exception", "") for line in lines)
