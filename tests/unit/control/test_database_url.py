"""A DATABASE_URL that cannot be used is refused, and no part of its password is told."""

from __future__ import annotations

import pytest

from control.database import make_engine, parse_dsn, redacted
from fleet.errors import InvalidInput

SECRET = "hush"


@pytest.mark.parametrize("read", [parse_dsn, redacted, make_engine])
@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:pa@{SECRET}@127.0.0.1:1/x",  # the part after the first @ reads as a host
        f"postgresql://u:{SECRET}@h:port/x",
        f"mysql://u:{SECRET}@h/x",
        f"postgresql://u:{SECRET}@[::1/x",
        f"postgresql://u:{SECRET}@h",
        f"{SECRET}",
    ],
)
def test_an_unusable_address_is_refused_without_its_password(dsn, read):
    with pytest.raises(InvalidInput) as refused:
        read(dsn)
    assert SECRET not in f"{refused.value.message} {refused.value.hint}"


def test_a_password_is_hidden_wherever_it_stands():
    for dsn in (f"postgresql://u:{SECRET}@h/x", f"postgresql://h/x?user=u&password={SECRET}"):
        assert SECRET not in redacted(dsn)
