"""A day through the gate as a value: all that it depends on, so that any process can do it.

Each day is independent of how it was reached: a fresh gate is warmed up by the last hour of the day before.
Times are seconds from the month's start, tokens counts. Prevents: a result that depends on which process
did the day, or on how many there were.
"""

from __future__ import annotations

import copyreg
import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.fluid import BIN_S, DAY_BINS
from fleet.gate_day import DayFlow, DayTraffic, GateDay
from fleet.month_result import NodeClass
from fleet.policy import Policy
from fleet.replay_servers import ReplayNode
from fleet.simulate import NodePlan, ServiceModel, drawn_arrivals

WARM_UP_BINS = 360


def _by_fields(node: ReplayNode) -> tuple[type[ReplayNode], tuple[object, ...]]:
    """Send a node to another process by its fields: compiled and frozen, it takes none once it is made."""
    return ReplayNode, tuple(getattr(node, field.name) for field in fields(node))


copyreg.pickle(ReplayNode, _by_fields)


@dataclass(frozen=True, slots=True)
class DayTask:
    """One day to be simulated."""

    day: int
    policy: Policy
    flows: tuple[DayFlow, ...]
    shares: tuple[float, ...]  # of the requests, by flow
    served_by: ReplayNode
    node: NodeClass
    service: ServiceModel
    seed: int
    rates_rps: NDArray[np.float64]  # of the whole month
    plan: NodePlan  # from `first_bin` on

    @property
    def first_bin(self) -> int:
        """Where the day begins, its warm-up included."""
        return max(0, self.day * DAY_BINS - WARM_UP_BINS)

    @property
    def last_bin(self) -> int:
        """Where it ends."""
        return min((self.day + 1) * DAY_BINS, self.rates_rps.size)

    def begin(self) -> GateDay:
        """Draw the day's requests and return it ready to go."""
        asked, counted_from = self._requests(self.day), 0
        if self.day > 0:
            before = self._requests(self.day - 1)
            late = before[0] >= self.first_bin * BIN_S
            counted_from = int(np.count_nonzero(late))
            asked = [np.concatenate((old[late], new)) for old, new in zip(before, asked, strict=True)]
        traffic = DayTraffic(asked[0], asked[1], asked[2], asked[3], asked[4], counted_from)
        return GateDay(
            self.policy,
            self.flows,
            self.served_by,
            self.plan,
            traffic,
            self.first_bin,
            self.last_bin,
            self.seed + self.day,
        )

    def _requests(self, day: int) -> list[NDArray[Any]]:
        """Return the requests of a day: the event simulation's, each with a flow and sizes.

        An answer is as long as its time in the engine; prompts vary as much as service times do. What an
        engine's longest sequence cannot hold is cut to half of that, prompt and answer each.
        """
        first = day * DAY_BINS
        at_s, service_s = drawn_arrivals(self.rates_rps, first, self.seed, self.service, self.node)
        rng = np.random.default_rng([self.seed, first, 1])
        shares = np.maximum(np.array(self.shares), 0.0)
        flows = rng.choice(len(shares), at_s.size, p=shares / shares.sum()).astype(np.int16)
        variance = math.log1p(self.service.squared_cv)
        prompts = self.node.tokens_in * np.exp(
            math.sqrt(variance) * rng.standard_normal(at_s.size) - variance / 2
        )
        mean_s = self.service.slots / self.node.service_rate
        outputs = self.node.tokens_out * service_s / mean_s
        engine = self.served_by.engine
        least, most = 0, 1 << 40
        if engine is not None:
            least, most = 1, min(engine.max_model_len, engine.kv_capacity_tokens) // 2
        return [at_s, service_s, flows, _tokens(prompts, least, most), _tokens(outputs, 1, most)]


def _tokens(values: NDArray[np.float64], least: int, most: int) -> NDArray[np.int64]:
    return np.clip(np.rint(values), least, most).astype(np.int64)
