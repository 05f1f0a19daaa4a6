"""A comparison as a document: every input of it, so that whoever has the document has the result.

Owns: the keys, their defaults with source and date, the canonical form with its SHA-256, and the form that
fits into a web address. Rates are requests/s, money US dollars, shares ratios. Prevents: a link that shows
another result to another person, and a default price without a date.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, cast

from control.comparison_flows import read_flows
from control.estimate_scenarios import json_object
from fleet.comparison import Candidate, Comparison, Prices, check_candidates, compare
from fleet.comparison_catalogue import catalogue
from fleet.errors import InvalidInput
from fleet.month_result import NodeClass
from fleet.rate_profiles import RateProfile
from fleet.refusal_split import TIER_WEIGHTS, Flow
from fleet.reserve import MAX_NEEDED, TARGET_RHO
from fleet.strategies import Autoscaler, Strategy, read_strategy
from fleet.traffic_shape import traffic_shape

VERSION = 1
MAX_NAME = 60
#: A document is a few KB; an address longer than this is cut off by mail programs and proxies.
MAX_LINK, MAX_BYTES = 6_000, 60_000
BASELINE = "Static + admission"


@dataclass(frozen=True, slots=True)
class Default:
    """A default value with where it comes from and when it was true."""

    value: Any
    source: str
    date: str


DEFAULTS: dict[str, Default] = {
    "mu": Default(3.0, "check case: 2,400 tokens/s of 800 a request; measure your own", "2026-11-29"),
    "tokens_in": Default(500.0, "check case", "2026-11-29"),
    "tokens_out": Default(300.0, "check case", "2026-11-29"),
    "price": Default(28.0, "8xH100 on demand, low end of hyperscaler list prices", "2026-05"),
    "reserved_price": Default(18.8, "8xH100, one-year contract index (2.35 USD a GPU-hour)", "2026-03"),
    "spot_price": Default(16.0, "8xH100, middle of spot and marketplace quotes (12 to 22)", "2026-04"),
    "slo_wait_s": Default(2.0, "check case", "2026-11-29"),
    "refusal_usd": Default(0.01, "a choice: what a refused request costs you; set your own", "2026-11-29"),
    "cold_start_s": Default(240.0, "public reports are 2 to 8 minutes; measure your own", "2026-11-29"),
    "burst_s": Default(None, "the traffic's own, above what the nodes serve", "2026-11-29"),
    "tiers": Default(
        {"interactive": 0.6, "batch": 0.3, "best_effort": 0.1}, "a choice; measure your own", "2026-11-29"
    ),
    "weights": Default(dict(TIER_WEIGHTS), "the policy a new fleet begins with", "2026-11-29"),
    "tenants": Default({}, "tenants are not told apart; measure your own", "2026-11-29"),
}
_KEYS = (
    "version", "traffic", "mean_rps", *DEFAULTS, "refusal_acceptable", "baseline", "strategies", "sources"
)  # fmt: skip
_LIMITS = {
    "mu": (1e-3, 1e6),
    "tokens_in": (0.0, 1e8),
    "tokens_out": (0.0, 1e8),
    "price": (0.0, 1e6),
    "reserved_price": (0.0, 1e6),
    "spot_price": (0.0, 1e6),
    "slo_wait_s": (0.0, 86_400.0),
    "refusal_usd": (0.0, 1e6),
    "cold_start_s": (0.0, 86_400.0),
    "burst_s": (1.0, 2_592_000.0),
}


@dataclass(frozen=True, slots=True)
class Comparable:
    """A comparison ready to run. `document` is complete: every default is written out."""

    document: dict[str, Any]
    profile: RateProfile
    candidates: tuple[Candidate, ...]
    node: NodeClass
    prices: Prices
    flows: tuple[Flow, ...]
    tier_weights: Mapping[str, float]

    @property
    def sha256(self) -> str:
        """The content's hash: the same inputs have the same, wherever they were typed."""
        return hashlib.sha256(canonical(self.document)).hexdigest()

    @property
    def refusal_usd(self) -> float:
        """What a refused request costs, as somebody chose."""
        return float(self.document["refusal_usd"])

    def run(self) -> Comparison:
        """Compare over 720 h by the fluid method."""
        return compare(
            self.profile.month(),
            self.candidates,
            self.node,
            baseline=self.document["baseline"],
            prices=self.prices,
            slo_wait_s=self.document["slo_wait_s"],
            flows=self.flows,
            tier_weights=self.tier_weights,
        )


