"""Signature Version 4 as Amazon publishes it, with its own examples."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from control.s3_bucket import checked_bucket, checked_endpoint
from control.s3_signature import EMPTY_SHA256, Key, path_of, signed_headers
from fleet.errors import InvalidInput

#: Of the examples in Amazon S3 API Reference, "Signature Calculations for the Authorization Header".
KEY = Key("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
HOST = "examplebucket.s3.amazonaws.com"
AT = datetime(2013, 5, 24, tzinfo=UTC)
WELCOME_SHA256 = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
GET = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
PUT = "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"


def test_the_published_example_of_a_get() -> None:
    found = signed_headers(KEY, "GET", HOST, "/test.txt", {"Range": "bytes=0-9"}, EMPTY_SHA256, AT)
    assert found["authorization"].endswith(
        f"SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,Signature={GET}"
    )


def test_the_published_example_of_a_put() -> None:
    headers = {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"}
    path = path_of("/test$file.text")
    assert path == "/test%24file.text"
    found = signed_headers(KEY, "PUT", HOST, path, headers, WELCOME_SHA256, AT)
    assert found["authorization"].endswith(f"Signature={PUT}")


def test_the_stamp_is_utc_whatever_zone_the_clock_speaks() -> None:
    there = AT.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert signed_headers(KEY, "GET", HOST, "/", {}, EMPTY_SHA256, there) == signed_headers(
        KEY, "GET", HOST, "/", {}, EMPTY_SHA256, AT
    )


def test_the_secret_shows_nowhere() -> None:
    found = signed_headers(KEY, "GET", HOST, "/", {}, EMPTY_SHA256, AT)
    assert KEY.secret not in repr(KEY) + repr(found)


@pytest.mark.parametrize(
    "url",
    [
        "https://a..b",
        "https://" + "a" * 64 + ".example",
        "https://b\u00fcro.example",
        "s3://bucket",
        "https://",
        "host",
        "https://user:pass@host",
        "https://host/?x=1",
        "https://host#f",
        "https://host:99999",
        "file:///etc/passwd",
        "https://ho\nst",
    ],
)
def test_an_endpoint_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        checked_endpoint(url)


@pytest.mark.parametrize("name", ["", "ab", "Upper", "-a-", "a..b", "a/b", "a" * 64])
def test_a_bucket_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        checked_bucket(name)
