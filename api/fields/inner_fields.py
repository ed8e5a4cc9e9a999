"""The fields of the objects inside conversations and tools: messages, parts, calls, items.

A body has any number of them, and clients add labels of their own: so they have no rows in the
table of fields. JSON schemas and the arguments of calls are never looked into.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from baton.api.errors import invalid, shorten
from baton.api.fields.request_fields import FieldCheck, UnknownFields, misspelt

_COMPARED = 256  # unknown names of a body, which may make up any number
_COMPARED_CHARS = 64


@dataclass(frozen=True)
class ObjectKind:
    """The fields of one kind of object."""

    names: tuple[str, ...]  # what others are compared with
    labels: frozenset[str]  # what else clients send: accepted, it changes no token
    inner: Mapping[str, "ObjectKind"] = field(default_factory=dict)  # fields that hold objects

    @property
    def own_labels(self) -> tuple[str, ...]:
        """Return the labels that only objects of this kind have."""
        return tuple(sorted(self.labels - set(self.names) - ANYWHERE))

    @classmethod
    def of(cls, names: str, labels: str, **inner: "ObjectKind") -> "ObjectKind":
        """Make a kind of names that are separated by spaces."""
        return cls(tuple(names.split()), ANYWHERE | set(labels.split()), inner)


ANYWHERE = frozenset(
    "id index status type metadata cache_control caller phase namespace signature citations "
    "annotations logprobs provider_specific_fields provider_options providerOptions "
    "provider_metadata providerMetadata extra_content extra_body thought_signature parsed "
    "prompt_cache_breakpoint async async_".split()
)
"""Labels that OpenAI, Anthropic, vLLM, LiteLLM, LangChain and Vercel's AI SDK put anywhere."""
_OF_REPLIES = (
    "object created created_at created_by createdAt timestamp date model usage finish_reason "
    "stop_reason stop_sequence stop_details container context_management response_metadata "
    "usage_metadata additional_kwargs invalid_tool_calls parsed_output example artifact "
    "diagnostics input_transformations clear_at output_config "
)
"""Labels of answers that clients send back as they came."""
PART = ObjectKind.of(
    "type text refusal thinking cache_control",
    "reasoning summary data encrypted_content image_url image_file input_audio audio_url video_url "
    "audio image video file file_id file_data file_url filename detail format source sources title "
    "context content name input document thought closed estimated_tokens",
)
CALLED = ObjectKind.of(
    "name arguments input",
    "parsed_arguments output description parameters strict args error result",
)
CALL = ObjectKind.of(
    "type function custom",
    "name args arguments input output result error response extra approval",
    function=CALLED,
    custom=CALLED,
)
CHAT_MESSAGE = ObjectKind.of(
    "role content name refusal tool_calls function_call tool_call_id reasoning reasoning_content "
    "thinking cache_control",
    _OF_REPLIES
    + "audio audios image images video videos files file documents sources reasoning_details "
    "reasoning_text reasoning_items reasoning_signature reasoning_opaque thinking_blocks "
    "thinking_signature thinking_details encrypted_content prefix partial weight tool_plan "
    "tool_name tool_responses tools tool_call_error response_format context channel recipient "
    "end_turn content_type author parts task mask is_error server_tool_use",
    content=PART,
    tool_calls=CALL,
    function_call=CALLED,
)
TOOL_FUNCTION = ObjectKind.of(
    "name description parameters strict cache_control",
    "format return returns response response_schema output output_schema outputSchema outputs "
    "arguments input_schema inputSchema title version tags category examples input_examples "
    "defer_loading allowed_callers eager_input_streaming execution meta _meta extra required "
    "properties",
)
RESPONSES_TOOL = ObjectKind.of(
    "type name description parameters strict format tools defer_loading",
    "output_schema allowed_callers input_examples eager_input_streaming execution function title "
    "extra",
)
ITEM = ObjectKind.of(
    "type role content call_id name arguments input output summary encrypted_content status "
    "namespace",
    _OF_REPLIES
    + "context parsed_arguments action agent author recipient channel end_turn text refusal "
    "execution internal_chat_message_metadata_passthrough acknowledged_safety_checks server_label "
    "error",
    content=PART,
    output=PART,
    summary=PART,
)
BLOCK = ObjectKind.of(
    "type text name input tool_use_id content is_error thinking signature data source title "
    "context citations cache_control",
    "server_name server_label file_id encrypted_content parsed_output estimated_tokens refusal "
    "reasoning summary partial_json tool_name tool_references toolset_name tool_changes",
)
TURN = ObjectKind.of("role content", _OF_REPLIES + "name context reasoning_content")
"""A message of `/v1/messages`, but for its blocks."""


def known_only(given: object, kind: ObjectKind, check: FieldCheck, where: str, path: str) -> Any:
    """Return an object, or a list of them, with the known fields alone; other values as they are.

    where: the place in the body, with its numbers, for errors. path: the same without them, for
    what is left out. Raises `ApiError` for a field that `check` refuses.
    """
    if isinstance(given, list):
        return [
            known_only(each, kind, check, f"{where}.{number}", path)
            if isinstance(each, Mapping)
            else each
            for number, each in enumerate(given)
        ]
    if not isinstance(given, Mapping):
        return given
    kept: dict[str, Any] = {}
    for name, value in given.items():
        inner = kind.inner.get(name)
        if inner is not None:
            kept[name] = known_only(value, inner, check, f"{where}.{name}", f"{path}.{name}")
        elif name in kind.names or name in kind.labels:
            kept[name] = value
        else:
            _unknown(name, kind, check, where, path)
    return kept


def _unknown(name: str, kind: ObjectKind, check: FieldCheck, where: str, path: str) -> None:
    if check.policy is not UnknownFields.IGNORE:
        compared = len(name) <= _COMPARED_CHARS and len(check.ignored) < _COMPARED
        near = _near(name, kind.names) if compared else None
        if near is not None or check.policy is UnknownFields.REFUSE:
            place = f"{where}.{shorten(name)}"
            why = "docs/requests.md lists those that are known"
            if near is not None:
                why = f"did you mean {near}?"
            raise invalid(place, f"{place}: unknown field; {why}", expected=near or "")
    check.leave_out(f"{path}.{name}")


@lru_cache(maxsize=1024)  # agents repeat a field in each message
def _near(name: str, known: tuple[str, ...]) -> str | None:
    return misspelt(name, known)
