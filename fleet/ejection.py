"""The rules by which failing nodes are taken out, the policy's `routing.ejection`, and their words.

Times are seconds, ratios 0..1, counts requests. What follows from them for each node is in
`fleet.outliers`. Prevents: a rule with a bound that the page, the API and the gateway see differently.
Source: Envoy, "Outlier detection" (consecutive gateway failures, success rate, ejection times) and "Panic
threshold".
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Whole = Annotated[int, Field(strict=True)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class Ejection(BaseModel):
    """When failing nodes are taken out, and how they come back."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    consecutive_failures: Annotated[Whole, Field(ge=1, le=1000)] = 3
    """So many failed requests in a row take a node out."""
    interval_s: Annotated[Real, Field(ge=1, le=600)] = 10.0
    """Success rates are compared at the end of each interval of this length."""
    min_requests: Annotated[Whole, Field(ge=5, le=100_000)] = 50
    """A node's success rate counts with at least so many requests in the interval."""
    min_nodes: Annotated[Whole, Field(ge=3, le=1000)] = 5
    """Success rates are compared among at least so many nodes."""
    stdev_factor: Annotated[Real, Field(ge=0.5, le=10)] = 1.9
    """A node whose success rate is so many standard deviations below the mean is taken out."""
    base_s: Annotated[Real, Field(ge=0.1, le=3600)] = 5.0
    """How long a node is out the first time; doubled each time it is taken out again."""
    max_s: Annotated[Real, Field(ge=0.1, le=86_400)] = 60.0
    """Longest time a node is out at once."""
    max_ejected_ratio: Annotated[Real, Field(ge=0, le=0.9)] = 0.5
    """Largest part of the nodes, and of those that serve the same requests, that is out at the same time.
    One where that is less than one, and never the last."""
    trial_requests: Annotated[Whole, Field(ge=1, le=1000)] = 3
    """A node that comes back takes so many requests at once until as many were answered."""
    panic_threshold_ratio: Annotated[Real, Field(ge=0, le=1)] = 0.5
    """When less than this part of the nodes that serve the same requests takes requests, those that are out
    are tried again at once. 0: never."""


class Because(StrEnum):
    """Why a node was taken out. Also a metric label."""

    CONSECUTIVE = "consecutive_failures"
    SUCCESS_RATE = "success_rate"
    TRIAL = "failed_trial"


class Stage(StrEnum):
    """Whether a node takes requests."""

    IN = "in"
    OUT = "ejected"
    TRIAL = "trial"  # a few, until they were answered
