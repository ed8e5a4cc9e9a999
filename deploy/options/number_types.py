"""Types of options that are numbers."""

import math

import click

from baton.core.options import Number, TokensOr


class Finite(click.FloatRange):
    """A finite number in a range; `click.FloatRange` accepts NaN and infinity."""

    def __init__(self, values: Number) -> None:
        super().__init__(values.least, values.most, min_open=values.above)
        self._values = values

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            unit = f" of {self._values.unit}" if self._values.unit else ""
            self.fail(f"{value} is not a finite number{unit}.", param, ctx)
        if 0 < number <= self._values.over:
            self.fail(f"{value} is neither more than {self._values.over:g} nor 0.", param, ctx)
        return number


class TokensOrWord(click.ParamType[int | None]):
    """A number of tokens, at least 1, or one of a few words, which each stand for a value."""

    name = "tokens"

    def __init__(self, values: TokensOr) -> None:
        self._words = values.words

    def get_metavar(self, *_: object, **__: object) -> str:
        return f"[{'|'.join(self._words)}|TOKENS]"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        if value in self._words:
            return self._words[str(value)]
        if not str(value).isdecimal() or not int(str(value)):
            words = ", ".join(self._words)
            self.fail(f"{value} is neither {words} nor a number of tokens from 1.", param, ctx)
        return int(str(value))
