"""Inputs of estimates as the fleet measured them, and traffic that is uploaded."""

from __future__ import annotations

import gzip
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy.orm import Session

from control.commands_policy import publish
from control.comparison_documents import read_comparison
from control.estimate_inputs import Measured, Unmeasured, measured_inputs
from control.rate_profile_files import bundled_profile
from control.rate_profile_uploads import uploaded_profile
from control.tables import (
    GatewaySampleRow,
    HealthRow,
    NodeRow,
    PoolRow,
    PriceRow,
    SampleRow,
    ScrapeFailureRow,
)
from fleet.errors import InvalidInput
from fleet.policy import default_policy
from fleet.readings import Reason
from tests.pages.fleet_rows import ADMIN, policy_document

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def test_an_empty_fleet_measured_nothing_and_says_why(session: Session) -> None:
    found = measured_inputs(session, NOW)
    assert all(isinstance(one, Unmeasured) for one in found)
    names = {one.name for one in found}
    assert names == {
        "mu",
        "tokens_in",
        "tokens_out",
        "tiers",
        "tenants",
        "weights",
        "burst_s",
        "cold_start_s",
        "price",
        "reserved_price",
        "spot_price",
    }


def health(node: str, at: datetime, mu: float) -> HealthRow:
    return HealthRow(
        at=at,
        scope="node",
        name=node,
        service_rate=mu,
        service_rate_low=mu - 0.5,
        service_rate_high=mu + 0.5,
    )


def test_node_speed_is_the_mean_of_the_newest_verdicts_with_their_band(session: Session) -> None:
    session.add(PoolRow(name="a", models=["m"], created_at=NOW))
    session.flush()
    for node in ("n1", "n2"):
        session.add(
            NodeRow(
                name=node,
                pool="a",
                base_url=f"http://{node}:8000",
                price_class="on_demand",
                state="active",
                created_at=NOW - timedelta(days=30),
            )
        )
    session.add_all(
        [
            health("n1", NOW - timedelta(minutes=20), 9.0),  # older
            health("n1", NOW - timedelta(minutes=1), 2.0),
            health("n2", NOW - timedelta(minutes=1), 4.0),
            health("n3", NOW - timedelta(hours=5), 99.0),  # too old to count
        ]
    )
    session.add_all(
        [
            PriceRow(
                price_class="on_demand",
                pool=None,
                usd_per_node_hour=Decimal(price),
                effective_from=at,
                source=source,
                created_by="fay",
                created_at=at,
            )
            for price, at, source in (
                ("30", NOW - timedelta(days=60), "contract 7"),
                ("31", NOW - timedelta(days=2), "contract 8"),
                ("99", NOW + timedelta(days=2), "not yet"),
            )
        ]
    )
    session.flush()
    found = {one.name: one for one in measured_inputs(session, NOW)}
    mu = found["mu"]
    assert isinstance(mu, Measured)
    assert (mu.value, mu.low, mu.high) == (3.0, 2.5, 3.5)
    assert "2 nodes" in mu.source
    assert "2026-11-29" in mu.source
    price = found["price"]
    assert isinstance(price, Measured)
    assert price.value == 31.0
    assert "contract 8" in price.source
    assert "2026-11-27" in price.source
    assert isinstance(found["spot_price"], Unmeasured)


def gateway_round(at: datetime, tenant: str, tier: str, offered: int) -> GatewaySampleRow:
    return GatewaySampleRow(
        at=at, gateway="gw", tenant=tenant, tier=tier, covered_s=10.0, offered=offered, outcomes={}
    )


def by_name(session: Session) -> dict[str, Measured | Unmeasured]:
    return {one.name: one for one in measured_inputs(session, NOW)}


def test_whose_the_requests_are_comes_with_the_weights_in_force(session: Session) -> None:
    at = NOW - timedelta(hours=1)
    session.add(gateway_round(at, "acme", "interactive", 600))
    session.add_all(gateway_round(at, f"t{n:02}", "batch", 10 * (n + 1)) for n in range(12))
    document = default_policy().as_document()
    document["tiers"]["interactive"]["weight"] = 60
    document["tiers"]["batch"]["weight"] = 35
    document["tenants"]["t11"] = policy_document()["tenants"]["acme"] | {"weight": 4}
    publish(session, document=document, parent=0, author=ADMIN, note="a test", now=at)
    session.flush()
    found = by_name(session)
    weights, tiers, tenants = found["weights"], found["tiers"], found["tenants"]
    assert isinstance(weights, Measured)
    assert weights.value == {"interactive": 60.0, "batch": 35.0, "best_effort": 5.0}
    assert "policy revision 1 (2026-11-29)" in weights.source
    # 600 interactive; batch 10 + 20 + ... + 120 = 780
    assert isinstance(tiers, Measured)
    assert tiers.value["interactive"] == pytest.approx(600 / 1380)
    assert isinstance(tenants, Measured)
    assert tenants.value["interactive"] == {"acme": [1.0, 1.0]}
    batch = tenants.value["batch"]
    assert list(batch) == ["t11", "t10", "t09", "t08", "t07", "t06", "t05", "t04", "4 others"]
    assert batch["t11"] == [pytest.approx(120 / 780), 4.0]
    assert batch["4 others"] == [pytest.approx((10 + 20 + 30 + 40) / 780), 4.0]  # four of weight 1
    document = {"traffic": "A"} | {one.name: one.value for one in (weights, tiers, tenants)}
    ready = read_comparison(document, bundled_profile)
    assert sum(flow.share for flow in ready.flows) == pytest.approx(1.0)
    assert ready.tier_weights == weights.value


