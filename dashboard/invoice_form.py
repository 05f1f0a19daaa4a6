"""Uploading a provider's invoice: how it would be read is shown before it counts.

Prevents: a file imported by a guess nobody saw.
"""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from control.day_spend import zone_named
from control.invoice_files import InvoiceFile, read_invoice
from control.invoices import Rate, checked_provider, rate_of
from control.roles import Permission
from dashboard import access, actions_invoices, components, data_reconciliation, state, words
from dashboard import tables_reconciliation as tables
from dashboard import viewmodels_reconciliation as vm
from fleet.errors import FleetError
from fleet.invoice_columns import ROLES, FileMapping, checked_options

#: Larger files go by command line.
MAX_UPLOAD_MB = 20
_TOLD = "told from the file"


def invoice_form(month: str) -> None:
    """Draw the upload, how it would be read, and the import."""
    why_not = access.may_not(Permission.CLOSE_MONTHS)
    if why_not:
        st.caption(words.plain(why_not))
    off = why_not is not None
    first, second, third = components.places(3, min_px=220)
    provider = first.text_input("Provider", key="invoice_provider", disabled=off, max_chars=60)
    uploaded = second.file_uploader(
        "Invoice, a CSV",
        type=["csv", "txt"],
        key="invoice_file",
        max_upload_size=MAX_UPLOAD_MB,
        disabled=off,
    )
    note = third.text_input("Note", key="invoice_note", disabled=off, max_chars=300)
    if off or uploaded is None or not (provider or "").strip():
        return
    name, body = (provider or "").strip(), uploaded.getvalue()
    try:
        saved = data_reconciliation.saved_mapping(checked_provider(name)).value or FileMapping()
        given = _given(saved)
        file = read_invoice(body, given)
        rate = _rate(file)
    except FleetError as exc:
        components.failure(exc, title="The file cannot be imported like this")
        return
    components.table(vm.read_rows(file), tables.READ, key="invoice_read")
    st.markdown(vm.read_text(file))
    if st.button(f"Import as the invoice of {month}", type="primary", key="invoice_import"):
        try:
            made = actions_invoices.import_invoice(
                body,
                file,
                provider=name,
                month=month,
                rate=rate,
                given=given,
                file_name=uploaded.name,
                note=note or "",
            )
        except FleetError as exc:
            components.failure(exc)
            return
        state.flash(
            f"{name}'s invoice of {month} is imported."
            if made.is_new
            else "This very file was imported before; nothing was changed."
        )
        st.rerun()


def _given(saved: FileMapping) -> FileMapping:
    with st.expander("How the file is written", icon=":material/tune:"):
        columns = components.places(len(ROLES), min_px=150)
        named = {
            role: (place.text_input(f"Column of {role}", key=f"invoice_{role}") or "").strip()
            for role, place in zip(ROLES, columns, strict=True)
        }
        first, second, third = components.places(3, min_px=150)
        zone = first.text_input("Zone of its days", key="invoice_zone", placeholder=saved.zone)
        decimal = second.selectbox("Before decimals", [_TOLD, ".", ","], key="invoice_decimal")
        dates = third.selectbox("Days", [_TOLD, "ymd", "mdy", "dmy"], key="invoice_dates")
        st.caption("Columns left empty are found by their names, or as last time; - means there is none.")
    mark, order = checked_options(None if decimal == _TOLD else decimal, None if dates == _TOLD else dates)
    if (zone or "").strip():
        zone_named((zone or "").strip())
    return replace(
        saved,
        **{role: column for role, column in named.items() if column},
        zone=(zone or "").strip() or saved.zone,
        decimal=mark or saved.decimal,
        dates=order or saved.dates,
    )


def _rate(file: InvoiceFile) -> Rate:
    if file.currency in ("", "USD"):
        return rate_of(file, None, None, "")
    first, second = components.places(2, min_px=200)
    usd = first.text_input(f"USD for one {file.currency}", key="invoice_rate")
    source = second.text_input("Rate from", key="invoice_rate_source", placeholder="ECB, 30 November 2026")
    return rate_of(file, None, usd or None, source or "")
