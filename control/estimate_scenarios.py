"""Scenarios for `rhodeck estimate run`: one strategy on one traffic, as a JSON object.

Keys: `profile` (A, B, C, D, `recorded`, or a file), `params` (the strategy, see `fleet.strategies`), and
optionally `mu`, `price`, `tokens_in`, `tokens_out`, `slo_wait_s`; only the real gate heeds `tiers` with
their shares of requests, `weights`, and `tenants` with their shares of a tier. Prevents: a misspelt key
that silently means its default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from control.comparison_flows import Flows, read_flows
from control.rate_profile_files import BUNDLED, RECORDED, bundled_profile, file_profile
from fleet.errors import InvalidInput
from fleet.fluid import simulate
from fleet.month_result import MonthResult, NodeClass
from fleet.outcomes import Tier
from fleet.rate_profiles import RateProfile
from fleet.refusal_split import TIER_WEIGHTS
from fleet.strategies import Strategy, read_strategy

MAX_BYTES = 1_000_000
#: Of a whole number in a document; longer ones fit into no float.
MAX_DIGITS = 18
MAX_PATH = 1_000
SLO_WAIT_S = 2.0
TIER_SHARES: Mapping[Tier, float] = {Tier.INTERACTIVE: 0.6, Tier.BATCH: 0.3, Tier.BEST_EFFORT: 0.1}
_KEYS = (
    "profile", "params", "mu", "price", "tokens_in", "tokens_out", "slo_wait_s",
    "tiers", "weights", "tenants",
)  # fmt: skip
_NODE_KEYS = ("mu", "price", "tokens_in", "tokens_out", "slo_wait_s")
#: These may also stand in `params`, as in the published comparison table.
_NODE_PARAMS = ("mu", "price")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One strategy on one traffic, ready to run."""

    profile: RateProfile
    strategy: Strategy
    node: NodeClass
    slo_wait_s: float
    tiers: Mapping[Tier, float] = field(default_factory=lambda: TIER_SHARES)
    whose: Flows = field(default_factory=lambda: read_flows(TIER_SHARES, TIER_WEIGHTS, {}))

    def run(self) -> MonthResult:
        """Simulate 720 hours."""
        return simulate(self.profile.month(), self.strategy, self.node, slo_wait_s=self.slo_wait_s)


def read_scenario_text(text: str, folder: Path, recorded: Callable[[], RateProfile]) -> Scenario:
    """Return the scenario in a JSON text. Files are looked for in `folder`, then where the process runs.

    `recorded` is asked for the fleet's own traffic only if the scenario wants it.
    """
    return read_scenario(json_object(text, "the scenario"), folder, recorded)


def json_object(text: str, name: str) -> dict[str, Any]:
    """Return the object in a JSON text, under the bounds of `json_value`."""
    document = json_value(text, name)
    if not isinstance(document, dict):
        raise InvalidInput(f"{name} is not a JSON object", field="SCENARIO")
    return cast("dict[str, Any]", document)


def json_value(text: str, name: str, most: int = MAX_BYTES) -> Any:
    """Return what is in a JSON text of at most `most` characters, in which no key stands twice.

    Whole numbers have at most 18 digits, NaN and Infinity are refused, texts are Unicode.
    """
    if len(text) > most:
        raise InvalidInput(f"{name} has over {most:,} characters", field="SCENARIO")
    try:
        document: Any = json.loads(
            text, object_pairs_hook=_once, parse_constant=_no_constant, parse_int=_whole
        )
        json.dumps(document, ensure_ascii=False).encode()
    except (json.JSONDecodeError, RecursionError, UnicodeEncodeError) as exc:
        raise InvalidInput(f"{name} is not JSON: {exc}", field="SCENARIO") from exc
    return document


