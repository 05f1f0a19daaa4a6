"""A record written from its parts is the record: whatever the names hold, read back it says the same."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from admission.usage_json import UsageForms, draft_json, record_json, sent_json
from fleet.messages import UsageRecord
from fleet.outcomes import Outcome, Tier

NAMES = st.text(st.characters(codec="utf-8"), max_size=12)
COUNTS = st.integers(0, 2**31)
SECONDS = st.floats(0, 1e9, allow_nan=False, allow_infinity=False)


@given(st.tuples(NAMES, NAMES, NAMES, NAMES, NAMES), st.sampled_from(Tier), st.sampled_from(Outcome),
       st.tuples(COUNTS, COUNTS, COUNTS), st.none() | COUNTS, st.booleans(),
       st.tuples(SECONDS, SECONDS, SECONDS), st.none() | SECONDS)  # fmt: skip
def test_a_record_reads_back_as_what_went_in(
    names: tuple[str, str, str, str, str],
    tier: Tier,
    outcome: Outcome,
    tokens: tuple[int, int, int],
    cached: int | None,
    is_exact: bool,
    seconds: tuple[float, float, float],
    ttft_s: float | None,
) -> None:
    forms = UsageForms()
    tenant, key_id, model, node, pool = names
    for _ in range(2):  # the second time from what was kept
        kept = forms.names(tenant, key_id, model, "chat", node, pool, tier)
        sent = sent_json(kept, "req-0123", seconds[0])
        draft = draft_json(sent, tokens[0], tokens[1])
        body = record_json(
            sent,
            tokens[0],
            tokens[1],
            7,
            outcome,
            cached,
            tokens[2],
            is_exact,
            ttft_s,
            seconds[1],
            seconds[2],
        )
        read = UsageRecord.model_validate(json.loads(body))
        assert b"\n" not in body  # a record is a line of the spool
        assert read == UsageRecord(
            seq=7, request_id="req-0123", tenant=tenant, key_id=key_id, tier=tier, model=model,
            endpoint="chat", node=node, pool=pool, outcome=outcome, prompt_tokens=tokens[0],
            cached_tokens=cached, output_tokens=tokens[2], exact=is_exact, reserved_tokens=tokens[1],
            queued_s=seconds[0], ttft_s=ttft_s, engine_s=seconds[1], finished_at_s=seconds[2],
        )  # fmt: skip
        assert json.loads(draft).keys() < json.loads(body).keys()  # what the journal notes is a part of it
