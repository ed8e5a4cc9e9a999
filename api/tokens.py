"""The endpoints `POST /tokenize` and `/detokenize`, with vLLM's fields."""

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from baton.api.backend import Backend
from baton.api.body import Body
from baton.api.chat_schema import Message, Tool, template_message
from baton.api.errors import refused
from baton.api.request_body import BodyReader
from baton.api.text_service import TextService, check_ids, served_model


class TokenizeBody(Body):
    """A text, or a conversation that the chat template turns into one."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None  # None: True for a prompt, False for messages
    return_token_strs: bool | None = None
    add_generation_prompt: bool = True
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: list[int]


@dataclass(frozen=True)
class TokenEndpoints:
    """The handlers of `/tokenize` and `/detokenize`."""

    backend: Backend
    text: TextService
    bodies: BodyReader

    async def tokenize(self, request: Request) -> Response:
        body = await self.bodies.read(request, TokenizeBody)
        model = served_model(body.model, await self.backend.models())
        ids = await self._ids(body)
        table = self.text.table
        return JSONResponse(
            {
                "count": len(ids),
                "max_model_len": model.max_model_len,
                "tokens": ids,
                "token_strs": [table.text(i) for i in ids] if body.return_token_strs else None,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        """Return the text of `tokens`, special tokens included."""
        body = await self.bodies.read(request, DetokenizeBody)
        model = served_model(body.model, await self.backend.models())
        check_ids(body.tokens, model, "tokens")
        text = await self.text.decode(body.tokens, skip_special_tokens=False)
        return JSONResponse({"prompt": text})

    async def _ids(self, body: TokenizeBody) -> tuple[int, ...]:
        if (body.prompt is None) == (body.messages is None):
            raise refused("prompt", "expected exactly one of prompt and messages")
        if body.prompt is not None:
            special = body.add_special_tokens is not False
            return await self.text.encode(body.prompt, add_special_tokens=special)
        if body.add_special_tokens:
            raise refused(
                "add_special_tokens",
                "the chat template writes the special tokens of messages itself; leave it out",
            )
        tools = [tool.model_dump(exclude_unset=True) for tool in body.tools or ()]
        prompt = await self.text.encode_chat(
            [template_message(message) for message in body.messages or ()],
            add_generation_prompt=body.add_generation_prompt,
            tools=tools or None,
            variables=body.chat_template_kwargs,
        )
        return prompt.ids
