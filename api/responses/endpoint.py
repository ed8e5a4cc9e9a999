"""The endpoint `POST /v1/responses`: OpenAI's Responses API, without stored state."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from baton.api.disconnect import unless_disconnected
from baton.api.openai.chat_turn import ChatTurn, ChatTurns
from baton.api.replies import JsonReply
from baton.api.request_body import BodyReader
from baton.api.responses.body import ResponsesBody, own_fields
from baton.api.responses.writer import ResponseWriter
from baton.api.sse import EventStream, named_event


@dataclass(frozen=True)
class ResponsesEndpoint:
    """The handler of `POST /v1/responses`."""

    turns: ChatTurns
    bodies: BodyReader
    ping_s: float  # of silent streams

    async def post(self, request: Request) -> Response:
        body = await self.bodies.read(request, ResponsesBody)
        with own_fields():
            turn = await self.turns.begin(request, body.chat_body())
        writer = ResponseWriter(body, turn.model.model_id, self.turns.text.table)
        if body.stream:
            return EventStream(
                _events(turn, writer),
                ping_s=self.ping_s,
                encode=named_event,
                failure=writer.fail,
                last=b"",
            )
        await unless_disconnected(request.scope, request.receive, _collect(turn, writer))
        return JsonReply(writer.response)


async def _events(turn: ChatTurn, writer: ResponseWriter) -> AsyncGenerator[dict[str, Any], None]:
    async with aclosing(turn.parts()) as parts:
        async for each in parts:
            for event in writer.begin():
                yield event
            for event in writer.push(each):
                yield event


async def _collect(turn: ChatTurn, writer: ResponseWriter) -> None:
    async with aclosing(turn.parts()) as parts:
        async for each in parts:
            for _ in writer.push(each):
                pass
