"""The interface between the protocols and what answers requests: token ids in, token events out.

The router implements `Backend`, and so does a worker that serves clients by itself. Text does
not cross this interface, except stop strings on the way in and the name of the matched one on
the way out.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from baton.api.call_log import CallRecord
from baton.api.deadline import Deadline
from baton.core.cache_salt import SHARED, text_scope
from baton.core.finish import Finished
from baton.core.grammar import Grammar
from baton.core.logprobs import PromptLogprobs, TokenLogprob
from baton.core.sampling_params import SamplingParams
from baton.text.reasoning import ReasoningFormat, ReasoningState

MAX_PRIORITY = 1000
"""The bound on a request's priority, on both sides of 0."""


@dataclass(frozen=True)
class ThinkingBudget:
    """The bound on an answer's reasoning. `BudgetedBackend` keeps it."""

    tokens: int
    form: ReasoningFormat
    thinking: ReasoningState  # where the answer begins
    closing_ids: tuple[int, ...]  # the tokens that end reasoning which has spent its budget
    grammar: Grammar | None = None  # of the answer behind reasoning that was ended so


@dataclass(frozen=True)
class GenerateRequest:
    """A request for one answer to one prompt. The backend may make several attempts at it."""

    request_id: str  # 32 hex digits, unique
    prompt_ids: tuple[int, ...]  # not empty, inside the vocabulary and the context
    sampling: SamplingParams
    client_id: str | None = None  # the caller's own id, for logs and `abort`
    priority: int = 0  # a larger value goes first wherever requests wait
    routed_dp_rank: int | None = None  # the decode rank to use, until it has left the cluster
    owner: str | None = None  # the name of the API key that sent it; None: no keys are asked for
    deadline: Deadline | None = None  # the backend ends the request then; None: a limit of its own
    # Only requests of one salt share cached prefixes; see `core.cache_salt`.
    cache_salt: bytes = field(default=SHARED, repr=False)
    # What the client expects the answer to be: guesses for draft tokens.
    prediction_ids: tuple[int, ...] = field(default=(), repr=False)
    thinking: ThinkingBudget | None = None  # None: reasoning is bounded by max_tokens alone
    explain: bool = False  # its `Finished` has an explanation
    # The log record of the call that this request serves; None: the call is not logged.
    record: CallRecord | None = field(default=None, repr=False, compare=False)

    @property
    def draft_scope(self) -> bytes:
        """The name of the requests whose texts its drafts may be guessed from: those of its API key
        with its salt, whoever shares cached prefixes.
        """
        return text_scope(self.owner, self.cache_salt)

    def is_meant(self, name: str | None, owner: str | None) -> bool:
        """Return True if an abort of `name`, on behalf of `owner`, is for this request.

        name: the request's own id or its client's; None: any. owner: None: everybody.
        """
        named = name is None or name in (self.request_id, self.client_id)
        return named and (owner is None or owner == self.owner)


class TokenEvent(NamedTuple):
    """The next output tokens of an answer. A tuple, because one is made for each token.

    `logprobs` has one entry for each token, or none if the request does not ask for them.
    """

    first_index: int  # output position of token_ids[0]; equals the number given before
    token_ids: tuple[int, ...]  # empty in an event that only brings prompt logprobs
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(frozen=True)
class ModelInfo:
    """The served model."""

    model_id: str  # the name that clients ask for
    max_model_len: int  # prompt and answer together, in tokens
    vocab_size: int  # ids from 0 up to this are legal in a prompt
    created: int = 0  # unix seconds
    root: str = ""  # the folder or hub id it came from
    other_names: tuple[str, ...] = ()  # by which clients may ask for it too; "*": by any
    # Values that requests over HTTP leave out, by their names in SamplingParams.
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)


@dataclass(frozen=True)
class Health:
    """The answer to a health check: can a request that is sent now be answered, and if not, why."""

    ready: bool
    detail: str = ""
    alive: bool = True  # False: this server will never answer again; start another


@dataclass(frozen=True)
class CachePart:
    """The cached prefixes of one API key, of one salt, or of one salt of a key.

    owner: the key's name; None: of requests with the salt. salt: as in `GenerateRequest`; SHARED:
    all of the key's.
    """

    owner: str | None
    salt: bytes = field(default=SHARED, repr=False)


class Backend(Protocol):
    """A server of requests. Its methods raise `ApiError` and no other error of their own."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent | Finished, None]:
        """Yield the answer's events, `Finished` last. Closing the generator early cancels the
        request.
        """
        ...

    def check_room(self, owner: str | None) -> None:
        """Raise OVERLOADED if any request of the API key `owner` would be refused now.

        Asked before a request is read, so that refusing one costs little.
        """
        ...

    async def cancel(self, request_id: str) -> None:
        """Stop a request wherever it is; its generator ends with ABORT. Unknown ids are ignored."""
        ...

    async def abort(self, name: str | None, owner: str | None = None) -> int:
        """Stop every request whose own id or `client_id` is `name`; None stops all requests.

        owner: the API key whose requests alone may be stopped; None: everybody's. Returns the
        number of requests that were stopped. Their generators end with ABORT.
        """
        ...

    async def models(self) -> Sequence[ModelInfo]:
        """Return the served models, at least one. The first is the default."""
        ...

    async def server_info(self) -> Mapping[str, object]:
        """Return JSON values about workers, memory and settings."""
        ...

    async def health(self) -> Health: ...

    async def flush_cache(self, timeout_s: float, part: CachePart | None = None) -> None:
        """Empty every prefix cache once idle. Raises DEADLINE_EXCEEDED when that takes longer.

        part: what alone is removed, once no request uses it, from all memories and from files.
        Raises INVALID_REQUEST for one that the cache scope does not have.
        """
        ...


class WrappedBackend:
    """The methods of `backend` besides `generate`, which a subclass changes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def check_room(self, owner: str | None) -> None:
        self._backend.check_room(owner)

    async def cancel(self, request_id: str) -> None:
        await self._backend.cancel(request_id)

    async def abort(self, name: str | None, owner: str | None = None) -> int:
        return await self._backend.abort(name, owner)

    async def models(self) -> Sequence[ModelInfo]:
        return await self._backend.models()

    async def server_info(self) -> Mapping[str, object]:
        return await self._backend.server_info()

    async def health(self) -> Health:
        return await self._backend.health()

    async def flush_cache(self, timeout_s: float, part: CachePart | None = None) -> None:
        await self._backend.flush_cache(timeout_s, part)
