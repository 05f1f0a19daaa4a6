"""Which token `rhodeck gateway explain` shows to gateways."""

from __future__ import annotations

from pathlib import Path

import pytest

from control.cli_explain import gateways_token
from control.settings import load_settings
from control.up import Folders
from fleet.errors import InvalidInput


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    monkeypatch.setenv("RHODECK_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("RHODECK_ADMIN_TOKEN", raising=False)
    monkeypatch.delenv("RHODECK_ADMIN_TOKEN_FILE", raising=False)
    return Folders(tmp_path)


def test_the_token_that_up_made_serves_where_none_is_set(folders: Folders):
    folders.admin_token.parent.mkdir()
    folders.admin_token.write_text("made-by-rhodeck-up\n")
    assert gateways_token(load_settings()).get_secret_value() == "made-by-rhodeck-up"


def test_a_token_that_is_set_goes_before(folders: Folders, monkeypatch: pytest.MonkeyPatch):
    folders.admin_token.parent.mkdir()
    folders.admin_token.write_text("made-by-rhodeck-up\n")
    monkeypatch.setenv("RHODECK_ADMIN_TOKEN", "set-by-the-operator")
    assert gateways_token(load_settings()).get_secret_value() == "set-by-the-operator"


def test_without_any_the_error_names_the_file_and_both_settings(folders: Folders):
    with pytest.raises(InvalidInput, match="admin_token is not there") as raised:
        gateways_token(load_settings())
    assert "RHODECK_ADMIN_TOKEN_FILE" in raised.value.hint
    assert "RHODECK_STATE_DIR" in raised.value.hint
