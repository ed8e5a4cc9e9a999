"""This release's code made to speak the previous release's protocol.

`protocol_5_1.binpb` is the frozen set of that protocol's descriptors. Every message that the
process sends or reads passes through them: what they do not know is lost on the way, and RPCs that
they lack are not there.
"""

import collections
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from grpc import aio

from baton.proto import version

MAJOR, MINOR = 5, 1
FROZEN = Path(__file__).with_name(f"protocol_{MAJOR}_{MINOR}.binpb")
Translate = Callable[[bytes], bytes]


def descriptors() -> descriptor_pool.DescriptorPool:
    """Return the frozen descriptors, in a pool of their own."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(FROZEN.read_bytes()).file:
        pool.Add(file)  # type: ignore[no-untyped-call]
    return pool


def services() -> Mapping[str, Mapping[str, MethodDescriptor]]:
    """Return the previous release's RPCs by service and name."""
    found: dict[str, dict[str, MethodDescriptor]] = collections.defaultdict(dict)
    pool = descriptors()
    for name in ("worker", "handoff", "inference"):
        file = pool.FindFileByName(f"baton/proto/{name}.proto")
        for service in file.services_by_name.values():
            for method in service.methods:
                found[service.full_name][method.name] = method
    return found


def through(kind: type[Message]) -> Translate:
    """Return a function that drops whatever the previous release's `kind` does not know."""

    def translate(data: bytes) -> bytes:
        message = kind.FromString(data)
        message.DiscardUnknownFields()  # type: ignore[attr-defined]
        return message.SerializeToString()

    return translate


def speak_previous() -> None:
    """Make this process speak the previous protocol. Call it before anything else is imported."""
    version.PROTOCOL_MAJOR, version.PROTOCOL_MINOR = MAJOR, MINOR
    known = services()
    for shape in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
        _translate_calls(shape, known)
    _translate_handlers(known)


def _kinds(method: MethodDescriptor) -> tuple[Translate, Translate]:
    """Return the translations of an RPC's requests and of its replies."""
    return (
        through(message_factory.GetMessageClass(method.input_type)),
        through(message_factory.GetMessageClass(method.output_type)),
    )


def _translate_calls(shape: str, known: Mapping[str, Mapping[str, MethodDescriptor]]) -> None:
    channel: Any = aio._channel.Channel
    plain = getattr(channel, shape)

    def call(
        self: Any, path: str, request_serializer: Any = None, response_deserializer: Any = None,
        *more: Any, **named: Any,
    ) -> Any:  # fmt: skip
        service, name = path.strip("/").split("/")
        if service in known and name not in known[service]:
            path += "OfALaterRelease"  # nobody serves it
        elif service in known:  # not the channel of state, which has no messages
            requests, replies = _kinds(known[service][name])
            request_serializer = _then(request_serializer, requests)
            response_deserializer = _then(replies, response_deserializer)
        return plain(self, path, request_serializer, response_deserializer, *more, **named)

    setattr(channel, shape, call)


def _translate_handlers(known: Mapping[str, Mapping[str, MethodDescriptor]]) -> None:
    plain = grpc.method_handlers_generic_handler

    def make(service: str, handlers: dict[str, Any]) -> Any:
        for name, handler in list(handlers.items()) if service in known else ():
            if name not in known[service]:
                del handlers[name]
                continue
            requests, replies = _kinds(known[service][name])
            handlers[name] = handler._replace(
                request_deserializer=_then(requests, handler.request_deserializer),
                response_serializer=_then(handler.response_serializer, replies),
            )
        return plain(service, handlers)

    grpc.method_handlers_generic_handler = make


def _then(first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: second(first(value))
