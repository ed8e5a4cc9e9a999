"""Types of options that are numbers."""

import math
from collections.abc import Mapping
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


class Slowdown(Ratio):
    """A finite number above 1, or 0 for none."""

    def __init__(self) -> None:
        super().__init__(0)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        ratio = super().convert(value, param, ctx)
        if 0 < ratio <= 1:
            self.fail(f"{value} is neither more than 1 nor 0.", param, ctx)
        return ratio


class TokensOrWord(click.ParamType[int | None]):
    """A number of tokens, at least 1, or one of a few words, which each stand for a value."""

    name = "tokens"

    def __init__(self, words: Mapping[str, int | None]) -> None:
        self._words = words

    def get_metavar(self, *_: object, **__: object) -> str:
        return f"[{'|'.join(self._words)}|TOKENS]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        if value in self._words:
            return self._words[value]
        if not str(value).isdecimal() or not int(value):
            words = ", ".join(self._words)
            self.fail(f"{value} is neither {words} nor a number of tokens from 1.", param, ctx)
        return int(value)
