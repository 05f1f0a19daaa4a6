"""Whether a body reads the same everywhere: no key we count by stands twice, and it can be written again.

Sizes are bytes. What is looked for is rare, so each question is first asked in a way that costs little and
says no for nearly every body. Prevents: a body that we count one way and an engine another, and one nested
so deep that it is read and cannot be written.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

import orjson

from fleet.errors import InvalidInput

_LEVELS: Final = 240  # of nesting that every body may have
_FEW: Final = 8  # brackets of a kind
_COUNTED_KEYS = ("model", "max_tokens", "max_completion_tokens", "n", "best_of", "stream", "messages",
                 "prompt", "input", "max_output_tokens", "instructions")  # fmt: skip
_COUNTED: Final = {key: key.encode() for key in _COUNTED_KEYS}
_COUNTED_BYTES: Final = frozenset(_COUNTED.values())
_LONGEST_KEY: Final = max(map(len, _COUNTED_KEYS))
_LETTER_A: Final = ord("a")
_FEW_QUOTES: Final = 64
_counted_in: Final = re.compile(b'"(' + b"|".join(_COUNTED_BYTES) + b')"').findall
_BACKSLASH: Final = ord("\\")  # one byte is found ten times as fast as several
_PLAIN_ESCAPED: Final = re.compile(rb"\\u00(?:5[fF]|6[1-9a-fA-F]|7[0-9aA])")  # _ and a to z


def check_nesting(body: dict[str, Any], raw: bytes) -> None:
    """Raise InvalidInput for a body that is read and cannot be written again (orjson writes 254 levels)."""
    if _opens_few(raw) or raw.count(b"[") + raw.count(b"{") <= _LEVELS:
        return
    try:
        orjson.dumps([[[[body]]]])  # we put parts of it into others, a few levels down
    except orjson.JSONEncodeError as exc:
        raise InvalidInput(
            f"the body is nested more than about {_LEVELS} levels deep", hint="Send flatter values"
        ) from exc


def has_any(body: dict[str, Any], keys: frozenset[str]) -> bool:
    """Say whether a body has one of the keys."""
    return any(key in keys for key in body)  # compiled, a quarter of the time of `isdisjoint`


def is_flat(body: dict[str, Any]) -> bool:
    """Say whether it holds plain values and, if any, messages of plain values: then nothing is nested."""
    for key, value in body.items():
        if isinstance(value, dict) or (isinstance(value, list) and key != "messages"):
            return False
    messages = body.get("messages")
    if isinstance(messages, list):
        for message in cast("list[object]", messages):
            if isinstance(message, list):
                return False
            if isinstance(message, dict):
                for said in cast("dict[str, Any]", message).values():
                    if isinstance(said, (dict, list)):
                        return False
    return True


def _opens_few(raw: bytes) -> bool:
    """Say whether there are so few brackets that they need not be counted: half the time for most."""
    for bracket in (b"[", b"{"):
        found, at = 0, raw.find(bracket)
        while at >= 0:
            found += 1
            if found > _FEW:
                return False
            at = raw.find(bracket, at + 1)
    return True


def has_doubled_key(document: dict[str, Any], raw: bytes) -> bool:
    """Say whether a key we count by may stand twice; readers disagree on which one holds.

    Inside JSON strings quotes are escaped, so only real keys match (or a text equal to the key's name). A
    key that was written with escapes may hide another: nobody else escapes plain letters.
    """
    if _BACKSLASH in raw and b"\\u00" in raw and _PLAIN_ESCAPED.search(raw) is not None:
        return True
    found = _counted_keys(raw)
    for key in document:
        name = _COUNTED.get(key)
        if name is not None and found.count(name) != 1:
            return True
    return False


def _counted_keys(raw: bytes) -> list[bytes]:
    """Return each key we count by as often as it stands in quotes. A long text holds few of them."""
    parts = raw.split(b'"', _FEW_QUOTES)
    if len(parts) > _FEW_QUOTES:
        return _counted_in(raw)
    return [
        part
        for part in parts[1:-1]  # what stands between two keys begins with no letter
        if 0 < len(part) <= _LONGEST_KEY and part[0] >= _LETTER_A and part in _COUNTED_BYTES
    ]
