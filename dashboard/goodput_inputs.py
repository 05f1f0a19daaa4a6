"""The inputs of the Goodput page, kept in the address: an engine's curve or a typed one, mix, objectives.

Prevents: an advised rate whose inputs nobody can see, and one engine's curve with another's mix.
"""

from __future__ import annotations

import streamlit as st

from control.queries_goodput import FittedEngine
from dashboard import components, data_studies
from dashboard.viewmodels_goodput import Asked, kv_words, measured_words, names
from fleet.curve_fit import StepCurve
from fleet.goodput import EngineModel
from fleet.replay_outcomes import Objectives

_DEFAULT = StepCurve(0.014, 0.00065 + 22e-6 * 500 / 300, 12, 0.000253)


def asked(engines: list[FittedEngine]) -> Asked:
    """Draw the inputs and return them. Raises InvalidInput for what cannot be."""
    offered = names(engines)
    chosen = st.selectbox(
        "Step times of", list(offered), key="goodput_engine", bind="query-params", width=320
    )
    engine = offered.get(chosen or "")
    now = None if engine is None else data_studies.engine_today(engine.node).value
    if engine is not None:
        st.caption(measured_words(engine, now))
    place = engine.name if engine is not None else "typed"
    first, second, third = components.places(3, min_px=230)
    with first.container(border=True, height="stretch"):
        st.markdown("**Requests**")
        prompt = _real(
            "Prompt tokens, mean", "prompt", (engine and engine.prompt_tokens) or 500.0, 1.0, place
        )
        output = _real(
            "Output tokens, mean", "output", (engine and engine.output_tokens) or 300.0, 1.0, place
        )
        today = _real("Requests/s now (0: not known)", "now", (now and now.arrival_rate) or 0.0, 0.0, place)
    with second.container(border=True, height="stretch"):
        st.markdown("**Objectives**")
        ttft = _real("First token within, ms", "ttft_ms", 500.0, 1.0)
        itl = _real("Between tokens, ms (0: none)", "itl_ms", 0.0, 0.0)
        last = _real("Last token within, s (0: none)", "e2e_s", 0.0, 0.0)
        percent = _real("Of so many percent of requests", "percent", 95.0, 50.0, high=99.9)
    with third.container(border=True, height="stretch"):
        st.markdown("**Engine**")
        curve = _DEFAULT if engine is None else engine.curve
        if engine is None:
            curve = _typed()
        most_gamma = curve.slope_s * output / prompt * 1e6
        gamma = _real("Prompt token, us", "gamma_us", min(22.0, 0.999 * most_gamma), 0.0, place)
        slots = _real(
            "Sequences at once now", "slots", float((engine and engine.slots) or 64), 1.0, place, 4096
        )
        held = engine.kv_batch if engine is not None else None
        whose = place if held is not None else ""
        most = _real("Try up to, at once", "most", float(min(256, held or 256)), 1.0, whose, 4096)
        st.caption(kv_words(held))
    model = EngineModel(curve, prompt, output, gamma / 1e6, source=place)
    ttft_now = now.ttft_p95 if now is not None else None
    return Asked(
        model=model,
        objectives=Objectives(ttft / 1000, itl / 1000 if itl else None, last or None),
        quantile=percent / 100,
        most_batch=round(most),
        in_use=round(slots),
        today_rate=today or None,
        today_served=now.throughput if now is not None else None,
        today_ttft_s=None if ttft_now is None or ttft_now.too_few else ttft_now.estimate,
    )


def _typed() -> StepCurve:
    alpha = _real("Step, fixed part, ms (alpha)", "alpha_ms", 1000 * _DEFAULT.intercept_s, 0.001)
    slope = _real("A sequence adds, ms (m, with its prompts)", "m_ms", 0.687, 0.0)
    knee = _real("Knee, sequences (0: none)", "knee", 12.0, 0.0)
    past = _real("A sequence past the knee adds, ms", "m_past_ms", 0.94, 0.0)
    extra = past / 1000 - slope / 1000 if knee else 0.0
    return StepCurve(alpha / 1000, slope / 1000, knee or None, extra)


def _real(label: str, name: str, value: float, low: float, place: str = "", high: float = 1e9) -> float:
    """Draw one number, at first of four digits. `place`: whose it is, so that another brings its own."""
    key = f"goodput_{name}_{place}" if place and place != "typed" else f"goodput_{name}"
    shared = None if place and place != "typed" else "query-params"
    begin = float(f"{value:.4g}")
    found = st.number_input(label, float(low), float(high), begin, key=key, bind=shared, format="%g")
    return float(found or 0.0)
