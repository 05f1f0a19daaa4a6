"""Settings: bad ones are named, nothing is started, secrets are not repeated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from admission.__main__ import main
from admission.settings import Settings, is_loopback, load
from fleet.errors import InvalidInput

GOOD = {"name": "gw-1", "state_dir": "/nowhere"}


def test_every_setting_has_a_flag_or_is_a_secret() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    for name in set(Settings.model_fields) - {"admin_token", "node_api_key"}:
        assert f"--{name.replace('_', '-')}" in text
    assert "--admin-token " not in text
    assert "--node-api-key " not in text


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"name": "Not A Name"}, "--name"),
        ({"port": "x"}, "--port"),
        ({"port": "70000"}, "--port"),
        ({"drain_s": "nan"}, "--drain-s"),
        ({"drain_s": "-1"}, "--drain-s"),
        ({"poll_interval_s": "1.5"}, "--poll-interval-s"),
        ({"host": "0.0.0.0"}, "--host"),
        ({"host": "10.1.2.3"}, "--host"),
        ({"host": "gw.example"}, "--host"),
        ({"log_level": "LOUD"}, "--log-level"),
        ({"otlp_endpoint": "ftp://c:4318"}, "--otlp-endpoint"),
        ({"otlp_endpoint": "c:4318"}, "--otlp-endpoint"),
        ({"otlp_endpoint": "http://"}, "--otlp-endpoint"),
        ({"otlp_endpoint": "http://c:99999"}, "--otlp-endpoint"),
        ({"otlp_endpoint": "http://c:4318?a=b"}, "--otlp-endpoint"),
        ({"otlp_ratio": "1.1"}, "--otlp-ratio"),
        ({"tokenize_by_engine": "true", "tokenizers_dir": "/t"}, "--tokenize-by-engine"),
        ({"tokenizer_budget_s": "0"}, "--tokenizer-budget-s"),
        ({"admin_token_file": "/nowhere/token"}, "--admin-token-file"),
    ],
)
def test_a_bad_setting_is_named(change: dict[str, Any], flag: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load(GOOD | change)
    assert caught.value.field == flag


def test_a_collectors_address_with_a_secret_in_it_is_refused_without_repeating_it() -> None:
    with pytest.raises(InvalidInput) as caught:
        load(GOOD | {"otlp_endpoint": "http://user:hunter2@c:4318"})
    assert "hunter2" not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("content", ["", "  \n", "two words-0123456789", "fifteen-letters"])
def test_a_bad_token_file_is_refused_without_repeating_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(InvalidInput) as caught:
        load(GOOD | {"admin_token_file": path})
    assert caught.value.field == "--admin-token-file"
    if content.strip():
        assert content.strip() not in f"{caught.value} {caught.value.hint}"


def test_with_a_token_it_may_listen_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    settings = load(GOOD | {"admin_token_file": path, "host": "0.0.0.0"})
    assert settings.admin_token is not None
    assert settings.admin_token.get_secret_value() == "0123456789abcdef"
    assert "0123456789abcdef" not in repr(settings)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("localhost.evil.test", False),
        ("", False),
    ],
)
def test_only_loopback_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_bad_input_ends_with_a_code_and_writes_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    result = CliRunner().invoke(main, ["--name", "gw", "--state-dir", str(state), "--host", "0.0.0.0"])
    assert result.exit_code == 2
    assert "admin token" in result.output
    assert not state.exists()


def test_a_gateway_loads_no_database_and_no_numerics() -> None:
    """It starts with the rest dead, and quickly: scipy alone would be half of its start-up time."""
    ours = "import sys, admission.__main__; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", ours], capture_output=True, text=True, check=True).stdout
    unwanted = {"sqlalchemy", "psycopg", "scipy", "numpy", "streamlit", "control", "simfleet"}
    assert unwanted & set(loaded.split()) == set()


def test_a_gateway_opens_as_many_files_as_the_system_allows() -> None:
    ours = """
import resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
from admission.__main__ import allow_descriptors
allow_descriptors()
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most))
"""
    said = subprocess.run([sys.executable, "-c", ours], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "True"
