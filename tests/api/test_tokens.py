"""`/tokenize` and `/detokenize`, as vLLM's clients call them."""

from fake_backend import CONTEXT, Connect, FakeBackend

MESSAGES = [{"role": "user", "content": "hello"}]


async def test_a_prompt_is_tokenised_as_the_endpoints_do(
    connect: Connect, backend: FakeBackend
) -> None:
    async with connect() as client:
        reply = (await client.post("/tokenize", json={"prompt": "hello 😀"})).json()
        strings = (
            await client.post("/tokenize", json={"prompt": "hello", "return_token_strs": True})
        ).json()
    ids = backend.tokenizer.encode("hello 😀")
    assert reply == {
        "count": len(ids), "max_model_len": CONTEXT, "tokens": ids, "token_strs": None
    }  # fmt: skip
    assert "".join(strings["token_strs"]) == "hello"


async def test_messages_are_tokenised_by_the_chat_template(
    connect: Connect, backend: FakeBackend
) -> None:
    async with connect() as client:
        for more, end in (({}, "<|assistant|>"), ({"add_generation_prompt": False}, "")):
            body = {"messages": MESSAGES, **more}
            ids = (await client.post("/tokenize", json=body)).json()["tokens"]
            text = (await client.post("/detokenize", json={"tokens": ids})).json()["prompt"]
            assert text == f"<s><|user|>hello<|end|>{end}"


async def test_what_is_no_request_is_refused_by_name(connect: Connect) -> None:
    async with connect() as client:
        for path, body, param in (
            ("/tokenize", {}, "prompt"),
            ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt"),
            ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
            ("/detokenize", {"tokens": [10**6]}, "tokens"),
            ("/detokenize", {"tokens": "hello"}, "tokens"),
            ("/detokenize", {"tokens": [1], "model": "other"}, "model"),
        ):
            reply = await client.post(path, json=body)
            assert reply.status_code in (400, 404), f"{path} {body}"
            assert reply.json()["error"]["param"] == param
