"""The prompts that completions repeat, and the text that continues them."""

from collections.abc import Sequence
from dataclasses import dataclass

from baton.api.text_service import TextService
from baton.text.token_offsets import text_after


@dataclass(frozen=True)
class Echo:
    """The prompt of one choice, as far as the choice's text depends on it."""

    last_id: int  # the prompt's last token
    text: str | None = None  # the prompt that the choice begins with; None: it was not asked for
    offsets: Sequence[int] = ()  # where each of the prompt's tokens begins in `text`, if asked for


async def echo_of_text(
    text: TextService, prompt: str, ids: Sequence[int], *, add_special_tokens: bool, offsets: bool
) -> Echo:
    """Return the echo of a prompt that came as text, all of which `ids` stand for."""
    found = await text.offsets_in(prompt, add_special_tokens) if offsets else ()
    return Echo(ids[-1], prompt, found)


async def echo_of_ids(
    text: TextService, ids: Sequence[int], *, skip_special_tokens: bool, offsets: bool
) -> Echo:
    """Return the echo of a prompt that came as token ids, or was cut to these."""
    shown = await text.decode(ids, skip_special_tokens=skip_special_tokens)
    found = await text.offsets_of(ids, skip_special_tokens) if offsets else ()
    return Echo(ids[-1], shown, found)


def lead_of(
    text: TextService, echo: Echo, ids: Sequence[int], skip_special_tokens: bool
) -> str | None:
    """Return the text, a space or nothing, between the prompt and an answer that begins with
    `ids`; None if these have no text.

    Decoders remove the space of a text's first token, but an answer is no text of its own.
    """
    shown = text.tokenizer.with_text(ids, skip_special_tokens)
    if not shown:
        return None
    alone = text.tokenizer.decode(shown[:1], skip_special_tokens=False)
    after = text_after(text.tokenizer, echo.last_id, shown[0])
    lead = after.removesuffix(alone)
    return lead if lead.isspace() else ""
