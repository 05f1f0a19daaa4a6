"""A pytest plugin that lets no test run unless the compiled modules do: it would prove nothing."""

from __future__ import annotations

import pytest

from compiled import load


def pytest_collection_finish(session: pytest.Session) -> None:
    import fleet.gate

    if load.state() != load.COMPILED or not str(fleet.gate.__file__).endswith(load.SUFFIX):
        pytest.exit(f"the compiled modules do not run: {load.state()}", returncode=4)
