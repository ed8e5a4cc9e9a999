"""The tokens with which a chat template ends a turn of the assistant.

A checkpoint whose template ends turns with `<|im_end|>` may name no end but `<|endoftext|>` in its
configs, after a training that changed the one and not the other. The model learned to end its turn
as the template does, so that its answers would run on.

A token that is wrongly taken for an end cuts every answer, and one that is missed leaves what the
configs say. So all that may stand within a turn, or open the next, ends nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from baton.text.chat_template import ChatTemplate
from baton.text.conversation import CallArguments, Message, PastCall
from baton.text.errors import ChatTemplateError
from baton.text.template_traits import PROBED_TOOL

_SAID, _THOUGHT, _GIVEN = "probed answer", "probed thought", "probed value"
_USER = Message("user", ("hi",))
_TURN = Message("assistant", (_SAID,))
_CALL = PastCall("probed_tool", CallArguments.of({"probed_key": _GIVEN}), "probed001")
_RESULT = Message("tool", ("done",), more={"tool_call_id": _CALL.id, "name": _CALL.name})
# Templates drop earlier reasoning. Nemotron's writes a last turn with calls as two turns.
_WITH_LONGER_TURNS = (
    (_USER, replace(_TURN, reasoning=_THOUGHT)),
    (_USER, replace(_TURN, calls=(_CALL,)), _RESULT),
)
_TOOLS: tuple[Sequence[Mapping[str, Any]] | None, ...] = (None, [PROBED_TOOL])
_END_OF_MESSAGE = "<|eom_id|>"
"""Ends a turn of Llama 3 that calls a tool. SGLang takes it for an end in every vocabulary that has
it (`attach_additional_stop_token_ids`)."""


def turn_ends(
    template: ChatTemplate, tokens: Mapping[str, int], named: Collection[int] = ()
) -> frozenset[int]:
    """Return the ids at which an answer to a prompt of this template ends.

    tokens: the texts of added tokens, which a tokenizer never splits, and their ids. named: the
    ends that the configs name. A turn that has one of them behind its text needs no other.
    """
    inner = "".join(
        _inside(_render(template, turns, tools)) for tools in _TOOLS for turns in _WITH_LONGER_TURNS
    )
    ends = {_END_OF_MESSAGE}
    for tools in _TOOLS:
        behind = _behind_turn(template, tokens, tools)
        if not any(tokens[text] in named for text in behind):
            # Harmony has `<|end|>` behind reasoning too, and ERNIE `</response>` before calls.
            ends.update([text for text in behind if text not in inner][:1])
    return frozenset(tokens[text] for text in ends if text in tokens)


def _behind_turn(
    template: ChatTemplate, tokens: Mapping[str, int], tools: Sequence[Mapping[str, Any]] | None
) -> list[str]:
    """Return the tokens behind the text of a turn, be it the last turn or not."""
    before, _, behind = _render(template, (_USER, _TURN), tools).rpartition(_SAID)
    found = _leading_tokens(behind, tokens)
    # A template may open the next turn unasked. Its token opened this turn too; and `<think>` is
    # not there before a turn of the user.
    if found and before.rstrip().endswith(found[0]):
        return []
    _, said, followed = _render(template, (_USER, _TURN, _USER), tools).rpartition(_SAID)
    if said:
        always = _leading_tokens(followed, tokens)
        found = [text for text in found if text in always]
    return found


def _render(
    template: ChatTemplate, turns: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
) -> str:
    """Return the prompt; an empty text if the template refuses these turns."""
    try:
        return template.render(turns, add_generation_prompt=False, tools=tools)
    except ChatTemplateError:
        return ""


def _leading_tokens(text: str, tokens: Mapping[str, int]) -> list[str]:
    """Return the tokens that a text begins with, white space aside."""
    found: list[str] = []
    text = text.lstrip()
    while token := max((t for t in tokens if t and text.startswith(t)), key=len, default=""):
        found.append(token)
        text = text.removeprefix(token).lstrip()
    return found


def _inside(prompt: str) -> str:
    """Return what lies between the first and the last of a turn's parts."""
    places = [place for part in (_THOUGHT, _SAID, _GIVEN) if (place := prompt.rfind(part)) >= 0]
    return prompt[min(places) : max(places)] if places else ""
