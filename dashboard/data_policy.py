"""What the Policy page asks about a draft: which requests would lose their last node by it.

Prevents: a draft that every gateway accepts and that takes a model out of service, published unseen.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from control.unserved_requests import lose_their_nodes
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps
from fleet.errors import InvalidPolicy
from fleet.policy import parse


def _unserved(session: Any, _of: Deps, _now: datetime, base: str, draft: str) -> list[str]:
    try:
        wanted = parse(draft)
    except InvalidPolicy:  # the review says what is wrong with it
        return []
    return lose_their_nodes(session, json.loads(base), wanted)


QUESTIONS["policy_unserved"] = _unserved


def unserved(base: dict[str, Any], draft: dict[str, Any]) -> Reading[list[str]]:
    """Which requests would lose their last node, in words."""
    said = (json.dumps(document, sort_keys=True) for document in (base, draft))
    return ask("policy_unserved", *said, is_brief=True)
