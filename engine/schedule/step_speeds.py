"""The measured speed of an engine's steps: of those that decode, and of prompt tokens."""

from baton.core.fading_mean import FadingMean

_KEPT = 0.9
"""The part of what was measured that counts on at the next step."""
_KEPT_LINE = 0.97
"""The part that counts on where sizes are compared: that takes more steps, of which few differ."""
_LEAST_SPREAD = 0.01
"""The variance of sizes, as a part of their mean's square, below which they count as equal."""
UNIT = 16
"""Prompt tokens by which a limit of time is kept: kernels take fewer no faster."""


class _Line:
    """The seconds that prompt tokens add to steps of decoding rows: some a step, and some each."""

    def __init__(self) -> None:
        self._steps = self._tokens = self._seconds = 0.0
        self._squares = self._products = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self._steps = _KEPT_LINE * self._steps + 1
        self._tokens = _KEPT_LINE * self._tokens + tokens
        self._seconds = _KEPT_LINE * self._seconds + seconds
        self._squares = _KEPT_LINE * self._squares + tokens**2
        self._products = _KEPT_LINE * self._products + tokens * seconds

    @property
    def fit(self) -> tuple[float, float] | None:
        """Return the seconds of a step and of each token, by least squares; None: not known.

        While sizes hardly differ, all seconds count for tokens. A token has half of its mean time
        at least: what is measured has noise, and a budget must not grow at once by more than that.
        """
        if not self._tokens:
            return None
        mean_s = self._seconds / self._tokens
        spread = self._steps * self._squares - self._tokens**2
        if spread <= _LEAST_SPREAD * self._tokens**2:
            return 0.0, mean_s
        slope_s = (self._steps * self._products - self._tokens * self._seconds) / spread
        each_s = min(max(slope_s, mean_s / 2), mean_s)
        return (self._seconds - each_s * self._tokens) / self._steps, each_s


class StepSpeeds:
    """The seconds of a step in which requests only decode, and those that a prompt token adds."""

    def __init__(self) -> None:
        self._decode = FadingMean()
        self._prompt = FadingMean()
        self._beside = _Line()
        self._first = True

    @property
    def decode_step_s(self) -> float:
        """Return the seconds of a step without prompts; 0: not known."""
        return self._decode.value

    @property
    def prompt_token_s(self) -> float:
        """Return the seconds that a prompt token adds to a step; 0: not known."""
        return self._prompt.value

    def add(self, decode_rows: int, prompt_tokens: int, seconds: float | None) -> None:
        """Note a step of the forward stream. The first one counts for nothing: it touches memory.
        None: nobody knows what it took.

        Prompt tokens beside rows that decode cost what the step takes longer than one without them.
        """
        if seconds is None:
            return
        if self._first:
            self._first = False
        elif not prompt_tokens:
            self._decode.add(seconds, 1, _KEPT)
        elif not decode_rows:
            self._prompt.add(seconds, prompt_tokens, _KEPT)
        elif self._decode.value:
            added_s = max(seconds - self._decode.value, 0.0)
            self._prompt.add(added_s, prompt_tokens, _KEPT)
            self._beside.add(prompt_tokens, added_s)

    def beside(self, least: int, most: int) -> int:
        """Return the prompt tokens that make a step of decoding rows about twice as long: a power
        of two times `least`, at most `most`. `least` while the speeds are not known.
        """
        tokens = least
        known = self._decode.value and self._prompt.value
        while known and 2 * tokens * self._prompt.value <= self._decode.value and tokens < most:
            tokens *= 2
        return min(tokens, most)

    def within(self, limit_s: float, most: int, *, decoding: bool) -> int | None:
        """Return the prompt tokens with which a step takes at most `limit_s`: a multiple of `UNIT`,
        at least one, at most `most`. None while the speeds are not known.

        decoding: rows decode in the step.
        """
        fit = self._beside.fit
        if fit is None:
            fit = (0.0, self._prompt.value) if self._prompt.value else None
        if fit is None or (decoding and not self._decode.value):
            return None
        step_s, each_s = fit
        left_s = limit_s - step_s - (self._decode.value if decoding else 0.0)
        units = int(left_s / (UNIT * each_s)) if each_s else most
        return min(max(units, 1) * UNIT, most)
