"""The values that clients take and return."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from baton.core.finish import Finished
from baton.core.logprobs import TokenLogprob

Prompt = str | Sequence[int]
"""A text, or token ids."""


@dataclass(frozen=True)
class RequestOptions:
    """The options of a request beside its prompt and its sampling."""

    model: str = ""  # '': the one that is served
    client_id: str = ""  # a label, which `abort` takes
    priority: int = 0  # -1000 to 1000; larger values go first in every queue
    routed_dp_rank: int | None = None  # the decode rank to begin on
    cache_salt: str | None = None  # only requests of the same salt share cached prefixes
    explain: bool = False  # the last part has the request's explanation


class AnswerPart(NamedTuple):
    """The part that one message of a stream adds to an answer."""

    request_id: str
    text: str
    first_index: int  # output position of token_ids[0]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    finished: Finished | None  # set on the last part; has the explanation, if asked for


@dataclass(frozen=True)
class Completion:
    """A whole answer."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    finished: Finished


@dataclass(frozen=True)
class ModelEntry:
    """A served model."""

    id: str
    max_model_len: int  # prompt and answer together, in tokens
    vocab_size: int
    created: int  # unix seconds
    root: str  # the folder or hub id it came from
