"""Tenants' keys: make one (shown once), revoke one.

A new key lives only in the run that made it. Prevents: a key in a log, a session store or a screenshot of
a list.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from control.queries_policy import TenantKey
from control.roles import Permission
from dashboard import access, actions, components, state, tables, words
from dashboard import viewmodels_policy as vm
from dashboard.times import Zone
from fleet.errors import FleetError


def tenant_keys_panel(keys: Sequence[TenantKey], zone: Zone) -> None:
    """Draw the keys and what can be done with them."""
    why_not = access.current().may_not(Permission.MANAGE_TENANT_KEYS)
    if keys:
        components.table(vm.key_rows(keys, zone), tables.KEYS, key="tenant_keys")
    else:
        st.markdown("No tenant has a key yet; requests without one are refused.")
    if why_not:
        st.caption(words.plain(why_not))
    left, right = st.columns(2)
    with left.form("new_key", border=True):
        st.markdown("**New key**")
        tenant = st.text_input("Tenant", key="new_key_tenant", max_chars=63, disabled=why_not is not None)
        label = st.text_input(
            "Where it is used", key="new_key_label", max_chars=100, disabled=why_not is not None
        )
        if st.form_submit_button("Create key", disabled=why_not is not None, help=why_not):
            _create((tenant or "").strip(), label or "")
    with right.form("revoke_key", border=True):
        st.markdown("**Revoke a key**")
        in_force = [k.id for k in keys if k.revoked_at is None]
        chosen = st.selectbox(
            "Key", in_force, index=None, key="revoke_key_id", disabled=why_not is not None
        )
        if st.form_submit_button("Revoke", disabled=why_not is not None, help=why_not) and chosen:
            _revoke(chosen)


def _create(tenant: str, label: str) -> None:
    try:
        made = actions.create_key(tenant, label=label)
    except FleetError as exc:
        components.failure(exc)
        return
    st.success(
        f"Key {made.id} of tenant {made.tenant}. Copy it now: it is not stored and cannot be shown again."
    )
    st.code(made.secret, language=None)


def _revoke(key_id: str) -> None:
    try:
        actions.revoke_key(key_id)
    except FleetError as exc:
        components.failure(exc)
        return
    state.flash(f"Key {key_id} is revoked; gateways refuse it within seconds.")
    st.rerun()
