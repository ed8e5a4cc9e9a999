"""The messages of a conversation in the forms that one template reads."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from baton.text.conversation import CallArguments, Message, PastCall
from baton.text.template_traits import MessageJson, TemplateTraits, with_empty_content


def template_messages(messages: Sequence[Message], traits: TemplateTraits) -> list[MessageJson]:
    """Return the messages as the template gets them."""
    return [_message(message, traits) for message in _placed(messages, traits)]


def _placed(messages: Sequence[Message], traits: TemplateTraits) -> Sequence[Message]:
    """Put system messages where the template reads them.

    Where it reads none behind the first, those at the beginning become one, and the text of a later
    one joins the user's message beside it. A text in its place keeps the prompt before it as it
    was, so that a cached prefix is found.
    """
    placed = list(messages)
    if not (traits.leading_system and traits.later_system):
        placed = _without_later_system(messages, traits.leading_system)
    return placed if traits.user_runs else _joined_users(placed)


def _without_later_system(messages: Sequence[Message], leading: bool) -> list[Message]:
    leads = 0
    while leads < len(messages) and messages[leads].role == "system":
        leads += 1
    placed: list[Message] = []
    if leads and leading:
        texts = ["\n".join(message.parts) for message in messages[:leads]]
        first = messages[0] if leads == 1 else Message("system", ("\n\n".join(texts),))
        placed.append(first)
    waiting: tuple[str, ...] = ()  # texts for the user's message behind them
    for message in messages[leads if leading else 0 :]:
        if message.role == "system" and placed and placed[-1].role == "user":
            placed[-1] = replace(placed[-1], parts=_joined(placed[-1].parts, message.parts))
        elif message.role == "system":
            waiting = _joined(waiting, message.parts)
        elif waiting and message.role == "user":
            placed.append(replace(message, parts=_joined(waiting, message.parts)))
            waiting = ()
        else:
            if waiting:
                placed.append(Message("user", waiting))
                waiting = ()
            placed.append(message)
    if waiting:
        placed.append(Message("user", waiting))
    return placed


def _joined(before: tuple[str, ...], behind: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts of two messages, a line break between them: templates that read lists of
    parts write these without one."""
    if not before or not behind:
        return before or behind
    return (*before[:-1], f"{before[-1]}\n{behind[0]}", *behind[1:])


def _joined_users(messages: Sequence[Message]) -> list[Message]:
    """Join messages of the user that follow each other, for templates that want turns."""
    joined: list[Message] = []
    for message in messages:
        if joined and message.role == joined[-1].role == "user":
            joined[-1] = replace(joined[-1], parts=_joined(joined[-1].parts, message.parts))
        else:
            joined.append(message)
    return joined


def _message(message: Message, traits: TemplateTraits) -> MessageJson:
    made: MessageJson = {"role": message.role, "content": _content(message, traits)}
    if message.calls and not message.parts:
        made = with_empty_content(made, traits.empty_content)
    if message.reasoning:  # by every name that templates know
        made |= dict.fromkeys(("reasoning_content", "thinking", "reasoning"), message.reasoning)
    if message.calls:
        made["tool_calls"] = [_call(call, traits) for call in message.calls]
    return {**made, **message.more}


def _content(message: Message, traits: TemplateTraits) -> str | list[MessageJson]:
    many = len(message.parts) > 1 and message.role in traits.list_roles
    if many or traits.only_lists:
        return [{"type": "text", "text": part} for part in message.parts]
    return "\n".join(message.parts)


def _call(call: PastCall, traits: TemplateTraits) -> MessageJson:
    of_call = {} if call.id is None else {"id": call.id}
    function = {"name": call.name, "arguments": _arguments(call.arguments, traits)}
    return {**of_call, "type": "function", "function": function}


def _arguments(given: CallArguments, traits: TemplateTraits) -> Any:
    if not traits.argument_objects or (given.value is None and traits.argument_texts):
        return given.text
    return given.whole()
