"""The entry script: who is here, the navigation, the strip on top of every page, then the page.

Runs once for every click of every session. Prevents: a page shown to nobody in particular, and filters that
vanish with the page they were set on.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboard import access, components, data, data_alerts, dialogs, recovery, state
from dashboard import viewmodels_alerts as alerts
from dashboard.routes import SIGN_IN_PATH
from dashboard.viewmodels import ALERTS_PAGE
from dashboard.viewmodels_frame import stale_after, who
from fleet.errors import FleetError

PAGES = Path(__file__).parent / "app_pages"


def page(name: str, title: str, icon: str, *, is_default: bool = False) -> st.Page:
    """Return the page of a file; its address is the file's name, the default page's is `/`."""
    return st.Page(PAGES / f"{name}.py", title=title, icon=icon, default=is_default)


def navigation() -> st.Page:
    """Return the page that was asked for, and draw the menu."""
    return st.navigation(
        {
            "Operate": [
                page("fleet", "Fleet", ":material/monitoring:", is_default=True),
                page("alerts", "Alerts", ":material/notifications:"),
                page("diagnosis", "Diagnosis", ":material/troubleshoot:"),
                page("node", "Node", ":material/memory:"),
                page("flow", "Flow", ":material/balance:"),
                page("nodes", "Nodes", ":material/dns:"),
                page("data_quality", "Data quality", ":material/fact_check:"),
            ],
            "Control": [
                page("policy", "Policy", ":material/tune:"),
                page("rollout", "Rollout", ":material/rocket_launch:"),
                page("audit", "Audit", ":material/history:"),
            ],
            "Cost": [
                page("estimates", "Estimates", ":material/calculate:"),
                page("strategies", "Strategies", ":material/compare_arrows:"),
                page("sizing", "Sizing", ":material/straighten:"),
                page("disciplines", "Disciplines", ":material/reorder:"),
                page("goodput", "Goodput", ":material/speed:"),
            ],
            "Months": [
                page("spend", "Spend", ":material/payments:"),
                page("month_close", "Month close", ":material/lock_clock:"),
                page("budgets", "Budgets", ":material/savings:"),
            ],
        }
    )


def choose(label: str, options: list[str], key: str, default: str, icons: dict[str, str]) -> None:
    """Draw one filter of the strip, kept in the address."""
    st.segmented_control(
        label,
        options,
        key=key,
        default=default,
        required=True,
        bind="query-params",
        label_visibility="collapsed",
        format_func=lambda option: icons.get(option, option),
    )


def strip(person: access.Person) -> None:
    """Draw the strip: freshness, zone, range, live or paused, who is signed in."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="strip"):
        choose("Range", list(state.RANGES), "range", state.DEFAULT_RANGE, {})
        choose("Times in", ["UTC", "local"], "tz", "UTC", {"local": "Local"})
        choose("Updates", ["live", "paused"], "live", "live", {"live": "Live", "paused": "Paused"})
        st.toggle("Events", value=True, key="events", bind="query-params")
        chosen = state.filters()

        def beat() -> None:
            person_now = access.look_up(is_active=False)
            if person_now is None:
                st.rerun()
            pulse = data.pulse()
            components.freshness(
                pulse, data.now(), paused=not chosen.is_live, stale_after_s=stale_after(pulse.value)
            )
            counted = data_alerts.count()
            found = counted.value if counted.problem is None else None  # what was open then may be over
            st.page_link(
                ALERTS_PAGE,
                label=alerts.badge(found),
                icon=alerts.badge_icon(found),
                help=alerts.badge_help(found),
            )
            recovery.again_if_due(data.now(), is_away=pulse.problem is not None)

        components.live(beat, chosen.tick_s())
        if not chosen.is_live:
            components.live(wait_for_data, state.TICK_S)
        st.space("stretch")
        with st.container(width="content", gap=None):
            st.markdown(
                f":small[{who(person.name, person.role, signed_in=person.signed_in)}]", width="content"
            )
            if person.signed_in:
                st.button("Sign out", key="sign_out", type="tertiary", on_click=access.sign_out)


def wait_for_data() -> None:
    """Draw the page again once the database answers, if it lacks something."""
    recovery.again_if_due(data.now(), is_away=data.pulse().problem is not None)


def main() -> None:
    """Draw the page that was asked for, for whoever asks."""
    st.set_page_config(page_title="Rhodeck", page_icon="\u03c1", layout="wide")
    components.style()
    recovery.begin()
    dialogs.forget()
    try:
        asked = navigation()
        person = access.look_up(is_active=True)
        if person is None:
            st.info("You are signed out.")
            components.go(SIGN_IN_PATH)
            return
        strip(person)
        state.show_flash()
        if not person.is_checked:
            st.warning(
                "The database is away: the pages show what was last known, and nothing can be changed."
            )
        asked.run()
    except FleetError as exc:
        components.failure(exc, title="Rhodeck cannot show this page")
        recovery.note()
        components.live(wait_for_data, state.TICK_S)
    finally:
        recovery.end()


main()
