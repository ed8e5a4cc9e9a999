"""The endpoints `POST /tokenize` and `/detokenize`, with vLLM's fields."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from baton.api.backend import Backend, ModelInfo
from baton.api.body import ListOf, RequestBody
from baton.api.errors import refused
from baton.api.fields.field_table import FieldPlace, works
from baton.api.openai.messages import Messages
from baton.api.openai.tools import Tools
from baton.api.prepared import Prepared
from baton.api.request_body import BodyReader
from baton.api.text_service import TextService, check_ids, served_model

PART_BYTES = 1 << 18
"""The parts in which a large reply is sent."""


class TokenizeBody(RequestBody):
    """A text, or a conversation that the chat template turns into one."""

    place: ClassVar[FieldPlace | None] = FieldPlace.TOKENIZE

    model: Annotated[str | None, works("the served name; default and an empty one are any")] = None
    prompt: Annotated[str | None, works("a text; or else messages")] = None
    messages: Annotated[Messages | None, works("the chat template, unchanged")] = None
    add_special_tokens: Annotated[
        bool | None, works("the tokenizer; a chat's default is false")
    ] = None  # None: True for a prompt, False for messages
    return_token_strs: Annotated[bool | None, works("the text of each token")] = None
    add_generation_prompt: Annotated[bool, works("variable of the chat template")] = True
    tools: Annotated[Tools | None, works("the chat template, unchanged")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, works("variables of the chat template")
    ] = None

    async def prepare(
        self, text: TextService, models: Sequence[ModelInfo], owner: str | None
    ) -> tuple[Self, Prepared]:
        """Return the body without its prompt, and the reply. Raises `ApiError`."""
        prepared = Prepared(reply=bytes((await self.reply(text, models)).body))
        none = dict.fromkeys(("prompt", "messages", "tools", "chat_template_kwargs"))
        return self.model_copy(update=none), prepared

    async def reply(self, text: TextService, models: Sequence[ModelInfo]) -> JSONResponse:
        """Return the token ids. Raises `ApiError`."""
        model = served_model(self.model, models)
        ids = await self._ids(text)
        table = text.table
        return JSONResponse(
            {
                "count": len(ids),
                "max_model_len": model.max_model_len,
                "tokens": list(ids),
                "token_strs": [table.text(i) for i in ids] if self.return_token_strs else None,
            }
        )

    async def _ids(self, text: TextService) -> Sequence[int]:
        if (self.prompt is None) == (self.messages is None):
            raise refused("prompt", "expected exactly one of prompt and messages")
        if self.prompt is not None:
            special = self.add_special_tokens is not False
            return await text.encode(self.prompt, add_special_tokens=special)
        if self.add_special_tokens:
            raise refused(
                "add_special_tokens",
                "the chat template writes the special tokens of messages itself; leave it out",
            )
        prompt = await text.encode_chat(
            self.messages or (),
            add_generation_prompt=self.add_generation_prompt,
            tools=self.tools or None,
            variables=self.chat_template_kwargs,
        )
        return prompt.ids


class DetokenizeBody(RequestBody):
    place: ClassVar[FieldPlace | None] = FieldPlace.DETOKENIZE

    model: Annotated[str | None, works("the served name; default and an empty one are any")] = None
    tokens: Annotated[ListOf[int], works("the ids")]

    async def prepare(
        self, text: TextService, models: Sequence[ModelInfo], owner: str | None
    ) -> tuple[Self, Prepared]:
        """Return the body without its tokens, and the reply. Raises `ApiError`."""
        prepared = Prepared(reply=bytes((await self.reply(text, models)).body))
        return self.model_copy(update={"tokens": []}), prepared

    async def reply(self, text: TextService, models: Sequence[ModelInfo]) -> JSONResponse:
        """Return the text of `tokens`, special tokens included. Raises `ApiError`."""
        check_ids(self.tokens, served_model(self.model, models), "tokens")
        return JSONResponse({"prompt": await text.decode(self.tokens, skip_special_tokens=False)})


@dataclass(frozen=True)
class TokenEndpoints:
    """The handlers of `/tokenize` and `/detokenize`."""

    backend: Backend
    text: TextService
    bodies: BodyReader

    async def tokenize(self, request: Request) -> Response:
        return await self._reply(await self.bodies.read(request, TokenizeBody))

    async def detokenize(self, request: Request) -> Response:
        return await self._reply(await self.bodies.read(request, DetokenizeBody))

    async def _reply(self, body: TokenizeBody | DetokenizeBody) -> Response:
        if body.prepared is None:
            return await body.reply(self.text, await self.backend.models())
        whole = body.prepared.reply
        size = {"content-length": str(len(whole))}
        return StreamingResponse(_parts(whole), headers=size, media_type="application/json")


async def _parts(whole: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(whole), PART_BYTES):
        yield whole[at : at + PART_BYTES]
