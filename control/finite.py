"""A flag that takes a finite number within bounds.

Whatever unit the flag says. Prevents: `nan`, which no bound excludes because it compares with nothing,
passing as an objective, a deadline or a rate.
"""

from __future__ import annotations

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A `click.FloatRange` that refuses NaN; give it both bounds and it refuses infinity too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number
