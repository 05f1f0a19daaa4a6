"""A slow reader of exposition lines, written character by character from the specification.

It shares nothing with the product's reader and serves as its oracle. One line in, (name, labels, value)
out, or None when the line is not a sample by the rules of Prometheus text 0.0.4 or OpenMetrics 1.0.
"""

from __future__ import annotations

import string

_NAME_START = set(string.ascii_letters + "_:")
_NAME = _NAME_START | set(string.digits)
_LABEL_START = set(string.ascii_letters + "_")
_LABEL = _LABEL_START | set(string.digits)
_NUMBER = set(string.digits + "+-.eE")


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def blanks(self) -> int:
        start = self.at
        while self.peek() and self.peek() in " \t":
            self.at += 1
        return self.at - start

    def word(self, first: set[str], rest: set[str]) -> str | None:
        start = self.at
        if self.peek() not in first or not self.peek():
            return None
        while self.peek() and self.peek() in rest:
            self.at += 1
        return self.text[start : self.at]

    def quoted(self) -> str | None:
        if self.peek() != '"':
            return None
        self.at += 1
        out: list[str] = []
        while self.peek():
            char = self.peek()
            self.at += 1
            if char == '"':
                return "".join(out)
            if char == "\\":
                after = self.peek()
                self.at += 1
                if after == "":
                    return None
                out.append({"n": "\n", '"': '"', "\\": "\\"}.get(after, "\\" + after))
            else:
                out.append(char)
        return None


def read_sample(line: str) -> tuple[str, dict[str, str], float] | None:
    scan = _Scanner(line.rstrip("\r"))
    scan.blanks()
    name = scan.word(_NAME_START, _NAME)
    if name is None:
        return None
    spaced = scan.blanks() > 0
    labels: dict[str, str] = {}
    if scan.peek() == "{":
        read = _labels(scan)
        if read is None:
            return None
        labels = read
        scan.blanks()
    elif not spaced:
        return None
    words: list[str] = []
    while scan.peek() and scan.peek() != "#":
        start = scan.at
        while scan.peek() and scan.peek() not in " \t#":
            scan.at += 1
        words.append(scan.text[start : scan.at])
        scan.blanks()
    if scan.peek() == "#":
        scan.at += 1
        scan.blanks()
        if scan.peek() != "{":
            return None
    if len(words) not in (1, 2):
        return None
    values = [_number(word) for word in words]
    if any(value is None for value in values) or values[0] is None:
        return None
    return name, labels, values[0]


def _labels(scan: _Scanner) -> dict[str, str] | None:
    scan.at += 1
    labels: dict[str, str] = {}
    while True:
        scan.blanks()
        if scan.peek() == "}":
            scan.at += 1
            return labels
        name = scan.word(_LABEL_START, _LABEL)
        scan.blanks()
        if name is None or name in labels or scan.peek() != "=":
            return None
        scan.at += 1
        scan.blanks()
        value = scan.quoted()
        if value is None:
            return None
        labels[name] = value
        scan.blanks()
        if scan.peek() == ",":
            scan.at += 1
        elif scan.peek() != "}":
            return None


def _number(word: str) -> float | None:
    if word.lower().lstrip("+-") in {"inf", "infinity", "nan"} and len(word.lstrip("+-")) >= len(word) - 1:
        return float(word)
    if not word or not set(word) <= _NUMBER:
        return None
    try:
        return float(word)
    except ValueError:
        return None
