"""Forms of the nodes page: add a node, add a source, pause and remove sources.

Each says who may use it; commands check again. Prevents: a form that loses what was typed in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from control.discovery_settings import MODELS
from control.queries_discovery import SourceView
from control.roles import Permission
from dashboard import access, actions_nodes, components, state, words
from dashboard.dialogs import dialog
from fleet.errors import FleetError
from fleet.messages import PRICE_CLASSES

#: Kind -> the settings its form asks for: (setting, label, example).
FIELDS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "file": (("path", "File on the controller's machine", "/etc/rhodeck/nodes.json"),),
    "http_sd": (
        ("url", "Address that answers", "http://sd.example.org/nodes"),
        ("token_file", "File with a bearer token (empty: none)", "/run/secrets/sd-token"),
    ),
    "dns_srv": (("service", "SRV name", "_vllm._tcp.example.org"),),
    "kubernetes": (
        ("namespace", "Namespace", "serving"),
        ("selector", "Labels of EndpointSlices", "kubernetes.io/service-name=vllm"),
        ("port", "Port, by name or number (empty: the first)", "http"),
    ),
}


def _why_not() -> str | None:
    why_not = access.may_not(Permission.MANAGE_FLEET)
    if why_not:
        st.caption(words.plain(why_not))
    return why_not


def node_form(pools: Sequence[str]) -> None:
    """Draw the form that adds a node."""
    why_not = _why_not()
    off = why_not is not None or not pools
    if not pools:
        st.caption("There is no pool yet: `rhodeck pools add NAME --model MODEL`.")
    with st.form("new_node", border=True):
        first, second, third, fourth = components.places(4, min_px=200)
        name = first.text_input("Name", disabled=off, key="new_node_name", max_chars=63)
        url = second.text_input("Address, http://host:port", disabled=off, key="new_node_url")
        pool = third.selectbox("Pool", pools, disabled=off, key="new_node_pool")
        price = fourth.selectbox("Price class", PRICE_CLASSES, disabled=off, key="new_node_price")
        path = st.text_input("Metrics path", "/metrics", disabled=off, key="new_node_path")
        if not st.form_submit_button("Add node", disabled=off, help=why_not):
            return
    try:
        actions_nodes.add_node(
            name=name or "", url=url or "", pool=pool or "", price_class=price, metrics_path=path or ""
        )
    except FleetError as exc:
        components.failure(exc)
        return
    state.flash(f"Node {name} is added; the next round asks it.")
    st.rerun()


def source_form(pools: Sequence[str]) -> None:
    """Draw the form that adds a discovery source."""
    why_not = _why_not()
    off = why_not is not None or not pools
    kind = st.segmented_control("Kind", list(MODELS), default="file", required=True, key="source_kind")
    with st.form("new_source", border=True):
        first, second, third = components.places(3, min_px=200)
        name = first.text_input("Name", disabled=off, key="source_name", max_chars=63)
        pool = second.selectbox("Pool of its nodes", pools, disabled=off, key="source_pool")
        rule = third.text_input(
            "Node names (empty: the usual rule)",
            disabled=off,
            key="source_rule",
            placeholder="{host} or {label_pod}",
        )
        settings = _settings(kind or "file", off)
        first, second, third = components.places(3, min_px=200)
        interval = first.number_input("Ask every, s", 2.0, 86_400.0, 30.0, disabled=off, key="source_every")
        grace = second.number_input(
            "Remove missing nodes after, s", 0.0, 2_592_000.0, 600.0, disabled=off, key="source_grace"
        )
        gpu = third.number_input(
            "Port of the GPU exporter (0: none)", 0, 65_535, 0, disabled=off, key="source_gpu"
        )
        if not st.form_submit_button("Add source", disabled=off, help=why_not):
            return
    try:
        actions_nodes.add_source(
            name or "",
            kind or "file",
            settings,
            pool=pool or "",
            name_rule=(rule or "").strip() or None,
            interval_s=interval,
            grace_s=grace,
            gpu_port=gpu or None,
        )
    except FleetError as exc:
        components.failure(exc)
        return
    state.flash(f"Source {name} is added; the controller asks it within seconds.")
    st.rerun()


def _settings(kind: str, off: bool) -> dict[str, Any]:
    fields = FIELDS[kind]
    places = components.places(len(fields), min_px=240)
    typed = {
        setting: place.text_input(label, disabled=off, key=f"source_{kind}_{setting}", placeholder=example)
        for place, (setting, label, example) in zip(places, fields, strict=True)
    }
    return {setting: text.strip() for setting, text in typed.items() if text and text.strip()}


def source_actions(sources: Sequence[SourceView]) -> None:
    """Draw what can be done with one source."""
    why_not = access.may_not(Permission.MANAGE_FLEET)
    off = why_not is not None
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox("Source", [s.name for s in sources], key="source_chosen", width=240)
        chosen = next(s for s in sources if s.name == name)
        is_paused = chosen.state == "paused"
        if st.button("Go on" if is_paused else "Pause", key="source_pause", disabled=off, help=why_not):
            _do(
                lambda: actions_nodes.set_source_state(name, paused=not is_paused),
                f"Source {name}: recorded.",
            )
        if st.button("Remove source", key="source_remove", disabled=off, help=why_not):
            confirm_removal(name, chosen.nodes)


@dialog("Remove a source")
def confirm_removal(name: str, nodes: int) -> None:
    """Ask what becomes of its nodes, then remove a source."""
    removal_body(name, nodes)


def removal_body(name: str, nodes: int) -> None:
    """The dialog's content."""
    st.markdown(f"**{words.plain(name)}** is asked no more. It has {words.plural(nodes, 'node')}.")
    keep = st.checkbox("Keep its nodes, as if added by hand", value=True, key="source_keep")
    if st.button("Remove source", key="source_confirm", type="primary"):
        _do(
            lambda: actions_nodes.remove_source(name, with_nodes=not keep),
            f"Source {name} is removed; its nodes {'stay' if keep else 'are removed too'}.",
        )


def _do(act: Any, said: str) -> None:
    try:
        act()
    except FleetError as exc:
        components.failure(exc)
        return
    state.flash(said)
    st.rerun()
