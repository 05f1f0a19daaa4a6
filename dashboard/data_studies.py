"""What the Disciplines and Goodput pages read: studies by the simulator, fitted engines, today's point.

A study runs once for its inputs, whoever asks, one at a time. Prevents: ten browsers that simulate the
same traffic ten times on the machine that serves them, and a page that stands still meanwhile.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import streamlit as st

from control.queries_goodput import FittedEngine, Today, fitted_engines, today
from control.study_process import StudyDesk
from dashboard.data import QUESTIONS, Reading, ask
from dashboard.deps import Deps
from fleet.clock import SystemClock


@st.cache_resource(show_spinner=False)
def desk() -> StudyDesk:
    """Where studies of this process are asked for."""
    return StudyDesk(SystemClock())


def _engines(session: Any, _of: Deps, _now: datetime) -> list[FittedEngine]:
    return fitted_engines(session)


def _today(session: Any, _of: Deps, now: datetime, node: str) -> Today:
    return today(session, node, now)


QUESTIONS["fitted_engines"] = _engines
QUESTIONS["goodput_today"] = _today


def engines() -> Reading[list[FittedEngine]]:
    """Every engine with a fitted curve."""
    return ask("fitted_engines")


def engine_today(node: str) -> Reading[Today]:
    """How a node stands now."""
    return ask("goodput_today", node)
