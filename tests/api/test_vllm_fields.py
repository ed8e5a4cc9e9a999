"""Fields that vLLM's and SGLang's clients add to OpenAI's requests, and what becomes of them."""

import json
from typing import Any

import pytest
from fake_backend import Connect, FakeBackend

from baton.core.grammar import Grammar, GrammarKind

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
EBNF = 'root ::= "a" | "b"'
LARK = 'start: "a" | "b"'
JSON_GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
GRAMMARS: list[tuple[dict[str, Any], Grammar]] = [
    ({"guided_json": SCHEMA}, JSON_GRAMMAR),
    ({"guided_json": json.dumps(SCHEMA)}, JSON_GRAMMAR),
    ({"guided_regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
    ({"guided_grammar": EBNF}, Grammar(GrammarKind.EBNF, EBNF)),
    ({"guided_grammar": LARK}, Grammar(GrammarKind.LARK, LARK)),
    ({"guided_choice": ["a", 'é"\n']}, Grammar(GrammarKind.LARK, 'start: "a" | "é\\"\\n"')),
    ({"structured_outputs": {"json": SCHEMA}}, JSON_GRAMMAR),
    ({"structured_outputs": {"choice": ["a"]}}, Grammar(GrammarKind.LARK, 'start: "a"')),
    ({"structured_outputs": {"json_object": True}},
     Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')),
    ({"json_schema": "$$ANY$$"}, Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "grammar"), GRAMMARS)
async def test_a_constraint_by_any_of_its_names(
    fields: dict[str, Any], grammar: Grammar, connect: Connect, backend: FakeBackend
) -> None:
    async with connect() as client:
        for path, prompt in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": [USER]})):
            reply = await client.post(path, json=prompt | {"max_tokens": 5} | fields)
            assert reply.status_code == 200, reply.text
            assert backend.seen[-1].sampling.grammar == grammar


async def test_sampling_fields_arrive(connect: Connect, backend: FakeBackend) -> None:
    given: dict[str, Any] = {"logit_bias": {"5": 2.5, "3": -100, "4": 0}, "bad_words": ["a", "b c"]}
    given |= {"allowed_token_ids": [3, 5], "stop_regex": "[ab]+c"}
    async with connect() as client:
        for path, body in (
            (COMPLETIONS, {"prompt": "x"} | given),
            (CHAT, {"messages": [USER], "max_tokens": 5} | given),
            ("/generate", {"text": "x", "sampling_params": given}),
        ):
            reply = await client.post(path, json=body)
            assert reply.status_code == 200, reply.text
            sampling = backend.seen[-1].sampling
            assert sampling.logit_bias == ((3, -100.0), (5, 2.5))
            assert sampling.bad_words == ("a", "b c")
            assert sampling.allowed_token_ids == (3, 5)
            assert sampling.stop_regex == ("[ab]+c",)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_reply_says_what_ended_it(
    connect: Connect, backend: FakeBackend, stream: bool
) -> None:
    backend.says = "hello world 42 on"
    more = {"stop_regex": r"\d\d", "stream": stream}
    async with connect() as client:
        for path, prompt in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": [USER]})):
            body = prompt | {"max_tokens": 40} | more
            reply = await client.post(path, json=body)
            assert reply.status_code == 200, reply.text
            choices = [reply.json()["choices"][0]] if not stream else streamed(reply.text)
            assert "".join(map(text_of, choices)) == "hello world "
            assert [choice["matched_stop"] for choice in choices][-1] == r"\d\d"
            assert {choice["matched_stop"] for choice in choices[:-1]} <= {None}


def text_of(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return (choice.get("message") or choice.get("delta") or {"content": ""})["content"]


def streamed(text: str) -> list[dict[str, Any]]:
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [json.loads(event)["choices"][0] for event in events if event != "[DONE]"]


async def test_prompt_logprobs_are_in_vllms_form(connect: Connect, backend: FakeBackend) -> None:
    async with connect() as client:
        body = {"prompt": [70, 71], "max_tokens": 1, "prompt_logprobs": 2, "n": 2}
        choices = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        chat = {"messages": [USER], "max_tokens": 1, "prompt_logprobs": 0}
        reply = (await client.post(CHAT, json=chat)).json()
    for choice in choices:
        first, second = choice["prompt_logprobs"]
        assert first is None
        assert second["71"]["logprob"] == -1.0 and second["71"]["rank"] == 1
        assert {entry["decoded_token"] for entry in second.values()} and len(second) == 2
        assert choice["logprobs"] is None and not choice["text"].startswith("hello")
    assert reply["prompt_logprobs"][0] is None
    assert len(reply["prompt_logprobs"]) == reply["usage"]["prompt_tokens"]
    assert all(len(entry) == 1 for entry in reply["prompt_logprobs"][1:])


async def test_the_repetition_penalty_has_a_second_name(
    connect: Connect, backend: FakeBackend
) -> None:
    body = {"prompt": "x", "repeat_penalty": 1.5}
    async with connect() as client:
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        assert backend.seen[-1].sampling.repetition_penalty == 1.5
        for wrong in ({"repeat_penalty": 0}, {"repetition_penalty": 1.1}):
            reply = await client.post("/v1/completions", json=body | wrong)
            assert reply.status_code == 400
            assert reply.json()["error"]["param"] == "repeat_penalty"


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 2}, [73, 74]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [70, 71]),
        ({"truncate_prompt_tokens": 9}, [70, 71, 72, 73, 74]),
        ({"truncate_prompt_tokens": -1, "max_tokens": 61}, [72, 73, 74]),
    ],
)
async def test_a_prompt_is_cut_where_its_client_says(
    fields: dict[str, Any], kept: list[int], connect: Connect, backend: FakeBackend
) -> None:
    body = {"prompt": [70, 71, 72, 73, 74], "max_tokens": 1} | fields
    async with connect() as client:
        reply = await client.post(COMPLETIONS, json=body)
    assert reply.status_code == 200, reply.text
    assert list(backend.seen[0].prompt_ids) == kept


async def test_a_chat_can_continue_its_last_message(connect: Connect, backend: FakeBackend) -> None:
    last = {"role": "assistant", "content": "hello wor"}
    body = {"messages": [USER, last], "max_tokens": 1, "continue_final_message": True}
    async with connect() as client:
        reply = await client.post(CHAT, json=body)
        assert reply.status_code == 200, reply.text
    tokenizer = backend.tokenizer
    prompt = tokenizer.decode(backend.seen[0].prompt_ids, skip_special_tokens=False)
    assert prompt.endswith("<|assistant|>hello wor")


@pytest.mark.parametrize("name", ["default", "", None, "toy"])
async def test_names_of_the_served_model(name: str | None, connect: Connect) -> None:
    async with connect() as client:
        reply = await client.post(COMPLETIONS, json={"prompt": "x", "model": name})
        assert reply.status_code == 200 and reply.json()["model"] == "toy"


async def test_the_clients_own_id_has_three_names(connect: Connect, backend: FakeBackend) -> None:
    async with connect() as client:
        for fields in ({"rid": "me"}, {"request_id": "me"}, {"user": "me"}):
            await client.post(COMPLETIONS, json={"prompt": "x"} | fields)
            assert backend.seen[-1].client_id == "me"
