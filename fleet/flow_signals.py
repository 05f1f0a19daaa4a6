"""What one round says about flow beside rho: one value for each rule and subject, and the words for it.

Values are in the rule's own unit (`UNITS`); a larger value is always the worse one, so one alarm machine
serves them all. `None` is unknown: it neither raises nor clears. Prevents: every reader of bursts,
starvation or burn rates inventing its own threshold on its own reading of the data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class FlowRule(StrEnum):
    """Names of the signals. Also the names of the alert rules made from them."""

    UNSTABLE = "unstable"
    BURST = "burst"
    KV_EXHAUSTION = "kv_exhaustion"
    SLO_BURN_FAST = "slo_burn_fast"
    SLO_BURN_SLOW = "slo_burn_slow"
    HOT_NODE = "hot_node"
    UNFAIRNESS = "unfairness"
    STARVATION = "starvation"
    RETRY_STORM = "retry_storm"


#: Rule -> (unit, what its value is, the value above which it is bad).
UNITS: dict[FlowRule, tuple[str, str, float]] = {
    FlowRule.UNSTABLE: ("0 or 1", "1 once the queue has left equilibrium", 0.5),
    FlowRule.BURST: ("ratio", "arrivals of 90 s over the hour before; 10 x, less a tenth for noise", 9.0),
    FlowRule.KV_EXHAUSTION: ("ratio", "KV use the trend of five minutes reaches in five more", 1.0),
    FlowRule.SLO_BURN_FAST: ("ratio", "budget burn, the lower of 1 hour and 5 minutes", 14.4),
    FlowRule.SLO_BURN_SLOW: ("ratio", "budget burn, the lower of 6 hours and 30 minutes", 6.0),
    FlowRule.HOT_NODE: ("ratio", "the node's load over the median of its pool", 1.5),
    FlowRule.UNFAIRNESS: ("ratio", "part of its entitled share that the worst-off tenant lacks", 0.5),
    FlowRule.STARVATION: ("ratio", "longest wait over the longest the tier allows", 0.9),
    FlowRule.RETRY_STORM: ("ratio", "attempts for each original request", 1.5),
}


@dataclass(frozen=True, slots=True)
class FlowSignal:
    """One rule's value for one subject in one round.

    `scope` is fleet (subject ""), pool, tier, node or tenant (subject "tenant/tier"). `summary` is a
    sentence with the numbers; `detail` has what a page or an alert shows beside it.
    """

    rule: FlowRule
    scope: str
    subject: str
    value: float | None
    summary: str
    detail: dict[str, object] = field(default_factory=dict[str, object])
