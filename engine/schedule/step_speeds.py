"""The measured speed of an engine's steps: of those that decode, and of prompt tokens."""

_KEPT = 0.9
"""The part of what was measured that counts on at the next step."""


class _Mean:
    """A mean of seconds per unit that forgets old measurements."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._units = 0.0

    @property
    def value(self) -> float:
        """Return seconds per unit; 0 before the first measurement."""
        return self._seconds / self._units if self._units else 0.0

    def add(self, units: int, seconds: float) -> None:
        self._seconds = _KEPT * self._seconds + seconds
        self._units = _KEPT * self._units + units


class StepSpeeds:
    """The seconds of a step in which requests only decode, and those that a prompt token adds."""

    def __init__(self) -> None:
        self._decode = _Mean()
        self._prompt = _Mean()
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
            self._decode.add(1, seconds)
        elif not decode_rows:
            self._prompt.add(prompt_tokens, seconds)
        elif self._decode.value:
            self._prompt.add(prompt_tokens, max(seconds - self._decode.value, 0.0))

    def beside(self, least: int, most: int) -> int:
        """Return the prompt tokens that make a step of decoding rows about twice as long: a power
        of two times `least`, at most `most`. `least` while the speeds are not known.
        """
        tokens = least
        known = self._decode.value and self._prompt.value
        while known and 2 * tokens * self._prompt.value <= self._decode.value and tokens < most:
            tokens *= 2
        return min(tokens, most)
