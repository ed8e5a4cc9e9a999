"""The messages between a server and its processes for large requests.

Both ends are the same program, so messages are pickled objects, each behind its length.
"""

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from baton.api.backend import ModelInfo
from baton.api.body import RequestBody
from baton.api.fields.request_fields import UnknownFields
from baton.api.prepared import Prepared
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class ParseJob:
    """Parse a body, and prepare what of it is large (`LargeBody.prepare`)."""

    kind: type[RequestBody]
    unknown: UnknownFields
    models: Sequence[ModelInfo]
    owner: str | None  # the name of the API key, as in `GenerateRequest`


@dataclass(frozen=True)
class EncodeJob:
    """Tokenise a text, as `TextService.encode` does."""

    add_special_tokens: bool
    param: str
    most: int
    scope: bytes | None = None


@dataclass(frozen=True)
class Refused:
    """The fields of an `ApiError`."""

    code: ErrorCode
    message: str
    param: str | None
    expected: str
    actual: str
    openai_code: str | None

    @classmethod
    def of(cls, error: ApiError) -> "Refused":
        return cls(
            error.code,
            error.message,
            error.param,
            error.expected,
            error.actual,
            error.openai_code,
        )

    def error(self) -> ApiError:
        return ApiError(
            self.code,
            self.message,
            param=self.param,
            expected=self.expected,
            actual=self.actual,
            openai_code=self.openai_code,
        )


@dataclass(frozen=True)
class Parsed:
    """A body without its prompts, and what was made of them."""

    body: RequestBody
    prepared: Prepared


Job = ParseJob | EncodeJob
Result: TypeAlias = "Parsed | array[int] | Refused"
