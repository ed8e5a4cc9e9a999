"""The endpoints `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from baton.api.access.access import owner_of
from baton.api.anthropic.body import ConversationBody, MessagesBody
from baton.api.anthropic.writer import MessageWriter
from baton.api.disconnect import unless_disconnected
from baton.api.errors import anthropic_error
from baton.api.openai.chat_turn import ChatTurn, ChatTurns
from baton.api.replies import JsonReply
from baton.api.request_body import BodyReader
from baton.api.sse import EventStream, named_event
from baton.api.text_service import served_model


@dataclass(frozen=True)
class MessagesEndpoint:
    """The handlers. Errors have Anthropic's body, because `error_body` knows the path."""

    turns: ChatTurns
    bodies: BodyReader
    ping_s: float  # of silent streams

    async def post(self, request: Request) -> Response:
        body = await self.bodies.read(request, MessagesBody)
        budget = body.thinking_tokens()
        turn = await self.turns.begin(request, body.whole_chat_body(), thinking_tokens=budget)
        writer = MessageWriter(turn.model.model_id, turn.prompt_tokens)
        if body.stream:
            return EventStream(
                _events(turn, writer),
                ping_s=self.ping_s,
                encode=named_event,
                failure=lambda error: [anthropic_error(error)],
                last=b"",
                ping=named_event({"type": "ping"}),
            )
        await unless_disconnected(request.scope, request.receive, _collect(turn, writer))
        return JsonReply(writer.message)

    async def count_tokens(self, request: Request) -> Response:
        """Return the number of the prompt's tokens."""
        body = await self.bodies.read(request, ConversationBody)
        chat = body.chat_body()
        chat.check()
        model = served_model(chat.model, await self.turns.backend.models())
        owner = owner_of(request)
        prompt = await chat.encode(self.turns.text, chat.tool_rule(), model, owner)
        return JsonReply({"input_tokens": len(prompt.ids)})


async def _events(turn: ChatTurn, writer: MessageWriter) -> AsyncGenerator[dict[str, Any], None]:
    begun = False
    async with aclosing(turn.parts()) as parts:
        async for each in parts:
            if not begun:
                begun = True
                for event in writer.begin():
                    yield event
            for event in writer.push(each):
                yield event


async def _collect(turn: ChatTurn, writer: MessageWriter) -> None:
    async with aclosing(turn.parts()) as parts:
        async for each in parts:
            for _ in writer.push(each):
                pass
