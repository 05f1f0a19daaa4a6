"""Signs requests to S3-compatible services: AWS Signature Version 4 in the Authorization header.

Pure: the secret goes in, never out. Source: Amazon S3 API Reference, "Authenticating Requests: Using the
Authorization Header" (its examples are our test vectors). Prevents: a key sent in clear, and a request that
could be changed or replayed on the way.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Key:
    """Who asks. The secret does not show in `repr`."""

    access: str
    secret: str = field(repr=False)
    region: str = "us-east-1"


def path_of(text: str) -> str:
    """Return a path as it is signed and sent: every byte escaped but / and unreserved ones."""
    return quote(text, safe="/-_.~")


def signed_headers(
    key: Key,
    method: str,
    host: str,
    path: str,
    headers: Mapping[str, str],
    payload_sha256: str,
    now: datetime,
) -> dict[str, str]:
    """Return all headers to send: `headers`, Host, x-amz-date, x-amz-content-sha256, Authorization.

    `path` is escaped already (`path_of`); there is no query. `payload_sha256` is of the body, hex.
    """
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    given = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    given |= {"host": host, "x-amz-content-sha256": payload_sha256, "x-amz-date": stamp}
    names = sorted(given)
    listed = ";".join(names)
    lines = [method, path, "", *(f"{name}:{given[name]}" for name in names), "", listed, payload_sha256]
    scope = f"{stamp[:8]}/{key.region}/s3/aws4_request"
    request = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    to_sign = "\n".join((_ALGORITHM, stamp, scope, request))
    signing_key = f"AWS4{key.secret}".encode()
    for part in scope.split("/"):
        signing_key = hmac.digest(signing_key, part.encode(), "sha256")
    signature = hmac.new(signing_key, to_sign.encode(), hashlib.sha256).hexdigest()
    proof = f"{_ALGORITHM} Credential={key.access}/{scope},SignedHeaders={listed},Signature={signature}"
    return given | {"authorization": proof}
