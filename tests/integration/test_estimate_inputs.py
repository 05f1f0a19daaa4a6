"""Inputs of estimates as the fleet measured them, and traffic that is uploaded."""

from __future__ import annotations

import gzip
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy.orm import Session

from control.estimate_inputs import Measured, Unmeasured, measured_inputs
from control.rate_profile_uploads import uploaded_profile
from control.tables import HealthRow, NodeRow, PoolRow, PriceRow
from fleet.errors import InvalidInput

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


def parquet(columns: dict[str, list[float]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)  # pyright: ignore
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
        gzip.compress(b"t_s,rate_rps\n0,1\n")[:-9],
        b"PAR1 damaged PAR1",
        parquet({"other": [1.0]}),
        b"t_s,rate_rps\n" + b"0" * 5_000,
    ],
)
def test_what_is_no_traffic_is_refused_in_words(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        uploaded_profile("x", body, "a test")
