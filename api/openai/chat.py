"""The endpoint `POST /v1/chat/completions`."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from baton.api.answers import collect
from baton.api.disconnect import unless_disconnected
from baton.api.openai.chat_choice import ChatChoices
from baton.api.openai.chat_schema import ChatBody
from baton.api.openai.chat_turn import ChatTurns
from baton.api.openai.prompt_scores import prompt_scores
from baton.api.openai.stream import Envelope, chunks
from baton.api.replies import JsonReply
from baton.api.request_body import BodyReader
from baton.api.sse import EventStream


@dataclass(frozen=True)
class ChatEndpoint:
    """The handler of `POST /v1/chat/completions`."""

    turns: ChatTurns
    bodies: BodyReader
    ping_s: float  # of silent streams

    async def post(self, request: Request) -> Response:
        body = await self.bodies.read(request, ChatBody)
        turn = await self.turns.begin(request, body)
        table = self.turns.text.table
        form = ChatChoices(
            table,
            turn.parsers,
            bool(body.logprobs),
            body.parallel_tool_calls,
            body.separate_reasoning,
        )
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        envelope = Envelope(
            f"chatcmpl-{turn.request_id}",
            kind,
            turn.model.model_id,
            body.choices,
            body.include_usage,
            predicted=body.prediction is not None,
            cached_details=body.return_cached_tokens_details,
        )
        if body.stream:
            return EventStream(chunks(envelope, form, turn.deltas), ping_s=self.ping_s)
        answers = await unless_disconnected(
            request.scope, request.receive, collect(turn.deltas, len(turn.parsers))
        )
        choices = [form.whole(i, answer) for i, answer in enumerate(answers)]
        reply = envelope.whole(choices, answers)
        if body.prompt_logprobs is not None:
            reply["prompt_logprobs"] = prompt_scores(answers[0].prompt_logprobs, table)
        return JsonReply(reply)
