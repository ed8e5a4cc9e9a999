"""The gRPC service `baton.v1.Inference` over a `Backend`."""

from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext
from typing import Any

from baton.api.access.access import abortable_by_call, open_call
from baton.api.access.key_accounts import KeyCall
from baton.api.access.key_gate import KeyGate
from baton.api.answers import stream_answer
from baton.api.backend import Backend, GenerateRequest, ModelInfo
from baton.api.call_log import CallLog, CallRecord
from baton.api.deadline import Deadline
from baton.api.errors import invalid
from baton.api.grpc.replies import Replies, in_batch, streamed, whole
from baton.api.grpc.requests import RequestReader
from baton.api.interleave import interleave
from baton.api.openai.completion_schema import MAX_PROMPTS
from baton.api.text_service import TextService, check_ids, served_model
from baton.core.errors import ApiError
from baton.proto import inference_pb2, inference_pb2_grpc
from baton.rpc.errors import refuse


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """The service, for `grpc.aio` servers.

    A call that the client cancels, or whose deadline passes, cancels its requests.
    """

    def __init__(
        self,
        backend: Backend,
        text: TextService,
        keys: KeyGate | None = None,
        calls: CallLog | None = None,
    ) -> None:
        """keys: those that `KeyInterceptor` asks for; None serves everybody. calls: where calls are
        logged; None: nowhere.
        """
        self._backend = backend
        self._text = text
        self._keys = keys
        self._calls = calls
        self._reader = RequestReader(backend, text)

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateReply]:
        async with open_call(context, self._keys, self._calls, "Generate") as (call, record):
            self._backend.check_room(_owner(call))
            wanted = await self._reader.read(request, _owner(call), _deadline(context), record)
            _admit(call, wanted)
            async with aclosing(self._replies(wanted, request.stream)) as replies:
                async for reply in replies:
                    yield reply

    async def GenerateBatch(
        self, request: inference_pb2.GenerateBatchRequest, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateBatchReply]:
        async with open_call(context, self._keys, self._calls, "GenerateBatch") as (call, record):
            self._backend.check_room(_owner(call))
            deadline = _deadline(context)
            wanted = [
                each async for each in self._read_all(request, _owner(call), deadline, record)
            ]
            for each in wanted:
                _admit(call, each)
            streams = [
                in_batch(i, self._replies(each, request.requests[i].stream))
                for i, each in enumerate(wanted)
            ]
            async with aclosing(interleave(streams)) as replies:
                async for reply in replies:
                    yield reply

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: Any
    ) -> inference_pb2.TokenizeReply:
        async with open_call(context, self._keys, self._calls, "Tokenize"):
            model = await self._model(request.model)
            special = request.add_special_tokens or not request.HasField("add_special_tokens")
            ids = await self._text.encode(request.text, add_special_tokens=special, param="text")
        return inference_pb2.TokenizeReply(ids=ids, max_model_len=model.max_model_len)

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: Any
    ) -> inference_pb2.DetokenizeReply:
        async with open_call(context, self._keys, self._calls, "Detokenize"):
            check_ids(request.ids, await self._model(request.model), "ids")
            text = await self._text.decode(
                request.ids, skip_special_tokens=request.skip_special_tokens
            )
        return inference_pb2.DetokenizeReply(text=text)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Any
    ) -> inference_pb2.ListModelsReply:
        async with open_call(context, self._keys, self._calls, "ListModels"):
            served = await self._backend.models()
        return inference_pb2.ListModelsReply(
            models=[
                inference_pb2.ServedModel(
                    id=model.model_id,
                    max_model_len=model.max_model_len,
                    vocab_size=model.vocab_size,
                    created=model.created,
                    root=model.root,
                )
                for model in served
            ]
        )

    async def Abort(
        self, request: inference_pb2.AbortRequest, context: Any
    ) -> inference_pb2.AbortReply:
        """Abort requests. Unknown names, and those of other keys, are no error."""
        metadata, calls = context.invocation_metadata(), self._calls
        try:
            with nullcontext() if calls is None else calls.of_rpc(metadata, "Abort"):
                if not request.name and not request.all:
                    raise invalid("name", "expected a name, or all to be true")
                name = None if request.all else request.name
                stopped = await self._backend.abort(name, abortable_by_call(metadata, self._keys))
        except ApiError as error:
            await refuse(context, error)
        return inference_pb2.AbortReply(aborted=stopped)

    async def _model(self, name: str) -> ModelInfo:
        return served_model(name, await self._backend.models())

    def _replies(self, wanted: GenerateRequest, stream: bool) -> Replies:
        deltas = stream_answer(self._backend, self._text, wanted)
        return streamed(wanted, deltas) if stream else whole(wanted, deltas)

    async def _read_all(
        self,
        request: inference_pb2.GenerateBatchRequest,
        owner: str | None,
        deadline: Deadline | None,
        record: CallRecord | None,
    ) -> AsyncIterator[GenerateRequest]:
        """Yield the batch's requests. Raises `ApiError` that names the one that is wrong."""
        count = len(request.requests)
        if not 1 <= count <= MAX_PROMPTS:
            raise invalid("requests", f"{count} requests in a batch; expected 1 to {MAX_PROMPTS}")
        for i, each in enumerate(request.requests):
            try:
                yield await self._reader.read(each, owner, deadline, record)
            except ApiError as error:
                raise ApiError(
                    error.code,
                    f"requests[{i}]: {error.message}",
                    param=f"requests[{i}].{error.param or ''}".rstrip("."),
                    expected=error.expected,
                    actual=error.actual,
                    retry_after_s=error.retry_after_s,
                ) from error


def _deadline(context: Any) -> Deadline | None:
    """Return the call's deadline. gRPC ends the call by itself then; this frees its memory too."""
    left_s = context.time_remaining()
    return None if left_s is None else Deadline.of(max(left_s, 1e-3), "deadline")


def _owner(call: KeyCall | None) -> str | None:
    return call.owner if call else None


def _admit(call: KeyCall | None, wanted: GenerateRequest) -> None:
    if call is not None:
        call.admit([wanted])
