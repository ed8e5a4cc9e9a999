"""The answer of one request, and the messages that carry it to the router."""

from typing import Protocol

from baton.decode.request_timings import RequestTimings
from baton.engine.request.events import TokenSampled
from baton.proto import common_pb2, handoff_pb2, worker_pb2
from baton.rpc.convert import logprob_to_proto


class Outgoing(Protocol):
    """The next message to the router."""

    def add(self) -> worker_pb2.RequestTokens:
        """Add an empty part, for the caller to fill at once."""
        ...

    def add_token(self, handle: int, index: int, token_id: int) -> None:
        """Add one decoded token. It follows all parts that were added before without `finished`."""
        ...

    def add_recalled(self, request_id: str, attempt: int, *, returned: bool) -> None:
        """Add the answer to a Recall. It follows all tokens that were added before."""
        ...


class Answer:
    """The output so far. Each addition is sent to the router with the session's next message."""

    def __init__(
        self, start: worker_pb2.StartRequest, outgoing: Outgoing, timings: RequestTimings
    ) -> None:
        """start: its `output_ids`, known from an earlier rank, are part of the output."""
        self.token_ids = list(start.output_ids)
        self._start = start
        self._handle = start.handle
        self._outgoing = outgoing
        self._timings = timings
        self._scored_to = 0  # prompt positions below it have been sent
        self._cached_tokens = self._cached_host = self._cached_file = 0
        self._source = common_pb2.PromptSource()

    def add_first_token(self, first: handoff_pb2.FirstToken) -> None:
        """Relay the prefill worker's token. It ends the answer if it carries `finished`."""
        self.cached(first.cached_tokens, first.cached_kv, first.cached_host, first.cached_file)
        if first.HasField("fetch"):
            self._source.fetch.CopyFrom(first.fetch)
        self._timings.on_first_token(first)
        part = self._part()
        ended = first.HasField("finished")
        if not ended or first.finished.usage.completion_tokens:
            part.token_ids.append(first.token_id)
            if first.HasField("logprob"):
                part.logprobs.append(first.logprob)
            self.token_ids.append(first.token_id)
        part.held_us = self._timings.since_first_token_us
        if ended:
            part.finished.CopyFrom(first.finished)
            part.finished.source.CopyFrom(self._source)
            part.finished.timings.CopyFrom(self._timings.message)

    def read_by(self, reader: str) -> None:
        """Note the worker that is asked to compute the prompt now: what it has is not known."""
        source = common_pb2.PromptSource(reader=reader, failed=self._source.failed)
        self._source.CopyFrom(source)

    def not_read(self, why: str) -> None:
        """Note why that worker did not compute it."""
        self._source.failed.append(why)

    def cached(self, tokens: int, kv_tokens: int, host_tokens: int, file_tokens: int) -> None:
        """Note of how many prompt tokens the reader had the state, and of how many the KV.
        host_tokens, file_tokens: of those with a state, the ones that its host's tier has spared,
        and those that came from files.
        """
        self._cached_tokens = self._source.state_tokens = tokens
        self._source.kv_tokens = kv_tokens
        self._cached_host = self._source.host_tokens = host_tokens
        self._cached_file = self._source.file_tokens = file_tokens

    def received(self, kv_from: int) -> None:
        """Note that the hand-off is complete. This rank had the KV of `kv_from` tokens itself."""
        self._source.rank_kv_tokens = kv_from

    def add_scores(self, logprobs: common_pb2.PromptLogprobs) -> None:
        """Relay the log probabilities of prompt positions that have not been sent.

        A second hand-off sends again what the first has sent.
        """
        end = logprobs.start + len(logprobs.tokens)
        if end <= self._scored_to:
            return
        fresh = max(self._scored_to - logprobs.start, 0)
        self._scored_to = end
        part = self._part()
        part.prompt_logprobs.start = logprobs.start + fresh
        part.prompt_logprobs.tokens.extend(logprobs.tokens[fresh:])

    def add_sampled(self, event: TokenSampled) -> None:
        """Relay a token that this rank has decoded."""
        if self._handle and event.logprob is None:
            self._outgoing.add_token(self._handle, event.index, event.token_id)
            self.token_ids.append(event.token_id)
            return
        part = self._part()
        part.first_index = event.index
        part.token_ids.append(event.token_id)
        self.token_ids.append(event.token_id)
        if event.logprob is not None:
            part.logprobs.append(logprob_to_proto(event.logprob))

    def end(self, finished: common_pb2.Finished) -> None:
        """Send how the engine has ended the answer."""
        part = self._part()
        part.finished.CopyFrom(finished)
        part.finished.usage.cached_tokens = self._cached_tokens
        part.finished.usage.cached_host_tokens = self._cached_host
        part.finished.usage.cached_file_tokens = self._cached_file
        part.finished.source.CopyFrom(self._source)
        part.finished.timings.CopyFrom(self._timings.message)

    def end_early(self, reason: common_pb2.FinishReason, error: common_pb2.Error) -> None:
        """Send why the answer ends although the engine has not finished it."""
        usage = common_pb2.Usage(
            prompt_tokens=len(self._start.prompt_ids), completion_tokens=len(self.token_ids)
        )
        self.end(common_pb2.Finished(reason=reason, error=error, usage=usage))

    def give_back(self) -> None:
        """Send that the rank has let go of the attempt, at the router's wish."""
        self._outgoing.add_recalled(self._start.request_id, self._start.attempt, returned=True)

    @property
    def began(self) -> bool:
        """Return True once a token of this attempt has come."""
        return len(self.token_ids) > len(self._start.output_ids)

    def _part(self) -> worker_pb2.RequestTokens:
        """Add a part that begins at the next output index."""
        part = self._outgoing.add()
        part.request_id = self._start.request_id
        part.attempt = self._start.attempt
        part.first_index = len(self.token_ids)
        return part
