"""JSON replies that every endpoint shares."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from starlette.responses import JSONResponse

from baton.api.backend import Finished
from baton.api.errors import ApiError


def error_response(err: ApiError) -> JSONResponse:
    """OpenAI's error body, with the status of the code."""
    headers = {}
    if err.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(err.retry_after_s)))
    return JSONResponse(err.to_openai(), err.status.http, headers)


def usage_json(prompts: Sequence[Sequence[Finished]]) -> dict[str, Any]:
    """Of all answers, by prompt. A prompt counts once, however many answers it has."""
    prompt = sum(answers[0].usage.prompt_tokens for answers in prompts)
    completion = sum(a.usage.completion_tokens for answers in prompts for a in answers)
    cached = sum(answers[0].usage.cached_tokens for answers in prompts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings_json(finished: Finished) -> Mapping[str, int]:
    """The first answer's durations in microseconds: this server's extension."""
    return asdict(finished.timings)
