"""Every field that clients of OpenAI, vLLM and SGLang send works, is a label, or is refused."""

import json
import logging
from typing import Any, ClassVar

import httpx
import pytest
from api.known_fields import KNOWN
from fake_backend import Connect, FakeBackend
from requests_table import PAGE, with_tables

from baton.api.anthropic import body as anthropic
from baton.api.body import Body
from baton.api.fields.field_table import UNREAD_FIELDS, FieldClass, FieldPlace, FieldUse
from baton.api.fields.request_fields import BY_PLACE, UnknownFields
from baton.api.http import make_app
from baton.api.openai.chat_schema import ChatBody
from baton.api.openai.completion_schema import CompletionBody
from baton.api.openai.prediction import Prediction
from baton.api.responses import body as responses
from baton.api.schema import StreamOptions
from baton.api.sglang.admin import AbortBody
from baton.api.sglang.routes import sglang_routes
from baton.api.sglang.schema import GenerateBody, NativeSampling
from baton.api.structured import JsonSchema, ResponseFormat, StructuredOutputs
from baton.api.text_service import TextService
from baton.api.tokens import DetokenizeBody, TokenizeBody
from baton.core.errors import InvariantError

BODIES: dict[FieldPlace, type[Body]] = {
    FieldPlace.COMPLETIONS: CompletionBody,
    FieldPlace.CHAT: ChatBody,
    FieldPlace.GENERATE: GenerateBody,
    FieldPlace.SAMPLING: NativeSampling,
    FieldPlace.STREAM_OPTIONS: StreamOptions,
    FieldPlace.RESPONSE_FORMAT: ResponseFormat,
    FieldPlace.JSON_SCHEMA: JsonSchema,
    FieldPlace.STRUCTURED: StructuredOutputs,
    FieldPlace.PREDICTION: Prediction,
    FieldPlace.ABORT: AbortBody,
    FieldPlace.RESPONSES: responses.ResponsesBody,
    FieldPlace.RESPONSES_TEXT: responses.TextOptions,
    FieldPlace.RESPONSES_REASONING: responses.ReasoningOptions,
    FieldPlace.RESPONSES_STREAM: responses.ResponseStreamOptions,
    FieldPlace.MESSAGES: anthropic.MessagesBody,
    FieldPlace.COUNT_TOKENS: anthropic.ConversationBody,
    FieldPlace.MESSAGES_TOOL: anthropic.MessagesTool,
    FieldPlace.MESSAGES_CHOICE: anthropic.MessagesToolChoice,
    FieldPlace.MESSAGES_THINKING: anthropic.Thinking,
    FieldPlace.MESSAGES_OUTPUT: anthropic.OutputConfig,
    FieldPlace.MESSAGES_FORMAT: anthropic.OutputFormat,
    FieldPlace.MESSAGES_METADATA: anthropic.MessagesMetadata,
    FieldPlace.TOKENIZE: TokenizeBody,
    FieldPlace.DETOKENIZE: DetokenizeBody,
}
SCHEMA = {"type": "object"}
EBNF = 'root ::= "a"'
TAGS = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
# A legal value of each field that works. Those that need others beside them are in WITH.
EXAMPLES: dict[str, Any] = {
    "prompt": "hello", "messages": [{"role": "user", "content": "hi"}], "model": "default",
    "tools": [], "tool_choice": "none", "parallel_tool_calls": False,
    "chat_template_kwargs": {"a": 1}, "documents": [{"title": "a", "text": "b"}],
    "reasoning_effort": "none", "add_generation_prompt": False, "continue_final_message": True,
    "separate_reasoning": False, "text": "hello", "input_ids": [1, 2],
    "sampling_params": {"n": 2}, "add_special_tokens": False, "truncate_prompt_tokens": 2,
    "truncation_side": "right", "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1,
    "repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1, "seed": 7,
    "repeat_penalty": 1.1,
    "sampling_seed": 7, "logit_bias": {"5": 1.5}, "allowed_token_ids": [5, 6],
    "bad_words": ["hello"], "n": 2, "best_of": 1, "max_tokens": 3, "min_tokens": 0,
    "max_completion_tokens": 3, "max_new_tokens": 3, "min_new_tokens": 0, "stop": "x",
    "stop_token_ids": [5], "stop_regex": "a+", "ignore_eos": True,
    "include_stop_str_in_output": True, "no_stop_trim": True, "skip_special_tokens": False,
    "response_format": {"type": "json_object"}, "strict": True,
    "disable_additional_properties": True, "regex": "a", "ebnf": EBNF,
    "json_schema": json.dumps(SCHEMA), "guided_json": SCHEMA, "guided_regex": "a",
    "guided_choice": ["a", "b"], "guided_grammar": EBNF, "structured_outputs": {"regex": "a"},
    "stream": False, "stream_options": {"include_usage": True}, "logprobs": 1, "top_logprobs": 1,
    "prompt_logprobs": 1, "echo": True, "return_token_ids": True, "return_logprob": True,
    "logprob_start_len": 0, "top_logprobs_num": 1, "token_ids_logprob": [5],
    "return_text_in_logprobs": True, "priority": 1, "timeout": 60,
    "routed_dp_rank": 0, "data_parallel_rank": 0,
    "cache_salt": "s", "extra_key": "s", "explain": True,
    "return_cached_tokens_details": True, "rid": "r", "abort_all": True,
    "type": "text", "schema": SCHEMA, "json": SCHEMA, "choice": ["a"], "grammar": EBNF,
    "json_object": True, "include_usage": True, "structural_tag": json.dumps(TAGS), **TAGS,
    "format": {"type": "json_schema", "json_schema": SCHEMA},
    "output_format": {"type": "json_schema", "schema": SCHEMA}, "thinking": {"type": "disabled"},
    "enable_thinking": False, "reasoning": {"effort": "low"},
}  # fmt: skip
_TOOL = {"name": "f", "input_schema": SCHEMA}
# Where a name means something else, or a label has a type.
AT: dict[FieldPlace, dict[str, Any]] = {
    FieldPlace.RESPONSES: {
        "input": "hello", "instructions": "be brief", "max_output_tokens": 3,
        "client_metadata": {"a": "b"},
        "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"], "stream_options": {}, "user": "ada",
        "metadata": {"a": "b"}, "store": False, "safety_identifier": "a", "prompt_cache_key": "a",
        "prompt_cache_retention": "24h", "prompt_cache_options": {}, "max_tool_calls": 2,
    },
    FieldPlace.RESPONSES_TEXT: {"format": {"type": "json_object"}},
    FieldPlace.RESPONSES_REASONING: {
        "effort": "low", "summary": "auto", "generate_summary": "concise",
    },
    FieldPlace.RESPONSES_STREAM: {"include_obfuscation": True},
    FieldPlace.MESSAGES: {
        "system": "be brief", "tool_choice": {"type": "auto"}, "thinking": {"type": "disabled"},
        "output_config": {"effort": "low"}, "metadata": {"user_id": "ada"},
        "stop_sequences": ["x"], "cache_control": {"type": "ephemeral"},
    },
    FieldPlace.MESSAGES_TOOL: {
        "name": "f", "description": "d", "input_schema": SCHEMA, "type": "custom", "strict": True,
        "cache_control": {}, "eager_input_streaming": True, "defer_loading": True,
        "input_examples": [{"a": 1}], "allowed_callers": ["direct"],
    },
    FieldPlace.MESSAGES_CHOICE: {
        "type": "tool", "name": "f", "disable_parallel_tool_use": True,
    },
    FieldPlace.MESSAGES_THINKING: {"type": "enabled", "budget_tokens": 9, "display": "omitted"},
    FieldPlace.MESSAGES_OUTPUT: {"format": {"type": "json_schema", "schema": SCHEMA}},
    FieldPlace.MESSAGES_FORMAT: {"type": "json_schema"},
    FieldPlace.MESSAGES_METADATA: {"user_id": "ada"},
    FieldPlace.CHAT: {"prediction": {"type": "content", "content": "hello"}},
    FieldPlace.PREDICTION: {"type": "content", "content": [{"type": "text", "text": "hello"}]},
    FieldPlace.TOKENIZE: {"return_token_strs": True},
    FieldPlace.DETOKENIZE: {"tokens": [5, 6]},
}  # fmt: skip
AT[FieldPlace.COUNT_TOKENS] = AT[FieldPlace.MESSAGES]
WITH: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
}

