"""The prompts that completions repeat."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Echo:
    """The prompt of one choice, as far as the choice's text depends on it."""

    last_id: int  # the prompt's last token
    text: str | None = None  # the prompt that the choice begins with; None: it was not asked for
    offsets: Sequence[int] = ()  # where each of the prompt's tokens begins in `text`, if asked for
