"""Where an estimate's inputs can come from besides defaults: the fleet's measurements, its record, a file.

Prevents: a measured number under a default's name, and an upload read before its size is known.
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from control.estimate_inputs import Measured
from control.rate_profile_uploads import MAX_UPLOAD_MB
from control.roles import Permission
from control.upload_reading import UploadReader
from dashboard import access, actions_estimates, comparison_inputs, components, data, data_estimates, state
from dashboard import tables_estimates as tables
from dashboard import viewmodels_comparison as vm
from fleet.errors import FleetError

DAYS = 7


def traffic_panel() -> None:
    """Draw what the fleet measured, and the ways to bring a traffic."""
    reading = data_estimates.measured()
    if components.problem(reading, data.now(), state.filters().zone) or reading.value is None:
        return
    components.table(vm.measured_rows(reading.value), tables.MEASURED, key="measured")
    person = access.look_up(is_active=False)
    why = None if person is None else person.may_not(Permission.RUN_ESTIMATES)
    left, middle, right = components.places(3, min_px=250)
    known = [one for one in reading.value if isinstance(one, Measured)]
    if left.button(
        "Use what was measured", icon=":material/sensors:", key="use_measured", disabled=not known
    ):
        comparison_inputs.take(known)
        st.rerun()
    if middle.button(
        f"Use the gateways' last {DAYS} days",
        icon=":material/history:",
        key="use_recorded",
        disabled=why is not None,
        help=why or "Keeps the arrivals, so that the link shows the same traffic next month",
    ):
        _use(lambda: actions_estimates.keep_recorded(DAYS))
    file = right.file_uploader(
        "Or a trace: CSV, CSV.gz, Parquet",
        type=["csv", "gz", "parquet"],
        key="compare_file",
        max_upload_size=MAX_UPLOAD_MB,
        disabled=why is not None,
        help=why or "Columns t_s; t_s and rate_rps; or bin and rate_rps",
    )
    if file is not None and st.session_state.get("compare_file_kept") != file.file_id:
        st.session_state["compare_file_kept"] = file.file_id
        _use(lambda: _keep(file.name, file.getvalue()))


@st.cache_resource(show_spinner=False)
def _reader() -> UploadReader:
    """Where uploads of this process are read."""
    return UploadReader()


def _keep(name: str, body: bytes) -> str:
    """Read an upload in a process of its own, showing how far it is; a page that is left ends it."""
    bar = st.progress(0.0, text="Reading the file")

    def told(done: int, of: int) -> None:
        bar.progress(vm.part(done, of), text=vm.reading_text(done, of))

    profile = _reader().read(name, body, f"file {name}", told)
    bar.empty()
    return actions_estimates.keep(profile)


def _use(kept: Callable[[], str]) -> None:
    try:
        name = kept()
    except FleetError as exc:
        components.failure(exc, title="This traffic cannot be used")
        return
    comparison_inputs.take_traffic(name)
    st.rerun()
