"""The replayed traffic keeps the trace's pattern, holds its rate, repeats, and refuses bad input."""

from itertools import islice, pairwise

import pytest

from fleet.errors import InvalidInput
from simfleet.traffic import TENANTS, TrafficSettings, arrivals, load_keys, load_trace

KEYS = {tenant.name: f"key-{tenant.name}" for tenant in TENANTS}


def test_the_packaged_trace_is_the_published_one():
    # provenance: 19,366 requests in about 58 minutes, mean 1,155 in and 211 out
    trace = load_trace()
    assert len(trace) == 19_366
    assert sum(row.input_tokens for row in trace) / len(trace) == pytest.approx(1155, abs=1)
    assert sum(row.output_tokens for row in trace) / len(trace) == pytest.approx(211, abs=1)


@pytest.mark.parametrize("rate", [5.0, 40.0])
def test_three_laps_hold_the_rate_and_never_go_back(rate):
    trace = load_trace()
    rows = list(islice(arrivals(trace, rate, seed=1), 3 * len(trace)))
    assert all(a.at_s <= b.at_s for a, b in pairwise(rows))
    assert rows[0].at_s == 0
    assert (len(rows) - 1) / rows[-1].at_s == pytest.approx(rate, rel=0.001)


def test_the_same_seed_starts_at_the_same_place_and_another_elsewhere():
    trace = load_trace()
    first, again, other = (list(islice(arrivals(trace, 9, seed), 50)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_scaling_keeps_bursts():
    # index of dispersion of counts is scale free: the same gaps, only shorter
    trace = load_trace()
    slow, fast = (list(islice(arrivals(trace, rate, seed=1), 2000)) for rate in (1.0, 10.0))
    assert [row.at_s for row in slow] == pytest.approx([row.at_s * 10 for row in fast])


def test_six_tenants_cover_three_tiers():
    assert sum(tenant.share for tenant in TENANTS) == pytest.approx(1)
    assert len(TENANTS) == 6
    assert {tenant.tier for tenant in TENANTS} == {"interactive", "batch", "best_effort"}


def test_a_missing_key_names_the_tenant_and_shows_no_key():
    keys = {name: key for name, key in KEYS.items() if name != "wonka-labs"}
    with pytest.raises(InvalidInput, match="wonka-labs") as caught:
        TrafficSettings(["http://127.0.0.1:1"], keys)
    assert "key-acme" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("changes", [{"rate": 0}, {"max_in_flight": 0}, {"gateways": ["localhost:8000"]}])
def test_settings_that_cannot_work_are_refused(changes):
    with pytest.raises(InvalidInput):
        TrafficSettings(**({"gateways": ["http://127.0.0.1:1"], "keys": KEYS} | changes))


def test_keys_come_from_file_or_environment_and_nothing_else(tmp_path):
    file = tmp_path / "keys.json"
    file.write_text('{"acme-chat": "a"}')
    assert load_keys(file, None) == load_keys(None, '{"acme-chat": "a"}') == {"acme-chat": "a"}
    for path, environment in (
        (None, None),
        (tmp_path / "none.json", None),
        (None, "secret"),
        (None, "[1]"),
    ):
        with pytest.raises(InvalidInput) as caught:
            load_keys(path, environment)
        assert "secret" not in caught.value.message
