"""The client for asyncio."""

from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from baton.client.connection import DEFAULT_TIMEOUT_S, RouterConnection
from baton.client.values import AnswerPart, Completion, ModelEntry, Prompt, RequestOptions
from baton.client.wire import answer_of, batch_of, error_of, models_of, part_of, request_of
from baton.core.errors import ApiError
from baton.core.sampling_params import SamplingParams
from baton.proto import inference_pb2, inference_pb2_grpc

T = TypeVar("T")
_SAMPLING = SamplingParams()
_OPTIONS = RequestOptions()


class AsyncClient:
    """A client of `baton.v1.Inference`. Use it in `async with`.

    Every method raises `ApiError`, whose `retryable` says whether the same call may help. A call
    that is cancelled, or whose `timeout_s` passes, is cancelled on the server too.
    """

    def __init__(
        self,
        address: str,
        *,
        api_key: str = "",
        tls: bool = False,
        authority: bytes | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        wait: bool = False,
    ) -> None:
        """address: host:port of the router's gRPC server. tls: trust this machine's authorities.
        authority: PEM of the only one to trust. timeout_s: the deadline of calls that name none.
        wait: let calls wait, up to their deadline, for a router that is being restarted; otherwise
        they fail at once while nobody listens.
        """
        self._connection = RouterConnection(address, api_key, tls, authority, timeout_s, wait)
        self._channel: grpc.aio.Channel = self._connection.open_async()
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Running calls are cancelled."""
        await self._channel.close()

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams = _SAMPLING,
        options: RequestOptions = _OPTIONS,
        *,
        timeout_s: float | None = None,
    ) -> Completion:
        """Return the whole answer to one prompt."""
        request = request_of(prompt, sampling, options, stream=False)
        with self._errors():
            call = self._stub.Generate(request, **self._given(timeout_s))
            (part,) = [part_of(reply) async for reply in call]
        return answer_of(part)

    async def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams = _SAMPLING,
        options: RequestOptions = _OPTIONS,
        *,
        timeout_s: float | None = None,
    ) -> AsyncIterator[AnswerPart]:
        """Yield the parts of an answer as they are made. Closing the iterator cancels it."""
        request = request_of(prompt, sampling, options, stream=True)
        call = self._stub.Generate(request, **self._given(timeout_s))
        try:
            with self._errors():
                async for reply in call:
                    yield part_of(reply)
        finally:
            call.cancel()

    async def generate_batch(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams = _SAMPLING,
        options: RequestOptions = _OPTIONS,
        *,
        timeout_s: float | None = None,
    ) -> list[Completion | ApiError]:
        """Return the answers to several prompts, in their order; an error for each that failed."""
        requests = [request_of(each, sampling, options, stream=False) for each in prompts]
        batch = inference_pb2.GenerateBatchRequest(requests=requests)
        with self._errors():
            call = self._stub.GenerateBatch(batch, **self._given(timeout_s))
            replies = [reply async for reply in call]
        return batch_of(replies, len(prompts))

    async def tokenize(
        self, text: str, *, add_special_tokens: bool = True, model: str = ""
    ) -> list[int]:
        """Return the token ids of a text."""
        request = inference_pb2.TokenizeRequest(
            model=model, text=text, add_special_tokens=add_special_tokens
        )
        return list((await self._one(self._stub.Tokenize(request, **self._given()))).ids)

    async def detokenize(
        self, ids: Sequence[int], *, skip_special_tokens: bool = False, model: str = ""
    ) -> str:
        """Return the text of token ids."""
        request = inference_pb2.DetokenizeRequest(
            model=model, ids=ids, skip_special_tokens=skip_special_tokens
        )
        text: str = (await self._one(self._stub.Detokenize(request, **self._given()))).text
        return text

    async def models(self) -> list[ModelEntry]:
        """Return the served models. The first is the default."""
        request = inference_pb2.ListModelsRequest()
        return models_of(await self._one(self._stub.ListModels(request, **self._given())))

    async def abort(self, name: str) -> int:
        """Abort the requests with this id or `client_id`. Returns their number."""
        request = inference_pb2.AbortRequest(name=name)
        return int((await self._one(self._stub.Abort(request, **self._given()))).aborted)

    async def _one(self, call: Awaitable[T]) -> T:
        with self._errors():
            return await call

    def _given(self, timeout_s: float | None = None) -> dict[str, Any]:
        return self._connection.call_options(timeout_s)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as failed:
            raise error_of(failed, self._connection.address) from failed
