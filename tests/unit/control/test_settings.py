"""Settings: what is refused, what is kept secret, that each is described."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from control.settings import SignIn, described_settings, is_loopback, load_settings
from fleet.errors import InvalidInput


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("RHODECK_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)


def test_an_empty_environment_is_safe_to_run_with() -> None:
    settings = load_settings()
    assert settings.database_url is None
    assert settings.read_admin_token() is None
    assert is_loopback(settings.api_host)
    assert is_loopback(settings.dashboard_host)
    assert settings.scrape_deadline_s < settings.scrape_period_s


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RHODECK_SCRAPE_PERIOD_S", "")
    monkeypatch.setenv("DATABASE_URL", "")
    assert load_settings().scrape_period_s == 10
    assert load_settings().database_url is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RHODECK_SCRAPE_PERIOD_S", "0.5"),
        ("RHODECK_SCRAPE_PERIOD_S", "301"),
        ("RHODECK_SCRAPE_PERIOD_S", "nan"),
        ("RHODECK_SCRAPE_PERIOD_S", "soon"),
        ("RHODECK_SCRAPE_TIMEOUT_S", "10"),  # not below the default period
        ("RHODECK_API_PORT", "70000"),
        ("RHODECK_API_PORT", "-1"),
        ("RHODECK_API_HOST", "http://127.0.0.1"),
        ("RHODECK_API_HOST", "127.0.0.1:80"),
        ("RHODECK_DASHBOARD_HOST", "0.0.0.0"),
        ("RHODECK_DASHBOARD_HOST", "::"),
        ("RHODECK_DASHBOARD_HOST", "ops.example.org"),
        ("RHODECK_SIGN_IN", "maybe"),
        ("RHODECK_RETENTION_DAYS", "1"),
        ("RHODECK_RETENTION_DAYS", "2.5"),
        ("RHODECK_FINANCE_TIMEZONE", "Mars/Olympus"),
        ("RHODECK_FINANCE_TIMEZONE", "../../etc/passwd"),
        ("RHODECK_FINANCE_TIMEZONE", "Europe"),
        ("RHODECK_STATE_DIR", "relative/folder"),
        ("RHODECK_ADMIN_TOKEN", "short"),
        ("DATABASE_URL", "mysql://db/rhodeck"),
        ("DATABASE_URL", "postgresql://db"),
        ("DATABASE_URL", "not a url"),
        ("DATABASE_URL", "postgresql://db:many/rhodeck"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidInput) as caught:
        load_settings()
    assert caught.value.field == variable
    assert variable in caught.value.message
    assert caught.value.hint


def test_the_deadline_follows_a_short_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RHODECK_SCRAPE_PERIOD_S", "1")
    assert load_settings().scrape_deadline_s == pytest.approx(0.8)
    monkeypatch.setenv("RHODECK_SCRAPE_PERIOD_S", "300")
    assert load_settings().scrape_deadline_s == 5


def test_an_open_dashboard_needs_sign_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RHODECK_DASHBOARD_HOST", "0.0.0.0")
    monkeypatch.setenv("RHODECK_SIGN_IN", "local")
    settings = load_settings()
    assert settings.sign_in is SignIn.LOCAL
    assert settings.dashboard_host == "0.0.0.0"


def test_secrets_are_in_no_text_of_settings_or_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    canary = "canary-7f3a9c-canary"
    monkeypatch.setenv("DATABASE_URL", f"postgresql://u:{canary}@db/rhodeck")
    monkeypatch.setenv("RHODECK_ADMIN_TOKEN", canary)
    settings = load_settings()
    assert canary not in f"{settings} {settings!r} {settings.model_dump()} {settings.model_dump_json()}"
    token = settings.read_admin_token()
    assert token is not None
    assert token.get_secret_value() == canary

    monkeypatch.setenv("DATABASE_URL", f"mysql://u:{canary}@db/rhodeck")
    with pytest.raises(InvalidInput) as caught:
        load_settings()
    assert canary not in str(caught.value.as_dict())
    monkeypatch.setenv("DATABASE_URL", f"postgresql://u:{canary}@db:port/rhodeck")
    with pytest.raises(InvalidInput) as caught:
        load_settings()
    assert canary not in str(caught.value.as_dict())


def test_the_token_is_read_from_its_file_without_the_final_newline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    monkeypatch.setenv("RHODECK_ADMIN_TOKEN_FILE", str(file))
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_settings().read_admin_token()
    file.write_text("short\n")
    with pytest.raises(InvalidInput, match="5 characters"):
        load_settings().read_admin_token()
    file.write_text("0123456789abcdef\n")
    token = load_settings().read_admin_token()
    assert token is not None
    assert token.get_secret_value() == "0123456789abcdef"


def test_token_and_token_file_together_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RHODECK_ADMIN_TOKEN", "0123456789abcdef")
    monkeypatch.setenv("RHODECK_ADMIN_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(InvalidInput, match="both set"):
        load_settings()


def test_every_setting_is_described_and_documented() -> None:
    operations = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    described = described_settings()
    assert len({setting.variable for setting in described}) == len(described) > 10
    for setting in described:
        assert setting.description.endswith("."), setting
        assert f"`{setting.variable}`" in operations, f"{setting.variable} is not in docs/operations.md"
        assert setting.description in operations, f"{setting.variable} is described otherwise there"


def test_secret_settings_are_known_as_such() -> None:
    secret = {setting.variable for setting in described_settings() if setting.is_secret}
    assert secret == {"DATABASE_URL", "RHODECK_ADMIN_TOKEN"}


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
