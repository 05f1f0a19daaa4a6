"""The policy editor: tiers, quotas and raw JSON over one draft kept in the browser's session.

The quota table gets a constant input and a fixed key, because a table fed its own output loses every
second edit. Nothing here writes to the database. Prevents: edits lost by a tick or a change of page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import streamlit as st

from control.queries_policy import Revision
from dashboard import components, drafts, policy_knob_forms, tables
from dashboard import viewmodels_policy as vm
from dashboard.drafts import Document, Review
from fleet.errors import InvalidPolicy
from fleet.outcomes import TIERS
from fleet.policy import default_policy, parse

KEPT = "policy_draft"


@dataclass
class Draft:
    """What is edited in this session. `number` changes when the document is replaced as a whole."""

    parent: int
    base: Document
    document: Document
    number: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)

    def key(self, name: str) -> str:
        """Return a widget's key: its own for each revision and each replacement."""
        return f"policy_{name}_{self.parent}_{self.number}"

    def replace(
        self, document: Document, *, parent: int | None = None, base: Document | None = None
    ) -> None:
        """Put another document under the widgets."""
        self.document = document
        self.parent = self.parent if parent is None else parent
        self.base = self.base if base is None else base
        self.number += 1


def draft_of(head: Revision | None) -> Draft:
    """Return the session's draft: the one begun, or the newest revision untouched."""
    kept: Draft | None = st.session_state.get(KEPT)
    document = head.document if head is not None else default_policy().as_document()
    parent = head.number if head is not None else 0
    if kept is None or (kept.document == kept.base and kept.parent != parent):
        number = kept.number + 1 if kept is not None else 0
        kept = Draft(parent, document if head is not None else {}, document, number)
        st.session_state[KEPT] = kept
    return kept


def discard(head: Revision | None) -> None:
    """Forget the draft."""
    kept: Draft = st.session_state[KEPT]
    document = head.document if head is not None else default_policy().as_document()
    kept.replace(document, parent=head.number if head else 0, base=head.document if head else {})


def move_to(head: Revision) -> None:
    """Make the draft's changes again on the newest revision."""
    kept: Draft = st.session_state[KEPT]
    moved = drafts.moved_to(head.document, kept.base, kept.document)
    kept.replace(moved, parent=head.number, base=head.document)


def edit(
    draft: Draft, head: Revision | None, *, why_not: str | None, shadow: Mapping[str, int] | None
) -> Review:
    """Draw the editor, keep what was typed in the draft, and return what publishing it would do."""
    problem: InvalidPolicy | None = None
    st.subheader("Tiers")
    draft.document = drafts.with_tiers(draft.document, _tier_values(draft, why_not))
    tiers_place = st.container()
    st.subheader("Tenants' quotas")
    try:
        draft.document = drafts.with_quotas(draft.document, _quota_values(draft, why_not))
    except InvalidPolicy as exc:
        problem = exc
    tenants_place = st.container()
    st.subheader("Limits")
    knobs = policy_knob_forms.limiter_values(draft.document, draft.key, why_not, shadow)
    with st.expander("Routing: which node, spot, failing nodes"):
        knobs |= policy_knob_forms.routing_values(draft.document, draft.key, why_not)
    draft.document = drafts.with_values(draft.document, knobs)
    found = drafts.review(draft.base, draft.document, head.document if head else {})
    if problem is not None:
        found = Review(found.changes, problem, None)
    for place, section in ((tiers_place, "tiers"), (tenants_place, "tenants"), (st.container(), "")):
        said = vm.problem_for(found.problem, section)
        if said is not None:
            place.error(said, title="Not valid")
    _raw(draft, why_not)
    return found


def _tier_values(draft: Draft, why_not: str | None) -> dict[tuple[str, str], Any]:
    values: dict[tuple[str, str], Any] = {}
    for column, tier in zip(st.columns(len(TIERS)), TIERS, strict=True):
        kept = draft.document["tiers"][tier]
        with column.container(border=True):
            st.markdown(f"**{tier.replace('_', '-')}**")
            values[tier, "weight"] = st.number_input(
                vm.TIER_FIELDS["weight"],
                min_value=1,
                max_value=98,
                step=1,
                value=int(kept["weight"]),
                key=draft.key(f"{tier}_weight"),
                disabled=why_not is not None,
                help="Share of dispatched tokens while every tier waits. The three sum to 100.",
            )
            values[tier, "queue_timeout_s"] = st.number_input(
                vm.TIER_FIELDS["queue_timeout_s"],
                min_value=0.05,
                max_value=600.0,
                step=0.5,
                value=float(kept["queue_timeout_s"]),
                key=draft.key(f"{tier}_timeout"),
                disabled=why_not is not None,
                help="A request that cannot start within this time is refused with 429.",
            )
            values[tier, "max_queued_requests"] = st.number_input(
                vm.TIER_FIELDS["max_queued_requests"],
                min_value=1,
                max_value=100_000,
                step=1,
                value=int(kept["max_queued_requests"]),
                key=draft.key(f"{tier}_bound"),
                disabled=why_not is not None,
                help="Bound of this tier's queue at one gateway.",
            )
    st.caption(vm.weights_text({tier: values[tier, "weight"] for tier in TIERS}))
    return values


def _quota_values(draft: Draft, why_not: str | None) -> list[dict[str, Any]]:
    key = draft.key("quotas")
    if key not in st.session_state:  # first sight, or back from another page
        draft.rows = drafts.quota_rows(draft.document)
    frame = pd.DataFrame(draft.rows, columns=list(tables.TENANTS))
    for name in drafts.WHOLE_FIELDS:
        frame[name] = frame[name].astype("Int64")
    for name in set(tables.TENANTS) - drafts.WHOLE_FIELDS:
        frame[name] = frame[name].astype("object")
    edited = st.data_editor(
        frame,
        key=key,
        column_config=tables.TENANTS,
        num_rows="fixed" if why_not else "dynamic",
        disabled=why_not is not None,
        hide_index=True,
        placeholder="",
    )
    st.caption(
        "A new tenant is a new last row. Quotas are of the whole fleet of gateways. Weight, budget to "
        "the right."
    )
    plain = edited.astype(object).where(edited.notna(), None)
    return [{str(k): v for k, v in row.items()} for row in plain.to_dict("records")]


def _raw(draft: Draft, why_not: str | None) -> None:
    with st.expander("Everything as JSON: admission, retry-after, objectives and all above"):
        text = st.text_area(
            "Policy document",
            value=vm.as_text(draft.document),
            height=360,
            key=draft.key(f"json_{hash(vm.as_text(draft.document))}"),
            disabled=why_not is not None,
        )
        if st.button("Take this JSON into the draft", disabled=why_not is not None, help=why_not):
            try:
                document = parse(text or "").as_document()
            except InvalidPolicy as exc:
                components.failure(exc, title="Not valid")
                return
            draft.replace(json.loads(json.dumps(document)))
            st.rerun()
