"""The tokens with which a chat template ends a turn of the assistant.

A checkpoint whose template ends turns with `<|im_end|>` may name no end but `<|endoftext|>` in its
configs, after a training that changed the one and not the other. The model learned to end its turn
as the template does, so that its answers would run on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.text.chat_template import ChatTemplate
from baton.text.conversation import Message
from baton.text.errors import ChatTemplateError
from baton.text.template_traits import PROBED_TOOL

_SAID = "probed answer"
_TURN = (Message("user", ("hi",)), Message("assistant", (_SAID,)))
_END_OF_MESSAGE = "<|eom_id|>"
"""Ends a turn of Llama 3 that calls a tool. SGLang takes it for an end in every vocabulary that has
it (`attach_additional_stop_token_ids`)."""


def turn_ends(template: ChatTemplate, tokens: Mapping[str, int]) -> frozenset[int]:
    """Return the ids at which an answer to a prompt of this template ends.

    tokens: the texts of added tokens, which a tokenizer never splits, and their ids.
    """
    texts = {_end_of_turn(template, tokens, tools) for tools in (None, [PROBED_TOOL])}
    texts.add(_END_OF_MESSAGE)
    return frozenset(tokens[text] for text in texts if text in tokens)


def _end_of_turn(
    template: ChatTemplate, tokens: Mapping[str, int], tools: Sequence[Mapping[str, Any]] | None
) -> str:
    """Return the token behind the text of a turn; an empty text if there is none."""
    try:
        prompt = template.render(_TURN, add_generation_prompt=False, tools=tools)
    except ChatTemplateError:
        return ""
    before, said, behind = prompt.rpartition(_SAID)
    behind = behind.lstrip()
    found = max((text for text in tokens if text and behind.startswith(text)), key=len, default="")
    # A template may open the next turn unasked. That token opened this turn too.
    opens = found and before.rstrip().endswith(found)
    return "" if not said or opens else found
