"""The part of the Strategies page where every request is simulated: ask, watch, cancel, compare.

Prevents: a page that waits for a month to be simulated.
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from control.comparison_documents import Comparable
from control.estimate_runs import Precision
from control.roles import Permission
from dashboard import access, actions_estimates, components, data, data_estimates, state
from dashboard import tables_estimates as tables
from dashboard import viewmodels_gate_days as gate_vm
from dashboard import viewmodels_simulation as vm
from fleet.comparison import Comparison
from fleet.engine_profile import H100_70B_FP8
from fleet.errors import FleetError

#: How every request is simulated: so many days through the gate, or none.
METHODS: dict[str, int | None] = {
    "One queue, 3 months": None,
    "Real gate, 1 day": 1,
    "7 days": 7,
    "30 days": 30,
}
#: What stands behind the gate: engines of a profile, or service times as drawn.
BEHIND: dict[str, str | None] = {"Engines": H100_70B_FP8.name, "Drawn service times": None}
TICK_S = 2.0


def simulation_panel(ready: Comparable, compared: Comparison) -> None:
    """Draw the panel; it draws itself again while something waits or runs."""
    names = list(METHODS)
    chosen = st.segmented_control("How", names, default=names[0], key="simulation_method")
    precision = _precision(METHODS[chosen or names[0]])
    first = data_estimates.simulations(ready, precision)
    is_open = bool(vm.open_runs(first.value or {}))
    components.live(lambda: _draw(ready, compared, precision), TICK_S if is_open else None)


def _precision(gate_days: int | None) -> Precision:
    if gate_days is None:
        return Precision()
    names = list(BEHIND)
    chosen = st.segmented_control(
        "Behind the gate",
        names,
        default=names[0],
        key="simulation_behind",
        help="Engines slow down as they fill, keep KV within their cache, and serve mu when full",
    )
    return Precision(replications=1, gate_days=gate_days, engine=BEHIND[chosen or names[0]])


def _draw(ready: Comparable, compared: Comparison, precision: Precision) -> None:
    reading = data_estimates.simulations(ready, precision)
    if components.problem(reading, data.now(), state.filters().zone) or reading.value is None:
        return
    hashes, found, now = data_estimates.run_hashes(ready, precision), reading.value, data.now()
    open_runs = vm.open_runs(found)
    silent_s = data_estimates.silence().value if open_runs else None
    if silent_s is not None:
        st.warning(vm.silence_line(silent_s))
    if precision.gate_days is None:
        st.caption(vm.summary(hashes, found, precision))
        components.table(
            vm.rows(compared, hashes, found, now), tables.METHODS, key="methods", more=tables.METHODS_MORE
        )
    else:
        st.caption(gate_vm.summary(ready.profile.month(), hashes, found, precision))
        rows = gate_vm.rows(compared, hashes, found, now)
        components.table(
            rows, tables.GATE_DAYS, key="gate_days", is_wrapped=True, more=tables.GATE_DAYS_MORE
        )
        tenants = gate_vm.tenant_rows(compared, hashes, found)
        if tenants["tenant"]:
            components.table(tenants, tables.GATE_TENANTS, key="gate_tenants")
    person = access.look_up(is_active=False)
    why = None if person is None else person.may_not(Permission.RUN_ESTIMATES)
    missing = [key for key in hashes.values() if key not in found or found[key].state in _AGAIN]
    left, right = components.two()
    if left.button(
        "Simulate every request",
        icon=":material/play_arrow:",
        key="simulate",
        disabled=why is not None or not missing,
        help=why or "In the background; the controller does it, one strategy after the other",
    ):
        _try(lambda: actions_estimates.simulate_all(ready, precision))
    if open_runs and right.button(
        "Cancel", icon=":material/stop:", key="cancel_runs", disabled=why is not None, help=why
    ):
        _try(lambda: [actions_estimates.cancel(run.id) for run in open_runs])


_AGAIN = ("cancelled", "failed")


def _try(work: Callable[[], object]) -> None:
    try:
        work()
    except FleetError as exc:
        components.failure(exc, title="Nothing was changed")
        return
    st.rerun()
