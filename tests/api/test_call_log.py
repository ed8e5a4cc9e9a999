"""The line that each call leaves in the log: what it says, and what it must not."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from call_lines import kept_lines
from fake_backend import FakeBackend
from kit.polling import until

from baton.api.access.client_limits import ClientLimits
from baton.api.access.key_gate import KeyGate
from baton.api.access.keys import Key, KeyScope, digest_of, new_key, write_keys
from baton.api.call_log import CallLog
from baton.api.fields.request_fields import LABEL_CHARS
from baton.api.grpc.inference import InferenceServicer
from baton.api.http import MetricsPage, make_app
from baton.api.request_body import LARGE_BYTES
from baton.api.server.client_guard import ClientGuard
from baton.api.server.grpc_server import GrpcServer
from baton.api.sglang.routes import sglang_routes
from baton.api.text_service import TextService
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.supervised import ProcessSupervisor
from baton.proto import common_pb2, inference_pb2, inference_pb2_grpc
from baton.rpc.tracing import TraceContext, Tracing

PROMPT = "hello world"


@asynccontextmanager
async def connected(
    backend: FakeBackend,
    text: TextService,
    keys: KeyGate | None = None,
    tracing: Tracing | None = None,
) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(
        backend,
        text,
        lambda: MetricsPage(b"", "text/plain"),
        more_routes=sglang_routes(backend, text),
        keys=keys,
        calls=CallLog("toy", tracing),
    )
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://toy") as client:
        yield client


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    names = (
        "request_id", "call", "status", "reason", "key", "model", "prompt_tokens",
        "cached_tokens", "output_tokens", "queue_ms", "ttft_ms", "total_ms", "answers",
    )  # fmt: skip
    return {name: vars(record)[name] for name in names}


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    """Return the lines of calls, as they are written."""
    with kept_lines() as kept:
        yield kept.records


def only(lines: list[logging.LogRecord]) -> dict[str, Any]:
    (record,) = lines
    return fields_of(record)


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": PROMPT}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ("/v1/responses", {"input": "x"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9}),
    ("/generate", {"text": PROMPT}),
]


@pytest.mark.parametrize(("path", "body"), CALLS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_leaves_one_line(
    path: str, body: dict[str, Any], stream: bool,
    backend: FakeBackend, text: TextService, lines: list[logging.LogRecord],
) -> None:  # fmt: skip
    backend.says = "one two"
    async with connected(backend, text) as client:
        reply = await client.post(
            path, json=body | {"stream": stream}, headers={"x-request-id": "mine"}
        )
    assert reply.status_code == 200, reply.text
    line, (asked,) = only(lines), backend.seen
    expected = {
        "request_id": "mine", "call": f"POST {path}", "status": 200, "reason": "stop",
        "key": None, "model": "toy", "prompt_tokens": len(asked.prompt_ids), "cached_tokens": 1,
        "output_tokens": len(text.tokenizer.encode("one two")),
        "ttft_ms": 0.0, "answers": asked.request_id,
    }  # fmt: skip
    assert expected.items() <= line.items()
    assert line["total_ms"] > 0


async def test_several_answers_are_one_line(
    backend: FakeBackend, text: TextService, lines: list[logging.LogRecord]
) -> None:
    backend.says = "one"
    async with connected(backend, text) as client:
        await client.post("/v1/completions", json={"prompt": ["hello", "world"], "n": 6})
    line = only(lines)
    assert line["prompt_tokens"] == sum(len(each.prompt_ids) for each in backend.seen)
    assert line["output_tokens"] == 12 * len(text.tokenizer.encode("one"))
    assert line["answers"] == ",".join(each.request_id for each in backend.seen[:8])


@pytest.mark.parametrize("name", ["rid", "request_id", "user"])
async def test_the_callers_own_id_is_in_the_line(
    name: str, backend: FakeBackend, text: TextService, lines: list[logging.LogRecord]
) -> None:
    async with connected(backend, text) as client:
        await client.post("/v1/completions", json={"prompt": PROMPT, name: "theirs"})
    assert vars(lines[0])["client_id"] == "theirs"


LABELS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"user": "ada", "metadata": {"job": "7"}, "store": False, "rid": "r"},
    "/v1/chat/completions": {"safety_identifier": "s", "prompt_cache_key": "p", "session_id": "t"},
    "/v1/responses": {"metadata": {"job": "7"}, "prompt_cache_retention": "24h"},
    "/v1/messages": {"metadata": {"user_id": "ada"}, "service_tier": "auto"},
    "/generate": {"session_id": "t", "custom_labels": {"a": 1}, "routing_key": "k"},
}


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize(("path", "body"), CALLS)
async def test_labels_are_carried_into_the_line(
    path: str, body: dict[str, Any],
    backend: FakeBackend, text: TextService, lines: list[logging.LogRecord],
) -> None:  # fmt: skip
    async with connected(backend, text) as client:
        reply = await client.post(path, json=body | LABELS[path])
        assert reply.status_code == 200, reply.text
        expected = {name: as_text(value) for name, value in LABELS[path].items()}
        assert vars(lines[0])["labels"] == expected
        await client.post(path, json=body)
        assert vars(lines[1])["labels"] is None


async def test_a_long_label_is_cut_and_a_body_that_another_process_reads_keeps_its_labels(
    backend: FakeBackend, text: TextService, lines: list[logging.LogRecord]
) -> None:
    body = json.dumps({"prompt": PROMPT, "user": "u" * (2 * LABEL_CHARS)})
    async with connected(backend, text) as client:
        content, kind = body + " " * LARGE_BYTES, {"content-type": "application/json"}
        reply = await client.post("/v1/completions", content=content, headers=kind, timeout=60)
    assert reply.status_code == 200, reply.text
    shown = vars(lines[0])["labels"]["user"]
    assert shown == "u" * (LABEL_CHARS - 1) + "…"


class _Spans:
    """A `Tracing` that keeps what its spans end with."""

    def __init__(self) -> None:
        self.context = TraceContext("00-0-0-01")
        self.ended: list[dict[str, Any]] = []

    def begin(self, name: str, parent: Any, **more: Any) -> "_Spans":
        return self

    def end(self, error: str = "", **attributes: Any) -> None:
        self.ended.append(attributes)

    def record(self, name: str, parent: Any, since_s: float, until_s: float, **more: Any) -> None:
        raise AssertionError("the call has one span")

    def close(self) -> None:
        raise AssertionError("the server closes it")


async def test_labels_are_carried_into_the_span_of_the_call(
    backend: FakeBackend, text: TextService
) -> None:
    spans = _Spans()
    async with connected(backend, text, tracing=spans) as client:
        await client.post("/v1/completions", json={"prompt": PROMPT, "user": "ada"})
    assert spans.ended == [{"status": 200, "key": None, "label.user": "ada"}]


async def test_what_is_refused_leaves_a_line_with_its_status(
    backend: FakeBackend, text: TextService, lines: list[logging.LogRecord]
) -> None:
    async with connected(backend, text) as client:
        for path, body, status in (
            ("/v1/completions", {"prompt": 5}, 400),
            ("/nowhere", {}, 404),
            ("/v1/completions", {"prompt": PROMPT, "model": "other"}, 404),
        ):
            lines.clear()
            reply = await client.post(path, json=body)
            assert reply.status_code == status
            line = only(lines)
            assert (line["status"], line["model"], line["output_tokens"]) == (status, None, 0)
            assert line["reason"] == ("invalid_request" if status == 400 else "not_found")
            assert line["request_id"] == reply.headers["x-request-id"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_is_the_reason(
    stream: bool, backend: FakeBackend, text: TextService, lines: list[logging.LogRecord]
) -> None:
    backend.says, backend.fail_after = "hello hello", 2
    backend.failure = ApiError(ErrorCode.UNAVAILABLE, "decode-1 was lost")
    async with connected(backend, text) as client:
        await client.post("/v1/completions", json={"prompt": PROMPT, "stream": stream})
    line = only(lines)
    assert (line["status"], line["reason"]) == (200 if stream else 503, "unavailable")
    assert line["output_tokens"] == 2


async def test_a_client_that_leaves_is_cancelled(
    backend: FakeBackend, text: TextService, lines: list[logging.LogRecord]
) -> None:
    backend.hold_after = 1
    async with connected(backend, text) as client:
        call = asyncio.create_task(
            client.post("/v1/completions", json={"prompt": PROMPT, "stream": True})
        )
        await asyncio.wait_for(backend.holding.wait(), 30)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    line = only(lines)
    assert (line["reason"], line["output_tokens"]) == ("cancelled", 1)


async def test_health_is_quiet_unless_it_fails(
    backend: FakeBackend, text: TextService, lines: list[logging.LogRecord]
) -> None:
    async with connected(backend, text) as client:
        await client.get("/health")
        await client.get("/metrics")
        assert not lines
        backend.ready = False
        assert (await client.get("/ready")).status_code == 503
    assert only(lines)["status"] == 503


async def test_keys_are_named_and_never_shown(
    backend: FakeBackend, text: TextService, tmp_path: Path, lines: list[logging.LogRecord]
) -> None:
    key, wrong = new_key(), new_key()
    write_keys(tmp_path / "keys", [Key("alice", digest_of(key), frozenset({KeyScope.INFER}))])
    async with connected(backend, text, KeyGate.open(tmp_path / "keys")) as client:
        for given, name, status in ((key, "alice", 200), (wrong, None, 401)):
            lines.clear()
            headers = {"authorization": f"Bearer {given}"}
            await client.post("/v1/completions", json={"prompt": PROMPT}, headers=headers)
            line = only(lines)
            assert (line["key"], line["status"]) == (name, status)
            (record,) = lines
            said = repr(vars(record))
            assert key not in said and wrong not in said and PROMPT not in said


async def test_a_hostile_path_is_cut(
    backend: FakeBackend, text: TextService, lines: list[logging.LogRecord]
) -> None:
    async with connected(backend, text) as client:
        await client.get("/" + "x" * 5000)
    assert len(only(lines)["call"]) < 200


async def test_grpc_calls_leave_lines_too(
    backend: FakeBackend, text: TextService, lines: list[logging.LogRecord]
) -> None:
    backend.says = "one STOP two STOP"
    server = grpc.aio.server()
    servicer = InferenceServicer(backend, text, None, CallLog("toy"))
    inference_pb2_grpc.add_InferenceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sampling = common_pb2.SamplingParams(max_tokens=3)

    async def ask(stub: inference_pb2_grpc.InferenceStub, **fields: Any) -> dict[str, Any]:
        lines.clear()
        request = inference_pb2.GenerateRequest(sampling=sampling, **fields)
        try:
            async for _ in stub.Generate(request, timeout=60, metadata=(("x-request-id", "mine"),)):
                pass
        except grpc.aio.AioRpcError:
            pass
        await until(lambda: lines)  # the server's side may end after the client's
        return only(lines)

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        good = await ask(stub, text=PROMPT)
        bad = await ask(stub, text=PROMPT, model="other")
        backend.fail_first = ApiError(ErrorCode.OVERLOADED, "the queue is full")
        full = await ask(stub, text=PROMPT)
    await server.stop(None)
    called = {"request_id": "mine", "call": "Generate"}
    assert (
        called | {"status": "OK", "reason": "length", "output_tokens": 3}
    ).items() <= good.items()
    assert (called | {"status": "NOT_FOUND", "model": None}).items() <= bad.items()
    assert (
        called | {"status": "RESOURCE_EXHAUSTED", "reason": "overloaded"}
    ).items() <= full.items()


async def test_grpc_calls_that_the_port_refuses_leave_lines(
    backend: FakeBackend, text: TextService, lines: list[logging.LogRecord]
) -> None:
    calls = CallLog("toy")
    guard = ClientGuard.make(ClientLimits(body_s=0.2), calls=calls)
    servicer = InferenceServicer(backend, text, None, calls)
    server = GrpcServer(
        servicer, "127.0.0.1", 0, ProcessSupervisor(), max_body_bytes=1 << 20, guard=guard
    )
    await server.start()
    named = (("x-request-id", "mine"),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        malformed = channel.unary_stream("/baton.v1.Inference/Generate")(b"\xff", metadata=named)
        with pytest.raises(grpc.aio.AioRpcError):
            await malformed.read()
        silent = channel.stream_stream("/baton.v1.Inference/Generate")(metadata=named)
        with pytest.raises(grpc.aio.AioRpcError):
            await silent.read()
        abort = channel.unary_unary(
            "/baton.v1.Inference/Abort", inference_pb2.AbortRequest.SerializeToString
        )
        with pytest.raises(grpc.aio.AioRpcError):
            await abort(inference_pb2.AbortRequest(), metadata=named)
    await server.stop(0.0)
    assert [(line["call"], line["status"], line["reason"]) for line in map(vars, lines)] == [
        ("Generate", "INVALID_ARGUMENT", "invalid_request"),
        ("Generate", "DEADLINE_EXCEEDED", "deadline_exceeded"),
        ("Abort", "INVALID_ARGUMENT", "invalid_request"),
    ]
    assert {line["request_id"] for line in map(vars, lines)} == {"mine"}