def test_bursts_are_measured_in_the_recorded_arrivals(session: Session) -> None:
    since = NOW - timedelta(hours=3)
    bursts = ((400, 30), (600, 60))  # rounds of 10 s: 300 s and 600 s
    for n in range(1080):
        is_high = any(first <= n < first + count for first, count in bursts)
        at = since + timedelta(seconds=10 * n)
        session.add(gateway_round(at, "acme", "interactive", 50 if is_high else 10))
    session.flush()
    found = by_name(session)["burst_s"]
    assert isinstance(found, Measured)
    assert (found.low, found.high) == (pytest.approx(300, abs=30), pytest.approx(600, abs=30))
    assert found.value == pytest.approx(450, abs=30)
    assert "2 bursts" in found.source
    assert "2026-11-29" in found.source


@pytest.mark.parametrize("reason", [Reason.REFUSED, Reason.BLOCKED, None])
def test_only_a_node_that_was_seen_away_first_has_a_cold_start(
    session: Session, reason: Reason | None
) -> None:
    created = NOW - timedelta(hours=1)
    session.add(PoolRow(name="a", models=["m"], created_at=created))
    session.flush()
    session.add(
        NodeRow(
            name="n1",
            pool="a",
            base_url="http://n1:8000",
            price_class="on_demand",
            state="active",
            created_at=created,
        )
    )
    if reason is not None:
        at = created + timedelta(seconds=20)
        session.add(ScrapeFailureRow(at=at, node="n1", reason=reason.value, detail="", fetch_s=None))
    session.add(SampleRow(at=created + timedelta(seconds=310), node="n1", engine="0"))
    session.flush()
    found = by_name(session)["cold_start_s"]
    if reason is Reason.REFUSED:
        assert isinstance(found, Measured)
        assert found.value == 310.0
    else:  # it ran already, or nobody was allowed to look
        assert isinstance(found, Unmeasured)
        assert "1 answered when first asked" in found.reason


#: A thousand texts of a million characters each, one of them in memory.
LONG_TEXTS = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int32()), pa.array(["0" * 1_000_000]))


def parquet(columns: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, store_schema=False)  # pyright: ignore
    return out.getvalue()


def test_the_same_traffic_reads_the_same_from_csv_gzip_and_parquet() -> None:
    times, rates = [0.0, 600.0, 1200.0], [1.0, 3.0, 2.0]
    text = "t_s,rate_rps\n" + "".join(f"{t},{r}\n" for t, r in zip(times, rates, strict=True))
    forms = {
        "a.csv": text.encode(),
        "bom.csv": b"\xef\xbb\xbf" + text.encode(),
        "a.csv.gz": gzip.compress(text.encode()),
        "a.parquet": parquet({"t_s": times, "rate_rps": rates, "unused": [0.0, 0.0, 0.0]}),
    }
    for name, body in forms.items():
        found = uploaded_profile(name, body, "a test")
        assert found.rates_rps.tolist() == [1.0] * 60 + [3.0] * 60 + [2.0] * 60, name


def test_a_trace_of_requests_in_parquet_keeps_its_tokens() -> None:
    body = parquet(
        {"t_s": [0.5, 3.0, 12.0, 25.0], "input_tokens": [100, 200, 300, 400], "output_tokens": [1, 2, 3, 4]}
    )
    found = uploaded_profile("a.parquet", body, "a test")
    assert found.rates_rps.tolist() == [0.2, 0.1]  # the last bin ends with the recording
    assert (found.tokens_in, found.tokens_out) == (250.0, 2.5)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"a,b\n1,2\n",
        b"t_s,rate_rps\n0,x\n",
        b"\xff\xfe\x00",
        b"\x1f\x8b damaged",
        gzip.compress(b"t_s,rate_rps\n0,1\n", mtime=0)[:-9],
        b"PAR1 damaged PAR1",
        parquet({"other": [1.0]}),
        parquet({"t_s": LONG_TEXTS}),  # some kB that stand for a gigabyte
        parquet({"t_s": [[0.0], [1.0]]}),
        parquet({"t_s": [0.0, float("nan")]}),
        parquet({"t_s": [3.0, 1.0]}),
        b"t_s,rate_rps\n" + b"0" * 5_000,
    ],
)
def test_what_is_no_traffic_is_refused_in_words(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        uploaded_profile("x", body, "a test")
