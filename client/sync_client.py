"""The client that blocks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import grpc

from baton.client.connection import DEFAULT_TIMEOUT_S, RouterConnection
from baton.client.values import AnswerPart, Completion, ModelEntry, Prompt, RequestOptions
from baton.client.wire import answer_of, batch_of, error_of, models_of, part_of, request_of
from baton.core.errors import ApiError
from baton.core.sampling_params import SamplingParams
from baton.proto import inference_pb2, inference_pb2_grpc

_SAMPLING = SamplingParams()
_OPTIONS = RequestOptions()


class Client:
    """A client of `baton.v1.Inference`. Use it in `with`; several threads may share it.

    Every method raises `ApiError`, whose `retryable` says whether the same call may help. A call
    whose `timeout_s` passes is cancelled on the server too.
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
        self._channel = self._connection.open()
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Running calls are cancelled."""
        self._channel.close()

    def generate(
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
            (part,) = [part_of(reply) for reply in call]
        return answer_of(part)

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams = _SAMPLING,
        options: RequestOptions = _OPTIONS,
        *,
        timeout_s: float | None = None,
    ) -> Iterator[AnswerPart]:
        """Yield the parts of an answer as they are made. Closing the iterator cancels it."""
        request = request_of(prompt, sampling, options, stream=True)
        call = self._stub.Generate(request, **self._given(timeout_s))
        try:
            with self._errors():
                for reply in call:
                    yield part_of(reply)
        finally:
            call.cancel()

    def generate_batch(
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
            replies = list(self._stub.GenerateBatch(batch, **self._given(timeout_s)))
        return batch_of(replies, len(prompts))

    def tokenize(self, text: str, *, add_special_tokens: bool = True, model: str = "") -> list[int]:
        """Return the token ids of a text."""
        request = inference_pb2.TokenizeRequest(
            model=model, text=text, add_special_tokens=add_special_tokens
        )
        with self._errors():
            return list(self._stub.Tokenize(request, **self._given()).ids)

    def detokenize(
        self, ids: Sequence[int], *, skip_special_tokens: bool = False, model: str = ""
    ) -> str:
        """Return the text of token ids."""
        request = inference_pb2.DetokenizeRequest(
            model=model, ids=ids, skip_special_tokens=skip_special_tokens
        )
        with self._errors():
            return str(self._stub.Detokenize(request, **self._given()).text)

    def models(self) -> list[ModelEntry]:
        """Return the served models. The first is the default."""
        with self._errors():
            request = inference_pb2.ListModelsRequest()
            return models_of(self._stub.ListModels(request, **self._given()))

    def abort(self, name: str) -> int:
        """Abort the requests with this id or `client_id`. Returns their number."""
        with self._errors():
            request = inference_pb2.AbortRequest(name=name)
            return int(self._stub.Abort(request, **self._given()).aborted)

    def _given(self, timeout_s: float | None = None) -> dict[str, Any]:
        return self._connection.call_options(timeout_s)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as failed:
            raise error_of(failed, self._connection.address) from failed
