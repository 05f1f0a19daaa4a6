"""The closed-form estimate of a fleet's cost, and beside it what a closed form hides.

Money is Decimal US dollars, rates are requests/s, tokens are a request's. A month is 720 hours unless said
otherwise. "Static peak" is provisioning for the peak, not autoscaling. Prevents: a saving quoted without
the requests it refuses, and the share of time above capacity read as the share of requests refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from fleet.errors import InvalidInput
from fleet.percentages import percent

CENT = Decimal("0.01")
MONTH_HOURS = 720
MONTH_DAYS = (28, 30, 31)
SPOT_PRICES = (Decimal(6), Decimal(12), Decimal(16), Decimal(22))
TARGET_RHO = 0.85
#: Below this peak-to-mean ratio there is little peak to shed: admission cannot save a quarter.
FLAT_PEAK_TO_MEAN = 1.3
MAX_NODES = 1_000_000


@dataclass(frozen=True, slots=True)
class Source:
    """Where a default comes from, and when it was true."""

    what: str
    date: str  # ISO


#: Defaults of `ClosedFormInputs` and their origin. "traffic" is rates and tokens of a request together.
SOURCES: dict[str, Source] = {
    "traffic": Source("check case: 70B FP8 on 8xH100, peak 30 and mean 12 requests/s", "2026-11-29"),
    "tokens_per_s": Source("check case: a node's prompt + output tokens/s; measure your own", "2026-11-29"),
    "price": Source("8xH100 on demand, low end of hyperscaler list prices", "2026-05"),
    "spot_price": Source("check case; public spot and marketplace quotes are 12 to 22", "2026-04"),
    "burst_realistic_usd": Source("check case: the burst pool not running all month", "2026-11-29"),
}


@dataclass(frozen=True, slots=True)
class ClosedFormInputs:
    """What the estimate is computed from. Defaults are the check case; `SOURCES` dates them.

    Raises InvalidInput on anything that is not a positive, finite, plausible number.
    """

    peak_rps: float = 30.0
    mean_rps: float = 12.0
    tokens_in: float = 500.0
    tokens_out: float = 300.0
    tokens_per_s: float = 2400.0  # a node's, prompt and output together
    price: Decimal = Decimal(28)  # USD per node-hour on demand
    hours: Decimal = Decimal(MONTH_HOURS)
    admission_nodes: int = 5
    burst_nodes: int = 2
    spot_price: Decimal = Decimal(6)  # USD per node-hour
    burst_realistic_usd: Decimal = Decimal(5000)
    refusal_acceptable: bool = True

    def __post_init__(self) -> None:
        _positive("peak_rps", self.peak_rps)
        _positive("mean_rps", self.mean_rps)
        _positive("tokens_per_s", self.tokens_per_s)
        if self.peak_rps < self.mean_rps:
            raise InvalidInput(
                f"the peak {self.peak_rps:g} is below the mean {self.mean_rps:g} requests/s",
                field="peak_rps",
                hint="A peak is at least the mean",
            )
        _not_negative("tokens_in", self.tokens_in)
        _not_negative("tokens_out", self.tokens_out)
        _positive("tokens_out + tokens_in", self.tokens_in + self.tokens_out)
        _positive("hours", self.hours)
        for name in ("price", "spot_price", "burst_realistic_usd"):
            _not_negative(name, getattr(self, name))
        _count("admission_nodes", self.admission_nodes, 1)
        _count("burst_nodes", self.burst_nodes, 0)


def _positive(name: str, value: float | Decimal) -> None:
    if not math.isfinite(value) or not 0 < value <= 1e12:
        raise InvalidInput(f"{name} is {value}", field=name, hint="Give a number above 0, at most 1e12")


def _not_negative(name: str, value: float | Decimal) -> None:
    if not math.isfinite(value) or not 0 <= value <= 1_000_000_000_000:
        raise InvalidInput(f"{name} is {value}", field=name, hint="Give 0 or more, at most 1e12")


def _count(name: str, value: int, low: int) -> None:
    if not low <= value <= MAX_NODES:
        raise InvalidInput(f"{name} is {value}", field=name, hint=f"Give a whole number from {low}")


def _usd(amount: Decimal) -> Decimal:
    return amount.quantize(CENT, ROUND_HALF_UP)


def _nodes(requests_per_s: float, node_rps: float) -> int:
    """Return the nodes that serve a rate; a hair over a whole number is rounding, not another node."""
    return max(1, math.ceil(requests_per_s / node_rps - 1e-9))


_TRAFFIC = ("peak_rps", "mean_rps", "tokens_in", "tokens_out")


def sources_in_use(inputs: ClosedFormInputs) -> dict[str, Source]:
    """Return the sources of the defaults that `inputs` kept. What somebody typed has no source of ours."""
    defaults = ClosedFormInputs()
    return {
        name: source
        for name, source in SOURCES.items()
        if all(
            getattr(inputs, field) == getattr(defaults, field)
            for field in (_TRAFFIC if name == "traffic" else (name,))
        )
    }


@dataclass(frozen=True, slots=True)
class Option:
    """One way to provision: what it costs a month, and what happens at the peak and the mean."""

    name: str
    nodes: int  # on demand
    spot_nodes: int
    usd_month: Decimal
    rho_at_peak: float
    rho_at_mean: float
    shed_at_peak: float  # share of requests refused while the rate is at its peak
    usd_per_million_tokens: Decimal | None  # of the mean traffic, what is refused not deducted


@dataclass(frozen=True, slots=True)
class PeakShape:
    """What a fixed capacity refuses when the rate is `time_above` of the time at peak, else below capacity.

    The share of time above capacity and the share of requests refused are different numbers.
    """

    time_above: float  # share of time, chosen
    refused: float  # share of all requests in the same month
    break_even_usd: Decimal | None  # a refusal costing more makes static peak cheaper; None: none refused


@dataclass(frozen=True, slots=True)
class SpotRow:
    """The totals at one spot price."""

    spot_price: Decimal
    burst_always_on: Decimal
    total_always_on: Decimal
    saving_month: Decimal  # against static peak


@dataclass(frozen=True, slots=True)
class CalendarRow:
    """The totals of a real month."""

    days: int
    hours: int
    static_peak: Decimal
    admission: Decimal
    burst_always_on: Decimal


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """The closed form to the dollar, and what it hides."""

    inputs: ClosedFormInputs
    node_rps: float  # tokens/s over tokens a request
    static_peak: Option
    admission: Option
    with_burst: Option  # burst pool always on
    headroom: Option  # enough nodes for rho <= 0.85 at the peak
    burst_always_on: Decimal
    burst_realistic: Decimal
    total: Decimal  # admission + realistic burst
    saving_month: Decimal
    saving_year: Decimal
    peak_to_mean: float
    peak_shapes: tuple[PeakShape, ...]
    spot: tuple[SpotRow, ...]
    calendar: tuple[CalendarRow, ...]
    warnings: tuple[str, ...]


def closed_form(inputs: ClosedFormInputs) -> ClosedForm:
    """Return cost, saving, rho at peak, what is shed, spot and calendar sensitivity, and warnings.

    A node serves tokens_per_s / (tokens_in + tokens_out) requests/s. That mixes prompt and output tokens,
    which cost an engine very differently: it is an estimate, not a measurement.
    """
    i = inputs
    node_rps = i.tokens_per_s / (i.tokens_in + i.tokens_out)
    if node_rps * MAX_NODES * TARGET_RHO < i.peak_rps:
        raise InvalidInput(
            f"over {MAX_NODES:,} nodes would be needed at {node_rps:.3g} requests/s each",
            field="tokens_per_s",
            hint="Check the tokens a node serves per second",
        )
    peak_nodes, headroom_nodes = _nodes(i.peak_rps, node_rps), _nodes(i.peak_rps / TARGET_RHO, node_rps)
    burst_always = _usd(i.spot_price * i.hours * i.burst_nodes)
    static = _option("static peak", i, node_rps, peak_nodes, 0)
    admission = _option("admission", i, node_rps, i.admission_nodes, 0)
    burst_realistic = min(_usd(i.burst_realistic_usd), burst_always)  # never dearer than always on
    total = admission.usd_month + burst_realistic
    saving = static.usd_month - total
    return ClosedForm(
        inputs=i,
        node_rps=node_rps,
        static_peak=static,
        admission=admission,
        with_burst=_option("admission and burst pool", i, node_rps, i.admission_nodes, i.burst_nodes),
        headroom=_option("static, rho under 0.85", i, node_rps, headroom_nodes, 0),
        burst_always_on=burst_always,
        burst_realistic=burst_realistic,
        total=total,
        saving_month=saving,
        saving_year=saving * 12,
        peak_to_mean=i.peak_rps / i.mean_rps,
        peak_shapes=_peak_shapes(i, node_rps * i.admission_nodes, static.usd_month - admission.usd_month),
        spot=tuple(_spot_row(i, price, static, admission) for price in SPOT_PRICES),
        calendar=tuple(_calendar_row(i, days, peak_nodes) for days in MONTH_DAYS),
        warnings=_warnings(i, node_rps, static, total),
    )


def _option(name: str, i: ClosedFormInputs, node_rps: float, nodes: int, spot_nodes: int) -> Option:
    capacity = (nodes + spot_nodes) * node_rps
    usd = _usd(i.hours * (i.price * nodes + i.spot_price * spot_nodes))
    tokens = Decimal(str(i.mean_rps * (i.tokens_in + i.tokens_out) * 3600)) * i.hours / 1_000_000
    rho = i.peak_rps / capacity
    return Option(
        name,
        nodes,
        spot_nodes,
        usd,
        rho_at_peak=rho,
        rho_at_mean=i.mean_rps / capacity,
        shed_at_peak=shed_share(rho),
        usd_per_million_tokens=_usd(usd / tokens) if tokens > 0 else None,
    )


def shed_share(rho: float) -> float:
    """Return the fluid share of requests that cannot be served at utilization `rho`: max(0, 1 - 1/rho)."""
    return max(0.0, 1 - 1 / rho) if rho > 0 else 0.0


def _peak_shapes(i: ClosedFormInputs, capacity: float, saving: Decimal) -> tuple[PeakShape, ...]:
    """Return refusals for 1, 5 and 10 % of time at the peak, where the mean allows so much.

    While at peak, peak - capacity is refused: f (peak - capacity) / mean of the month's requests.
    Break-even is the monthly `saving` over static peak divided by the refusals static peak avoids.
    """
    excess = max(0.0, i.peak_rps - capacity)
    shapes: list[PeakShape] = []
    for share in (0.01, 0.05, 0.10):
        if share * i.peak_rps <= i.mean_rps:
            refusals = Decimal(str(share * excess * 3600)) * i.hours
            worth = max(Decimal(0), saving / refusals) if refusals > 0 else None
            break_even = None if worth is None else worth.quantize(Decimal("0.0001"))
            shapes.append(PeakShape(share, share * excess / i.mean_rps, break_even))
    return tuple(shapes)


def _spot_row(i: ClosedFormInputs, price: Decimal, static: Option, admission: Option) -> SpotRow:
    burst = _usd(price * i.hours * i.burst_nodes)
    total = admission.usd_month + burst
    return SpotRow(price, burst, total, static.usd_month - total)


def _calendar_row(i: ClosedFormInputs, days: int, peak_nodes: int) -> CalendarRow:
    hours = 24 * days
    return CalendarRow(
        days,
        hours,
        static_peak=_usd(i.price * hours * peak_nodes),
        admission=_usd(i.price * hours * i.admission_nodes),
        burst_always_on=_usd(i.spot_price * hours * i.burst_nodes),
    )


def _warnings(i: ClosedFormInputs, node_rps: float, static: Option, total: Decimal) -> tuple[str, ...]:
    """Return, most important first, when this estimate or admission itself is the wrong answer."""
    found: list[str] = []
    admission, burst = i.admission_nodes * node_rps, (i.admission_nodes + i.burst_nodes) * node_rps
    if not i.refusal_acceptable:
        found.append(
            "Admission is the wrong answer: refusals are not acceptable, and it works by refusing. "
            f"Provision for the peak with head-room ({TARGET_RHO:g}) or queue without a deadline."
        )
    if i.peak_rps / i.mean_rps < FLAT_PEAK_TO_MEAN:
        found.append(
            f"Admission is the wrong answer: peak / mean is {i.peak_rps / i.mean_rps:.2f}, near 1. "
            "There is no peak to shed; buy the capacity the mean needs."
        )
    if admission <= i.mean_rps:
        found.append(
            f"{i.admission_nodes} nodes serve {admission:g} requests/s, not more than the mean "
            f"{i.mean_rps:g}: the queue never settles and refusals are permanent."
        )
    if total >= static.usd_month:
        found.append("Admission with a burst pool costs no less than static peak here.")
    if burst < i.peak_rps:
        share = shed_share(i.peak_rps / burst)
        found.append(
            f"Even with the burst pool {percent(share, 1)} of requests are refused while at peak, "
            "and more while it warms up."
        )
    if static.rho_at_peak > TARGET_RHO:
        found.append(
            f"Static peak runs at rho {static.rho_at_peak:.2f} at the peak: no head-room for bursts."
        )
    found.append(
        "Static peak is not autoscaling: a reactive autoscaler pays for about the mean and belongs in the "
        "comparison before anything is decided; simulate it."
    )
    return tuple(found)
