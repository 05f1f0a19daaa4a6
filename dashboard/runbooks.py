"""Runbooks as the Alerts page shows them: our own Markdown, its links turned into the page's.

Prevents: an operator at night who is told the path of a file in a repository.
"""

from __future__ import annotations

import re
from pathlib import Path

from fleet.alert_rules import RULES

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "runbooks"
_LINK = re.compile(r"\]\((\w+)\.md\)")


def runbook(rule: str) -> str | None:
    """Return the Markdown of a rule's runbook; None for a rule there is not, or where docs are missing."""
    if rule not in RULES:
        return None
    try:
        text = (FOLDER / f"{rule}.md").read_text(encoding="utf-8")
    except OSError:
        return None
    return _LINK.sub(r"](/alerts?runbook=\1)", text).replace("\n## ", "\n### ")