def _no_constant(text: str) -> float:
    raise InvalidInput(f"{text} is no number", field="SCENARIO", hint="Give finite numbers")


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise InvalidInput(f"{text[:MAX_DIGITS]}… is too long a number", field="SCENARIO")
    return int(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidInput(f"{name[:60]!r} stands twice in one object", field="SCENARIO")
        found[name] = value
    return found


def read_scenario(
    document: Mapping[str, Any], folder: Path, recorded: Callable[[], RateProfile]
) -> Scenario:
    """Return the scenario that a document describes. Raises InvalidInput with the JSON pointer."""
    unknown = sorted(set(document) - set(_KEYS))
    if unknown:
        at = f"/{unknown[0][:60]}"
        raise InvalidInput(f"{at} is unknown", field=at, hint=f"Known keys: {', '.join(_KEYS)}")
    params: Any = document.get("params")
    if not isinstance(params, dict):
        raise InvalidInput(
            "/params is missing", field="/params", hint='Describe the strategy, as {"n": 5, "D": 1.5}'
        )
    params = dict(cast("dict[str, Any]", params))
    values: dict[str, Any] = {key: document[key] for key in _NODE_KEYS if document.get(key) is not None}
    for key in _NODE_PARAMS:
        if key in params:
            if key in values and values[key] != params[key]:
                raise InvalidInput(
                    f"/{key} is {values[key]!r} and /params/{key} is {params[key]!r}"[:200],
                    field=f"/params/{key}",
                    hint="Give it once",
                )
            values[key] = params.pop(key)
    strategy = read_strategy(params)
    profile = profile_named(document.get("profile"), folder, recorded)
    defaults = NodeClass()
    node = NodeClass(
        service_rate=_number(values, "mu", defaults.service_rate),
        usd_per_hour=Decimal(str(_number(values, "price", float(defaults.usd_per_hour)))),
        tokens_in=_number(values, "tokens_in", defaults.tokens_in),
        tokens_out=_number(values, "tokens_out", defaults.tokens_out),
    )
    tiers = _tiers(document.get("tiers", TIER_SHARES))
    whose = read_flows(tiers, document.get("weights", TIER_WEIGHTS), document.get("tenants", {}))
    return Scenario(profile, strategy, node, _number(values, "slo_wait_s", SLO_WAIT_S), tiers, whose)


def _tiers(given: Any) -> Mapping[Tier, float]:
    hint = 'Give each tier\'s share of requests, as {"interactive": 0.6, "batch": 0.4}'
    if not isinstance(given, Mapping) or not given:
        raise InvalidInput(f"/tiers is {given!r}"[:200], field="/tiers", hint=hint)
    named = dict(cast("Mapping[str, Any]", given))
    unknown = next((name for name in named if name not in tuple(Tier)), None)
    if unknown is not None:
        raise InvalidInput(f"there is no tier {unknown[:40]!r}", field="/tiers", hint=hint)
    shares = {Tier(name): _number(named, name, 0.0) for name in named}
    total = sum(shares.values())
    if min(shares.values()) < 0 or not 0.99 <= total <= 1.01:
        raise InvalidInput(f"the shares in /tiers add up to {total:g}", field="/tiers", hint=hint)
    return shares


def _number(values: Mapping[str, Any], key: str, default: float) -> float:
    value = values.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidInput(f"/{key} is {value!r}"[:200], field=f"/{key}", hint="Give a number")
    try:
        return float(value)
    except OverflowError as exc:
        raise InvalidInput(f"/{key} is too large", field=f"/{key}", hint="Give a smaller number") from exc


def profile_named(name: Any, folder: Path, recorded: Callable[[], RateProfile]) -> RateProfile:
    """Return a bundled profile, the fleet's own record, or the one in a file."""
    if not isinstance(name, str) or not name:
        raise InvalidInput(
            f"/profile is {name!r}"[:200],
            field="/profile",
            hint=f"Give A, B, C, D, {RECORDED} or a CSV file",
        )
    if name in BUNDLED:
        return bundled_profile(name)
    if name == RECORDED:
        return recorded()
    if "\0" in name or len(name) > MAX_PATH:
        raise InvalidInput(f"/profile is {name!r}"[:200], field="/profile", hint="Give the name of a file")
    beside = folder / name  # an absolute name stays what it is
    try:
        return file_profile(beside if beside.exists() else Path(name))
    except OSError as exc:  # a name longer than the file system's
        raise InvalidInput(f"{name[:80]} cannot be read: {exc.strerror}", field="/profile") from exc