NEEDED = {
    (FieldPlace.COMPLETIONS, "prompt"),
    (FieldPlace.CHAT, "messages"),
    (FieldPlace.GENERATE, "text"),
    (FieldPlace.RESPONSE_FORMAT, "type"),
    (FieldPlace.JSON_SCHEMA, "schema"),
    (FieldPlace.PREDICTION, "type"),
    (FieldPlace.PREDICTION, "content"),
    (FieldPlace.ABORT, "rid"),
    (FieldPlace.RESPONSES, "input"),
    (FieldPlace.MESSAGES, "messages"),
    (FieldPlace.MESSAGES, "max_tokens"),
    (FieldPlace.COUNT_TOKENS, "messages"),
    (FieldPlace.MESSAGES_TOOL, "name"),
    (FieldPlace.MESSAGES_CHOICE, "type"),
    (FieldPlace.MESSAGES_CHOICE, "name"),  # of the type tool
    (FieldPlace.MESSAGES_THINKING, "type"),
    (FieldPlace.MESSAGES_FORMAT, "type"),
    (FieldPlace.MESSAGES_FORMAT, "schema"),
    (FieldPlace.TOKENIZE, "prompt"),
    (FieldPlace.DETOKENIZE, "tokens"),
}


def body_of(place: FieldPlace, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the path and body of a request that has `fields` at this place."""
    completion = {"prompt": "hello", "max_tokens": 2}
    match place:
        case FieldPlace.COMPLETIONS:
            return place.value, completion | fields
        case FieldPlace.CHAT:
            if "logprobs" in fields:
                fields = fields | {"logprobs": True}
            return place.value, {"messages": EXAMPLES["messages"], "max_tokens": 2} | fields
        case FieldPlace.GENERATE:
            prompt = {} if fields.get("input_ids") else {"text": "hello"}
            return "/generate", prompt | {"sampling_params": {"max_new_tokens": 2}} | fields
        case FieldPlace.SAMPLING:
            return "/generate", {"text": "hello", "sampling_params": {"max_new_tokens": 2} | fields}
        case FieldPlace.STREAM_OPTIONS:
            inner = {"stream": True, "stream_options": fields}
        case FieldPlace.RESPONSE_FORMAT:
            schema = {"json_schema": {"schema": SCHEMA}, "type": "json_schema"}
            inner = {"response_format": (schema | fields if "type" not in fields else fields)}
            if "json_schema" in fields:
                inner = {"response_format": schema}
        case FieldPlace.JSON_SCHEMA:
            form = {"type": "json_schema", "json_schema": {"schema": SCHEMA} | fields}
            inner = {"response_format": form}
        case FieldPlace.STRUCTURED:
            forms = {"json", "choice", "grammar", "json_object", "structural_tag"}
            added = {} if set(fields) <= forms else {"regex": "a"}
            inner = {"structured_outputs": added | fields}
        case FieldPlace.PREDICTION:
            expected = {"type": "content", "content": "hello"} | fields
            chat = {"messages": EXAMPLES["messages"], "max_tokens": 2}
            return FieldPlace.CHAT.value, chat | {"prediction": expected}
        case FieldPlace.ABORT:
            return place.value, {"rid": "none"} | fields
        case FieldPlace.TOKENIZE:
            prompt = {} if fields.get("messages") else {"prompt": "hello"}
            return place.value, prompt | fields
        case FieldPlace.DETOKENIZE:
            return place.value, {"tokens": [5]} | fields
        case _ if place.startswith(FieldPlace.RESPONSES):
            return _nested(place, {"input": "hello", "max_output_tokens": 2}, fields)
        case FieldPlace.COUNT_TOKENS:
            return place.value, {"messages": EXAMPLES["messages"]} | fields
        case _:
            return _nested(place, {"messages": EXAMPLES["messages"], "max_tokens": 2}, fields)
    return FieldPlace.COMPLETIONS.value, completion | inner


def _nested(
    place: FieldPlace, body: dict[str, Any], fields: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the path and body of a request that has `fields` in an object of `body`."""
    path, _, name = place.partition(": ")
    match name:
        case "":
            return path, body | fields
        case "stream_options":
            body |= {"stream": True}
        case "tools":
            none = {"type": "none"}
            return path, body | {"tools": [_TOOL | fields], "tool_choice": none}
        case "tool_choice":
            tools = {"tools": [_TOOL]}
            return path, body | tools | {name: {"type": "tool", "name": "f"} | fields}
        case "thinking":
            fields = {"type": "enabled"} | fields
        case "output_config.format":
            form = {"type": "json_schema", "schema": SCHEMA} | fields
            return path, body | {"output_config": {"format": form}}
    return path, body | {name: fields}


@pytest.fixture
def backend(tokenizer: Any) -> FakeBackend:
    return FakeBackend(tokenizer, says="ab")


def test_the_table_knows_every_field_of_the_three() -> None:
    for place, names in KNOWN.items():
        assert not names - BY_PLACE[place].keys(), place


def test_the_table_says_of_each_body_what_its_class_reads() -> None:
    assert set(BODIES) == set(FieldPlace)
    for place, kind in BODIES.items():
        read = {field.alias or name for name, field in kind.model_fields.items()}
        works = {n for n, field in BY_PLACE[place].items() if field.kind is FieldClass.WORKS}
        labels = {n for n, field in BY_PLACE[place].items() if field.kind is FieldClass.LABEL}
        assert kind.place is place
        assert works <= read <= works | labels, place


def test_no_field_that_a_class_reads_has_a_row_in_the_table_too() -> None:
    for place, kind in BODIES.items():
        read = {field.alias or name for name, field in kind.model_fields.items()}
        assert not read & UNREAD_FIELDS[place].keys(), place


def test_a_field_must_say_what_becomes_of_it() -> None:
    with pytest.raises(InvariantError, match=r"Wish\.size lacks its use"):

        class Wish(Body):
            place: ClassVar[FieldPlace | None] = FieldPlace.PREDICTION

            size: int = 0


def test_the_page_of_fields_is_that_of_the_table() -> None:
    assert PAGE.read_text() == with_tables(PAGE.read_text()), "run `make docs`"


async def post(
    client: httpx.AsyncClient, place: FieldPlace, fields: dict[str, Any]
) -> httpx.Response:
    path, body = body_of(place, fields)
    return await client.post(path, json=body)


@pytest.mark.parametrize("place", list(FieldPlace))
async def test_each_field_works_or_is_accepted_or_refused(
    place: FieldPlace, connect_strict: Connect
) -> None:
    async with connect_strict() as client:
        for name, field in BY_PLACE[place].items():
            for value, legal in values_of(name, field, place):
                alone = field.kind is not FieldClass.WORKS or place is FieldPlace.RESPONSES
                more = {} if alone else WITH.get(name, {})
                reply = await post(client, place, more | {name: value})
                where = f"{place} {name} = {value!r}: {reply.text}"
                assert reply.status_code == (200 if legal else 400), where
                if not legal:
                    error = reply.json()["error"]
                    if not place.startswith(
                        "/v1/messages"
                    ):  # Anthropic's errors have no such field
                        assert error["param"].split(".")[-1] == name, where
                    assert name in error["message"], where
                    assert field.kind is FieldClass.LABEL or "not supported" in error["message"]
            reply = await post(client, place, {name: None})
            missing = (place, name) in NEEDED
            assert reply.status_code == (400 if missing else 200), f"{name}: {reply.text}"


def values_of(name: str, field: FieldUse, place: FieldPlace) -> list[tuple[object, bool]]:
    """Return values of a field, and whether they are accepted."""
    if field.kind is not FieldClass.NEUTRAL and name in AT.get(place, {}):
        return [(AT[place][name], True)]
    if field.kind is FieldClass.WORKS:
        return [(EXAMPLES[name], True)]
    if field.kind is FieldClass.LABEL and not field.values:
        return [("anything", True)]
    listed = [(value, True) for value in field.values]
    return [*listed, ("something else", False), ({"a": 1}, False)]


@pytest.mark.parametrize(
    ("path", "more", "param", "said"),
    [
        ("/v1/completions", {"max_token": 5}, "max_token", "did you mean max_tokens?"),
        ("/v1/completions", {"temprature": 5}, "temprature", "did you mean temperature?"),
        ("/v1/completions", {"temprature": None}, "temprature", "did you mean temperature?"),
        ("/v1/completions", {"zz": 5}, "zz", "docs/requests.md"),
        ("/v1/completions", {"z" * 10**4: 5}, "z" * 79 + "…", "unknown field"),
        ("/v1/completions", {"messages": []}, "messages", "it is one of /v1/chat/completions"),
        (
            "/v1/completions",
            {"stream": True, "stream_options": {"include_usag": True}},
            "stream_options.include_usag",
            "did you mean include_usage?",
        ),
        (
            "/v1/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"shema": {}}}},
            "response_format.json_schema.shema",
            "did you mean schema?",
        ),
        ("/generate", {"temperature": 0}, "temperature", "/generate: sampling_params"),
        ("/generate", {"sampling_params": {"top_q": 1}}, "sampling_params.top_q", "top_"),
        ("/generate", {"sampling_params": [{"top_q": 1}]}, "sampling_params.0.top_q", "top_"),
        ("/abort_request", {"rids": "x"}, "rids", "did you mean rid?"),
    ],
)
async def test_an_unknown_field_is_refused_with_the_nearest_that_is_known(
    path: str, more: dict[str, Any], param: str, said: str, connect_strict: Connect
) -> None:
    needed = {"/v1/completions": {"prompt": "x"}, "/generate": {"text": "x"}}.get(path, {})
    async with connect_strict() as client:
        reply = await client.post(path, json=needed | more)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param
    assert said in error["message"]
    assert len(error["message"]) < 400


@pytest.mark.parametrize("policy", [UnknownFields.WARN, UnknownFields.IGNORE])
async def test_unknown_fields_can_be_let_through(
    policy: UnknownFields,
    backend: FakeBackend,
    text: TextService,
    caplog: pytest.LogCaptureFixture,
) -> None:
    routes = sglang_routes(backend, text, unknown_fields=policy)
    app = make_app(backend, text, unknown_fields=policy, more_routes=routes)
    transport = httpx.ASGITransport(app)
    name = f"never_seen_{policy.value}"
    caplog.set_level(logging.WARNING)
    async with httpx.AsyncClient(transport=transport, base_url="http://toy") as client:
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/generate", {"text": "x"})):
            reply = await client.post(path, json=body | {name: 5, "lora_path": ""})
            assert reply.status_code == 200, reply.text
            assert reply.headers["x-baton-ignored"] == name
            more = {"return_hidden_states": True, "return_prompt_token_ids": True}
            reply = await client.post(path, json=body | more)
            assert reply.status_code == 200, reply.text
            assert reply.headers["x-baton-ignored"] == ", ".join(more)
            refused = await client.post(path, json=body | {"lora_path": "x"})
            assert refused.status_code == 400, "what would change the answer is refused still"
            misspelt = await client.post(path, json=body | {"streem": False})
            assert misspelt.status_code == (400 if policy is UnknownFields.WARN else 200)
            assert policy is UnknownFields.IGNORE or "did you mean stream?" in misspelt.text
    lines = [record for record in caplog.records if name in record.getMessage()]
    assert len(lines) == (1 if policy is UnknownFields.WARN else 0)


async def test_one_client_does_not_keep_the_names_of_others_out_of_the_log(
    backend: FakeBackend, text: TextService, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(backend, text)

    async def logged(address: str, *names: str) -> list[str]:
        caplog.clear()
        transport = httpx.ASGITransport(app, client=(address, 7))
        body = {"prompt": "x"} | dict.fromkeys(names, 1)
        async with httpx.AsyncClient(transport=transport, base_url="http://toy") as client:
            reply = await client.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        records = [each for each in caplog.records if each.name.endswith(".left_out_log")]
        return [record.getMessage().rpartition(" ")[2] for record in records]

    caplog.set_level(logging.WARNING)
    made_up = [f"made_up_{number}" for number in range(300)]
    assert len(await logged("10.0.0.1", *made_up)) == 64
    assert await logged("10.0.0.1", "made_up_too") == []
    assert await logged("10.0.0.2", *made_up[:9], "made_up_too") == ["'made_up_too'"]
    assert await logged("10.0.0.2", "made_up_too") == []


async def test_the_prompt_and_schemas_pass_through(connect: Connect, backend: FakeBackend) -> None:
    message = {"role": "user", "content": "hi", "name": "ada", "cache_control": {"a": None}}
    schema = {"type": "object", "properties": {"max_token": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"messages": [message], "response_format": form}
    async with connect() as client:
        reply = await client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    grammar = backend.seen[0].sampling.grammar
    assert grammar is not None and json.loads(grammar.text) == schema
