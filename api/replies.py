"""JSON replies that all endpoints share."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from baton.api.call_log import record_in
from baton.api.errors import error_body
from baton.core.drafts import DraftSource
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, StoppingError
from baton.core.finish import Finished, Usage
from baton.rpc.errors import RETRY_AFTER, retry_after

SHOULD_RETRY = "x-should-retry"
"""The header by which the clients of OpenAI and Anthropic decide. They would send a request again
whose own time is over."""


class JsonReply(Response):
    """A reply 200 of the values that answers are made of. Others, such as errors, which repeat what
    clients sent, may have text that orjson refuses."""

    def __init__(self, content: Any) -> None:
        """Set what Starlette's constructor would, in one call."""
        self.status_code, self.background = 200, None
        self.body = orjson.dumps(content)
        length = b"%d" % len(self.body)
        self.raw_headers = [(b"content-length", length), (b"content-type", b"application/json")]


class ErrorReply(JSONResponse):
    """A reply with an error, whose code is the reason in the line of its call."""

    code: ErrorCode = ErrorCode.INTERNAL

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (record := record_in(scope)) is not None and not record.reason:
            record.reason = self.code.name.lower()
        await super().__call__(scope, receive, send)


def error_response(err: ApiError, path: str = "") -> ErrorReply:
    """Return an error body with the HTTP status of the error's code.

    path: the request's; its API decides the form of the body. '': OpenAI's.
    """
    headers = {}
    if err.retry_after_s is not None:
        headers[RETRY_AFTER] = str(retry_after(err.retry_after_s))
    if isinstance(err, StoppingError):
        headers["connection"] = "close"
    if err.code is ErrorCode.DEADLINE_EXCEEDED:
        headers[SHOULD_RETRY] = "false"
    if err.code is ErrorCode.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    reply = ErrorReply(error_body(err, path), err.status.http, headers)
    reply.code = err.code
    return reply


def usage_json(prompts: Sequence[Sequence[Finished]], *, predicted: bool = False) -> dict[str, Any]:
    """Return the usage of all answers. A prompt counts once, however many answers it has.

    predicted: with the tokens of a prediction that were right, and that were verified and wrong.
    """
    prompt = sum(answers[0].usage.prompt_tokens for answers in prompts)
    completion = sum(a.usage.completion_tokens for answers in prompts for a in answers)
    cached = sum(answers[0].usage.cached_tokens for answers in prompts)
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    thought = sum(a.reasoning_tokens for answers in prompts for a in answers)
    details = {"reasoning_tokens": thought} if thought else {}
    if predicted:
        drafts = [a.usage.drafts.of(DraftSource.PREDICTION) for each in prompts for a in each]
        accepted = sum(count.accepted for count in drafts)
        details["accepted_prediction_tokens"] = accepted
        details["rejected_prediction_tokens"] = sum(each.proposed for each in drafts) - accepted
    return found | ({"completion_tokens_details": details} if details else {})


def cached_json(usages: Iterable[Usage]) -> dict[str, int]:
    """Return the cached prompt tokens by the memory that had them, as SGLang names it."""
    host = file = cached = 0
    for usage in usages:
        host, file = host + usage.cached_host_tokens, file + usage.cached_file_tokens
        cached += usage.cached_tokens
    found = {"device": cached - host - file, "host": host}
    return found | ({"file": file} if file else {})


GOES_ON: Mapping[str, Any] = {"finish_reason": None, "matched_stop": None}
"""The fields of a choice that has not ended; see `ending`."""


def ending(finished: Finished, reason: str | None = None) -> dict[str, Any]:
    """Return a choice's fields about its end.

    `matched_stop`, which SGLang's replies have too, is the string, expression or token id that
    ended it. reason: where it is not the answer's own.
    """
    end = finished.end
    return {
        "finish_reason": reason or end.reason.value,
        "matched_stop": end.stop_string or end.stop_token_id,
    }


def synthetic_json(finished: Finished) -> dict[str, float]:
    """Return the field that says that an answer is not the model's, where it is not."""
    length = finished.synthetic_acceptance
    return {"synthetic_acceptance": length} if length else {}


def timings_json(finished: Finished) -> Mapping[str, int]:
    """Return the first answer's durations in microseconds. An extension of OpenAI's API."""
    return dict(vars(finished.timings))  # flat; `asdict` would copy each value, in 20 us
