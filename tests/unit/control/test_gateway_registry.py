"""Addresses an operator types are hostile until checked."""

from __future__ import annotations

import pytest

from control.gateway_registry import checked_origin
from fleet.errors import InvalidInput

GOOD = [
    ("http://127.0.0.1:8400", "http://127.0.0.1:8400"),
    ("http://10.0.0.7:8400/", "http://10.0.0.7:8400"),
    ("https://gw-1.internal", "https://gw-1.internal"),
    ("http://[::1]:8400", "http://[::1]:8400"),
]
BAD = [
    "",
    "gw-1:8400",
    "ftp://gw-1:21",
    "file:///etc/passwd",
    "http://",
    "http://user:secret@gw-1:8400",
    "http://gw-1:8400/admin",
    "http://gw-1:8400?x=1",
    "http://gw-1:8400#x",
    "http://gw-1:99999",
    "http://gw-1:port",
    "http://169.254.169.254",
    "http://[fe80::1]:80",
    "http://0.0.0.0:8400",
    "http://224.0.0.1:8400",
    "http://2852039166",  # 169.254.169.254 as one number
    "http://0xa9fea9fe",
    "http://gw 1:8400",
    "http://gw-1:8400\n",
    "http://gw-\u0131:8400",
    "http://" + "a" * 300,
]


@pytest.mark.parametrize(("url", "origin"), GOOD)
def test_an_origin_is_taken(url: str, origin: str) -> None:
    assert checked_origin(url) == origin


@pytest.mark.parametrize("url", BAD)
def test_what_is_not_a_plain_origin_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked_origin(url)
    assert caught.value.field == "url"
    assert "secret" not in caught.value.message
