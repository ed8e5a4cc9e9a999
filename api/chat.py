"""The endpoint `POST /v1/chat/completions`."""

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from baton.api.access import admit
from baton.api.answers import collect, stream_answers
from baton.api.backend import Backend
from baton.api.chat_choice import ChatChoices
from baton.api.chat_schema import ChatBody
from baton.api.disconnect import unless_disconnected
from baton.api.errors import refused
from baton.api.openai_stream import Envelope, chunks
from baton.api.prompt_scores import prompt_scores
from baton.api.request_body import BodyReader, labels_of
from baton.api.requests import make_requests, new_request_id
from baton.api.sse import EventStream
from baton.api.text_service import ChatPrompt, TextService, room_for_answer, served_model
from baton.api.truncation import most_tokens, truncated
from baton.core.sampling_params import SamplingParams
from baton.text.reply_parser import ReplyParser
from baton.text.tool_calls import properties_of


@dataclass(frozen=True)
class ChatEndpoint:
    """The handler of `POST /v1/chat/completions`."""

    backend: Backend
    text: TextService
    bodies: BodyReader

    async def post(self, request: Request) -> Response:
        body = await self.bodies.read(request, ChatBody)
        body.check()
        await self.text.check_grammar(*body.wanted_grammar())
        model = served_model(body.model, await self.backend.models())
        tools = body.offered_tools
        if tools is not None and self.text.tools is None:
            raise refused("tools", "this model's chat template knows no calls of tools")
        prompt = await self.text.encode_chat(
            body.template_messages(),
            add_generation_prompt=body.generation_prompt,
            continue_final_message=body.continue_final_message,
            add_special_tokens=body.add_special_tokens,
            tools=tools,
            variables=body.variables(),
            most=most_tokens(body, model),
        )
        ids = truncated(prompt.ids, body, model, body.answer_tokens)
        room = room_for_answer(
            ids,
            body.answer_tokens,
            model,
            param="messages",
            limit_param=body.answer_tokens_field,
        )
        sampling = _sampling(body, room)
        self.text.check_sampling(sampling, model)
        requests = make_requests(ids, sampling, body.choices, labels_of(request, body))
        admit(request, requests)
        deltas = stream_answers(
            self.backend, self.text, requests, skip_special_tokens=body.skip_special_tokens
        )
        parsers = [self._parser(body, prompt, tools) for _ in requests]
        form = ChatChoices(self.text.table, parsers, bool(body.logprobs), body.parallel_tool_calls)
        reply_id = new_request_id()
        headers = {"x-request-id": reply_id}
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        envelope = Envelope(
            f"chatcmpl-{reply_id}", kind, model.model_id, body.choices, body.include_usage
        )
        if body.stream:
            return EventStream(chunks(envelope, form, deltas), headers)
        answers = await unless_disconnected(request.receive, collect(deltas, len(requests)))
        choices = [form.whole(i, answer) for i, answer in enumerate(answers)]
        reply = envelope.whole(choices, answers)
        if body.prompt_logprobs is not None:
            reply["prompt_logprobs"] = prompt_scores(answers[0].prompt_logprobs, self.text.table)
        return JSONResponse(reply, headers=headers)

    def _parser(
        self, body: ChatBody, prompt: ChatPrompt, tools: list[dict[str, Any]] | None
    ) -> ReplyParser:
        """Return a reply parser. Answers that follow a grammar have no reasoning and no tool
        calls.
        """
        free = body.wanted_grammar()[0] is None
        return ReplyParser(
            self.text.reasoning if free and body.separate_reasoning else None,
            self.text.tools if tools is not None else None,
            thinking=prompt.thinking and free and body.separate_reasoning,
            properties=properties_of(tools or []),
        )


def _sampling(body: ChatBody, max_tokens: int) -> SamplingParams:
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    names = {"max_tokens": body.answer_tokens_field, "logprobs": "top_logprobs"}
    return body.sampling(
        max_tokens,
        names,
        logprobs=logprobs,
        prompt_logprobs_start=None if body.prompt_logprobs is None else 0,
        prompt_logprobs=body.prompt_logprobs or 0,
    )
