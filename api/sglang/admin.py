"""SGLang's administrative endpoints: caches, aborts, health and server information."""

import asyncio
import math
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from baton import __version__
from baton.api.access.access import abortable_by, admit, highest_priority, owner_of
from baton.api.backend import Backend, CachePart, GenerateRequest
from baton.api.body import RequestBody
from baton.api.client_salt import client_salt
from baton.api.errors import invalid, refused, shorten
from baton.api.fields.field_table import FieldPlace, works
from baton.api.request_body import BodyReader, read_body
from baton.api.requests import new_request_id
from baton.api.schema import parse_body
from baton.api.text_service import served_model
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.finish import Finished
from baton.core.sampling_params import SamplingParams

FLUSH_WAIT_S = 5.0
"""The timeout of a flush that names none: a request that was answered just now may still be
leaving."""
FLUSH_LIMIT_S = 3600.0
PROBE_S = 20.0
"""The deadline of a health probe's one token: longer than any step."""
PROBE_TOKEN = 0


class AbortBody(RequestBody):
    place: ClassVar[FieldPlace | None] = FieldPlace.ABORT

    rid: Annotated[str | None, works("which requests")] = None
    abort_all: Annotated[bool, works("which requests")] = False


class FlushBody(RequestBody):
    """The part of the caches that alone is removed; all, where it names nothing. Any other field
    is refused: a misspelt one must not remove everything."""

    api_key: str | None = None  # its name
    cache_salt: str | None = None
    extra_key: str | None = None  # SGLang's name for it; both count

    @property
    def part(self) -> CachePart | None:
        """Raises INVALID_REQUEST."""
        if self.api_key == "":
            raise invalid("api_key", "api_key is empty; expected a key's name, or nothing")
        salt = client_salt({"cache_salt": self.cache_salt, "extra_key": self.extra_key})
        return CachePart(self.api_key, salt) if self.api_key or salt else None


@dataclass(frozen=True)
class SglangAdmin:
    backend: Backend
    bodies: BodyReader
    incremental: bool  # see `sglang_routes`

    async def flush_cache(self, request: Request) -> Response:
        """Empty the prefix caches, or remove what is of an API key or a salt. `timeout`: seconds to
        wait for idle workers, or for the end of the requests that use it; then the status is 504.
        """
        timeout_s = _timeout(request.query_params.get("timeout"))
        raw = await read_body(request, self.bodies.max_bytes)
        part = parse_body(FlushBody, raw).part if raw else None
        await self.backend.flush_cache(timeout_s, part)
        what = "are empty" if part is None else "and files have nothing of it any more"
        return PlainTextResponse(f"The prefix caches {what}.\n")

    async def abort_request(self, request: Request) -> Response:
        """Abort requests by `rid`, or all. Their answers end with finish_reason abort.

        A key without scope admin aborts its own alone. Unknown ids, and others', are no error.
        """
        body = await self.bodies.read(request, AbortBody)
        if not body.rid and not body.abort_all:
            raise refused("rid", "expected a rid, or abort_all to be true")
        name = None if body.abort_all else body.rid
        stopped = await self.backend.abort(name, abortable_by(request))
        return JSONResponse({"aborted": stopped})

    async def health_generate(self, http: Request) -> Response:
        """Return 200 once a token was computed by all the processes that a request passes
        through.
        """
        probe = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        # Before all that wait, if the key may: a server with much to do is not ill.
        request = GenerateRequest(
            new_request_id(),
            (PROBE_TOKEN,),
            probe,
            priority=highest_priority(http),
            owner=owner_of(http),
        )
        admit(http, [request])
        try:
            async with asyncio.timeout(PROBE_S):
                await self._run(request)
        except TimeoutError as err:
            message = f"no token within {PROBE_S:g} s"
            raise ApiError(ErrorCode.UNAVAILABLE, message) from err
        return JSONResponse({"status": "ok"})

    async def model_info(self, _: Request) -> Response:
        model = served_model(None, await self.backend.models())
        folder = model.root or model.model_id
        return JSONResponse(
            {
                "model_path": folder,
                "tokenizer_path": folder,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "has_image_understanding": False,
                "has_audio_understanding": False,
            }
        )

    async def server_info(self, _: Request) -> Response:
        """Return what the backend reports, and what every server can report."""
        model = served_model(None, await self.backend.models())
        folder = model.root or model.model_id
        health = await self.backend.health()
        info: dict[str, Any] = {
            "model_path": folder,
            "tokenizer_path": folder,
            "served_model_name": model.model_id,
            "context_length": model.max_model_len,
            "status": "ready" if health.ready else "not ready",
            "version": __version__,
            "incremental_streaming_output": self.incremental,
        }
        return JSONResponse(info | dict(await self.backend.server_info()))

    async def _run(self, request: GenerateRequest) -> None:
        async with aclosing(self.backend.generate(request)) as events:
            async for event in events:
                if isinstance(event, Finished) and event.error is not None:
                    raise event.error


def _timeout(given: str | None) -> float:
    if given is None:
        return FLUSH_WAIT_S
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= FLUSH_LIMIT_S:
        raise invalid(
            "timeout",
            f"timeout is {shorten(given)!r}; expected 0 to {FLUSH_LIMIT_S:g} seconds",
            expected=f"0 to {FLUSH_LIMIT_S:g}",
            actual=given,
        )
    return seconds
