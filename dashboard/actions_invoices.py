"""What the Spend page changes about invoices: import one, say what a label is.

Prevents: an import by the page that is checked less than one by command.
"""

from __future__ import annotations

from control import invoices
from control.invoice_files import InvoiceFile
from control.invoices import Imported, Rate
from dashboard.actions import change
from fleet.invoice_columns import FileMapping


def import_invoice(
    body: bytes,
    file: InvoiceFile,
    *,
    provider: str,
    month: str,
    rate: Rate,
    given: FileMapping,
    file_name: str,
    note: str,
) -> Imported:
    """Make a file the provider's invoice of a month."""
    return change(
        lambda session, actor, now: invoices.import_invoice(
            session,
            body,
            file,
            provider=provider,
            month=month,
            rate=rate,
            given=given,
            file_name=file_name,
            actor=actor,
            now=now,
            note=note,
        )
    )


def assign_label(provider: str, label: str, node_class: str) -> None:
    """Say what node class a provider's label is."""
    change(
        lambda session, actor, now: invoices.assign_labels(
            session, provider, {label: node_class}, actor=actor, now=now
        )
    )
