"""One line in the log for each call of a client: what it asked for, what it got, how long it took.

It never has a key, a prompt or an answer.
"""

import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from baton.core.errors import ApiError
from baton.core.finish import Finished, Timings, Usage
from baton.rpc.tracing import TraceContext, TraceSpan, Tracing, context_in

log = logging.getLogger("baton.access")

QUIET = {"/health", "/ready", "/metrics", "/server_info", "/get_server_info"}
"""Paths that are asked every few seconds: logged only where they fail."""
MOST_ID_CHARS = 128
Metadata = Iterable[tuple[str, Any]] | None
MOST_NAMED = 8
"""Answers of one call whose ids are in its line."""


@dataclass(slots=True)
class CallRecord:
    """The facts of one call. Its answers add to it as they end."""

    request_id: str  # X-Request-Id
    call: str  # the method and path, or the RPC
    served_model: str
    began: float  # by `time.monotonic`
    key: str | None = None  # the name of the API key
    status: int | str = 0  # of HTTP or gRPC; 0: no status was sent
    reason: str = ""  # why it failed, or how its answers ended
    model: str | None = None  # None: no answer was begun
    client_id: str | None = None  # `rid`, `request_id` or `user`, unless X-Request-Id names it
    usage: Usage = field(default_factory=Usage)  # of all answers together
    queue_us: int = 0  # of the answer that waited longest, in all queues
    ttft_us: int = 0  # of the first token of any answer
    answers: list[str] = field(default_factory=list)  # their own ids, which workers' lines have
    count: int = 0  # of answers
    labels: Mapping[str, str] = field(default_factory=dict)  # of the body; set when it is read
    span: TraceSpan | None = None  # None: no traces are sent
    cut_off: bool = False  # the connection was refused meanwhile: status and reason are of that

    def refused(self, status: int | str, reason: str) -> None:
        """Note that the server cut the call off, whatever its application says afterwards."""
        self.status, self.reason, self.cut_off = status, reason, True

    def begun(self, answer_id: str, client_id: str | None) -> None:
        """Note that an answer begins. client_id: the caller's own id of it, if any."""
        self.model, self.client_id = self.served_model, client_id
        self.count += 1
        if self.count <= MOST_NAMED:
            self.answers.append(answer_id)

    def ended(self, reason: str, usage: Usage, timings: Timings | None = None) -> None:
        """Note the end of one answer. reason: a finish reason, or an error's code."""
        if not self.cut_off and reason not in self.reason.split(","):
            self.reason = f"{self.reason},{reason}".strip(",")
        mine = self.usage
        self.usage = Usage(
            mine.prompt_tokens + usage.prompt_tokens,
            mine.completion_tokens + usage.completion_tokens,
            mine.cached_tokens + usage.cached_tokens,
            mine.cached_host_tokens + usage.cached_host_tokens,
            mine.cached_file_tokens + usage.cached_file_tokens,
        )
        if timings is not None:
            self.queue_us = max(self.queue_us, timings.router_queue_us + timings.prefill_queue_us)
            if timings.ttft_us:
                self.ttft_us = min(self.ttft_us or timings.ttft_us, timings.ttft_us)

    def finished(self, event: Finished) -> None:
        reason = event.end.reason.value if event.error is None else event.error.code.name.lower()
        self.ended(reason, event.usage, event.timings)

    @property
    def trace(self) -> TraceContext | None:
        """Return the span of this call; None where no traces are sent."""
        return None if self.span is None else self.span.context

    def fields(self) -> dict[str, object]:
        """Return the line's fields, in order."""
        return {
            "request_id": self.request_id,
            "call": self.call,
            "status": self.status,
            "reason": self.reason or None,
            "key": self.key,
            "client_id": self.client_id,
            "model": self.model,
            "prompt_tokens": self.usage.prompt_tokens,
            "cached_tokens": self.usage.cached_tokens,
            "output_tokens": self.usage.completion_tokens,
            "queue_ms": _ms(self.queue_us),
            "ttft_ms": _ms(self.ttft_us),
            "total_ms": _ms((time.monotonic() - self.began) * 1e6),
            "answers": ",".join(self.answers) or None,
            "labels": dict(self.labels) or None,
        }


@dataclass(frozen=True)
class CallLog:
    """The log of one server's calls."""

    model: str  # that is served
    tracing: Tracing | None = None  # where spans are sent; None: nowhere

    def begin(self, request_id: str, call: str, headers: Mapping[str, str]) -> CallRecord:
        """headers: the call's, or its metadata, with names in lower case."""
        record = CallRecord(request_id, call, self.model, time.monotonic())
        if self.tracing is not None:
            caller = context_in(headers)
            record.span = self.tracing.begin(call, caller, serves=True, request_id=request_id)
        return record

    def end(self, record: CallRecord, *, quiet: bool = False) -> None:
        """Write the line. quiet: only if the call has failed."""
        if record.span is not None:
            good = record.status in ("OK", 200)
            labels = {f"label.{name}": text for name, text in record.labels.items()}
            failure = "" if good else record.reason
            record.span.end(failure, status=record.status, key=record.key, **labels)
        if (not quiet or record.status != 200) and log.isEnabledFor(logging.INFO):
            # Not `log.info`, which looks for the line of code that calls it.
            line = log.makeRecord(
                log.name, logging.INFO, __file__, 0, "request", (), None, extra=record.fields()
            )
            log.handle(line)

    def refused(
        self, request_id: str, call: str, headers: Mapping[str, str], status: int | str, reason: str
    ) -> None:
        """Write the line of a call that is refused before its application hears of it."""
        record = self.begin(request_id, call, headers)
        record.refused(status, reason)
        self.end(record)

    def refused_rpc(self, metadata: Metadata, rpc: str, error: ApiError) -> None:
        """Write the line of a gRPC call that is refused before its method is called."""
        request_id, headers = _of_metadata(metadata)
        name = rpc.rpartition("/")[2]
        self.refused(request_id, name, headers, error.status.grpc, error.code.name.lower())

    @contextmanager
    def of_rpc(self, metadata: Metadata, rpc: str) -> Iterator[CallRecord]:
        """Record one gRPC call, with the ApiError or the cancellation that ends it.

        Its request id is that of the metadata `x-request-id`, else 32 hex digits.
        """
        request_id, headers = _of_metadata(metadata)
        record = self.begin(request_id, rpc, headers)
        record.status = "OK"
        try:
            yield record
        except ApiError as error:
            record.status = error.status.grpc
            record.reason = record.reason or error.code.name.lower()
            raise
        except BaseException:
            record.status, record.reason = "CANCELLED", record.reason or "cancelled"
            raise
        finally:
            self.end(record)


_RECORD = "baton.record"
"""The place of an ASGI scope for the record of its call."""


def record_in(scope: Mapping[str, Any]) -> CallRecord | None:
    """Return the record of an ASGI scope's call; None where calls are not logged."""
    found: CallRecord | None = scope.get(_RECORD)
    return found


def keep_record(scope: MutableMapping[str, Any], record: CallRecord) -> None:
    """Give an ASGI scope the record of its call."""
    scope[_RECORD] = record


def _of_metadata(metadata: Metadata) -> tuple[str, dict[str, str]]:
    """Return the id of a gRPC call, the caller's or a new one, and the metadata by name."""
    headers = {name: str(value) for name, value in metadata or ()}
    given = headers.get("x-request-id", "")[:MOST_ID_CHARS]
    return given or secrets.token_hex(16), headers


def _ms(microseconds: float) -> float:
    return round(microseconds / 1000, 1)
