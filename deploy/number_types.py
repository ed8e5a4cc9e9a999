"""Types of options that are numbers."""

import math
from typing import Any

import click


class Seconds(click.FloatRange):
    """A finite number of seconds in a range; `click.FloatRange` accepts NaN."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a finite number of seconds.", param, ctx)
        return seconds


class Ratio(click.FloatRange):
    """A finite number in a range; `click.FloatRange` accepts NaN and infinity."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        ratio: float = super().convert(value, param, ctx)
        if not math.isfinite(ratio):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return ratio