def canonical(document: Mapping[str, Any]) -> bytes:
    """Return the document's one way to be written."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def as_link(document: Mapping[str, Any]) -> str:
    """Return the document in characters that an address may hold. Raises InvalidInput if it is too long."""
    packed = base64.urlsafe_b64encode(zlib.compress(canonical(document), 9)).decode().rstrip("=")
    if len(packed) > MAX_LINK:
        raise InvalidInput(
            f"the link would have {len(packed):,} characters",
            hint=f"At most {MAX_LINK:,}: shorten names, or save the document as a file",
        )
    return packed


def from_link(packed: str) -> dict[str, Any]:
    """Return the document in an address. Raises InvalidInput for what this never wrote."""
    cut = InvalidInput("the link is damaged", field="e", hint="Copy the whole address, or start anew")
    if len(packed) > MAX_LINK or not packed.isascii():
        raise cut
    try:
        raw = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        unpack = zlib.decompressobj()
        text = unpack.decompress(raw, MAX_BYTES).decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError) as exc:
        raise cut from exc
    if unpack.unconsumed_tail or not unpack.eof:
        raise cut
    return json_object(text, "the link")


def read_comparison(document: Mapping[str, Any], traffic: Callable[[str], RateProfile]) -> Comparable:
    """Return the comparison that a document describes, with its defaults written out.

    `traffic` finds a profile by its name. Without `strategies`, six are sized from the traffic. Raises
    InvalidInput with the JSON pointer of the first fault.
    """
    _check_keys(document)
    values: dict[str, Any] = {key: document.get(key, default.value) for key, default in DEFAULTS.items()}
    for key, (low, high) in _LIMITS.items():
        if values[key] is not None or DEFAULTS[key].value is not None:
            values[key] = _number(values[key], f"/{key}", low, high)
    profile = traffic(document["traffic"])
    mean = document.get("mean_rps")
    if mean is not None:
        mean = _number(mean, "/mean_rps", 1e-6, 1e6)
        profile = profile.scaled_to(mean)
    _check_peak(profile, values["mu"])
    whose = read_flows(values["tiers"], values["weights"], values["tenants"])
    values |= {"tiers": whose.tiers, "weights": whose.weights, "tenants": whose.tenants}
    node = NodeClass(values["mu"], Decimal(str(values["price"])), values["tokens_in"], values["tokens_out"])
    candidates = _candidates(document, values, profile)
    baseline = document.get("baseline", _usual_baseline(candidates))
    if not isinstance(baseline, str):
        raise InvalidInput(f"/baseline is {baseline!r}"[:200], field="/baseline", hint="Give a name")
    check_candidates(candidates, baseline)
    whole: dict[str, Any] = {
        "version": VERSION,
        "traffic": document["traffic"],
        "mean_rps": mean,
        **values,
        "refusal_acceptable": _flag(document.get("refusal_acceptable", True), "/refusal_acceptable"),
        "baseline": baseline,
        "strategies": [as_params(candidate) for candidate in candidates],
        "sources": _sources(document.get("sources", {})),
    }
    prices = Prices(values["reserved_price"])
    return Comparable(whole, profile, candidates, node, prices, whose.flows, whose.weights)


def _check_peak(profile: RateProfile, service_rate: float) -> None:
    peak = float(profile.month().max())
    if peak > MAX_NEEDED * TARGET_RHO * service_rate:
        raise InvalidInput(
            f"the peak of {peak:,.6g} requests/s needs over {MAX_NEEDED:,} nodes of {service_rate:g}",
            field="/mu",
            hint="Check mu and the mean rate",
        )


def _check_keys(document: Mapping[str, Any]) -> None:
    unknown = sorted(set(document) - set(_KEYS))
    if unknown:
        raise InvalidInput(
            f"/{unknown[0][:60]} is unknown",
            field=f"/{unknown[0][:60]}",
            hint=f"Known keys: {', '.join(_KEYS)}",
        )
    if document.get("version", VERSION) != VERSION:
        raise InvalidInput(
            f"/version is {document['version']!r}"[:200],
            field="/version",
            hint=f"This release reads version {VERSION}",
        )
    if not isinstance(document.get("traffic"), str):
        raise InvalidInput("/traffic is missing", field="/traffic", hint="Name a profile, as A, B, C or D")


def _number(value: Any, pointer: str, low: float, high: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise InvalidInput(
            f"{pointer} is {value!r}"[:200], field=pointer, hint=f"Give a number from {low:g} to {high:g}"
        )
    return float(value)


def _flag(value: Any, pointer: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{pointer} is {value!r}"[:200], field=pointer, hint="Give true or false")
    return value


def _candidates(
    document: Mapping[str, Any], values: Mapping[str, Any], profile: RateProfile
) -> tuple[Candidate, ...]:
    given: Any = document.get("strategies")
    if given is None:
        return tuple(
            catalogue(
                traffic_shape(profile.month()),
                values["mu"],
                Decimal(str(values["spot_price"])),
                cold_start_s=values["cold_start_s"],
            )
        )
    if not isinstance(given, list):
        raise InvalidInput("/strategies is no list", field="/strategies", hint="Give 1 to 6 strategies")
    return tuple(
        _candidate(one, place, float(values["spot_price"]))
        for place, one in enumerate(cast("list[Any]", given))
    )


def _candidate(given: Any, place: int, spot_price: float) -> Candidate:
    at = f"/strategies/{place}"
    keys = {"name", "params", "reserved"}
    if not isinstance(given, dict) or not {"name", "params"} <= set(cast("dict[str, Any]", given)) <= keys:
        raise InvalidInput(
            f"{at} is no strategy", field=at, hint='Give {"name": "…", "params": {"n": 5, "D": 1.5}}'
        )
    one = cast("dict[str, Any]", given)
    name, params, reserved = one["name"], one["params"], one.get("reserved", 0)
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidInput(
            f"{at}/name is {name!r}"[:200], field=f"{at}/name", hint=f"1 to {MAX_NAME} characters"
        )
    if not isinstance(params, dict):
        raise InvalidInput(f"{at}/params is no object", field=f"{at}/params", hint='As {"n": 5, "D": 1.5}')
    if not isinstance(reserved, int) or isinstance(reserved, bool):
        raise InvalidInput(f"{at}/reserved is {reserved!r}"[:200], field=f"{at}/reserved", hint="A number")
    params = dict(cast("dict[str, Any]", params))
    if isinstance(params.get("burst"), dict):
        params["burst"] = {"price": spot_price, **params["burst"]}
    try:
        strategy = read_strategy(params)
    except InvalidInput as exc:
        field = f"{at}{exc.field}"
        raise InvalidInput(f"{at}{exc.message}", field=field, hint=exc.hint) from exc
    return Candidate(name.strip(), strategy, reserved)


def _usual_baseline(candidates: tuple[Candidate, ...]) -> str:
    names = [candidate.name for candidate in candidates]
    return BASELINE if BASELINE in names or not names else names[0]


def _sources(given: Any) -> dict[str, str]:
    """Where inputs that are not defaults come from, in the words of whoever measured them."""
    named = cast("dict[str, Any]", given) if isinstance(given, dict) else None
    if named is None or any(
        key not in _KEYS or not isinstance(text, str) or len(text) > 300 or not text.isprintable()
        for key, text in named.items()
    ):
        raise InvalidInput(
            "/sources is no object of texts", field="/sources", hint='As {"mu": "pool a, 29 November"}'
        )
    return dict(named)


def as_params(candidate: Candidate) -> dict[str, Any]:
    """Return a strategy as the object it is read from, every parameter written out."""
    strategy = candidate.strategy
    params: dict[str, Any] = {"n": strategy.nodes}
    if strategy.max_wait_s is not None:
        params["D"] = strategy.max_wait_s
    if strategy.autoscaler is not None:
        params["auto"] = _scaler_params(strategy.autoscaler)
    if strategy.burst is not None:
        params["burst"] = _pool_params(strategy)
    params |= {"ctl_s": strategy.control_period_s, "window_s": strategy.demand_window_s}
    return {"name": candidate.name, "params": params, "reserved": candidate.reserved}


def _scaler_params(scaler: Autoscaler) -> dict[str, Any]:
    params: dict[str, Any] = {
        "mode": scaler.mode.value,
        "rho": scaler.target_rho,
        "min": scaler.min_nodes,
        "max": scaler.max_nodes,
        "stab_s": scaler.stabilisation_s,
        "cold_s": scaler.cold_start_s,
    }
    return params | ({"plan": [list(part) for part in scaler.plan]} if scaler.plan else {})


def _pool_params(strategy: Strategy) -> dict[str, Any]:
    pool = strategy.burst
    if pool is None:
        return {}
    params = asdict(pool)
    names = {
        "nodes": "n",
        "warm_s": "warm_s",
        "up": "up",
        "down": "down",
        "cooldown_s": "cooldown_s",
        "lost_per_interruption": "inflight",
    }
    found: dict[str, Any] = {key: params[name] for name, key in names.items()}
    found["price"] = float(pool.usd_per_hour)
    if pool.interrupted_after_h is not None:
        found["interrupt_h"] = pool.interrupted_after_h
    return found
