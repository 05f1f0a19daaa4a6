"""Has every gateway taken the newest policy, and if not, why?"""

from __future__ import annotations

import streamlit as st

from dashboard import components, data, dialogs, state, tables
from dashboard import viewmodels_rollout as vm
from dashboard.rollout_controls import rollout_controls

st.title("Rollout")
chosen = state.filters()
drawn = vm.stage(data.rollout().value)


def live() -> None:
    """Draw everything that moves, every two seconds."""
    at = data.now()
    found = data.rollout()
    if components.problem(found, at, chosen.zone) or found.value is None:
        return
    now = found.value
    if vm.stage(now) != drawn and not dialogs.is_open():
        st.rerun()  # the buttons below are those of another stage
    old_s = vm.old_s(found, at)
    components.cards(vm.cards(now, at, chosen.zone), is_last_known=old_s is not None)
    said = vm.reason(now.rollout)
    if said:
        st.caption(said)
    st.subheader("Gateways")
    if not now.gateways:
        st.markdown("No gateway is registered. Add one: `rhodeck gateways add NAME URL`.")
        return
    if (together := vm.group_words(now.gateways)) is not None:
        st.markdown(together)
    components.table(vm.gateway_rows(now.gateways, old_s=old_s), tables.GATEWAYS, key="gateways")
    if whys := vm.why_lines(now.gateways):
        components.lines(whys)
    st.caption(
        "Each pair is what the gateway said it runs / what it should run. Queued: interactive / batch / "
        "best-effort. A condition is the gateway's newest word, never what was sent to it."
    )
    prompts = vm.prompt_rows(now.gateways)
    if prompts["model"]:
        st.subheader("Prompt estimates")
        components.table(prompts, tables.PROMPTS, key="prompts")
        st.caption(
            "What the gate takes a prompt to be before an engine counts it: its bytes by this ratio, or "
            "exact where a tokenizer is configured. Far off: configure one (docs/gateway.md)."
        )


components.live(live, chosen.tick_s(fast=True))
newest = data.rollout().value
if newest is not None:
    st.subheader("Steer")
    rollout_controls(newest.rollout)
    st.page_link("app_pages/policy.py", label="Policy: edit or roll back")
