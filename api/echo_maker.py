"""Making echoes, and the text between a prompt and the answer that continues it."""

from collections.abc import Sequence

from baton.api.echo import Echo
from baton.api.text_service import TextService
from baton.text.token_offsets import text_after


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
