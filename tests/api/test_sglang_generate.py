"""`/generate` as SGLang's clients use it, over a backend that answers from a script."""

import asyncio
import itertools
import json
import random
from typing import Any

import pytest
from fake_backend import CONTEXT, Connect, FakeBackend

from baton.core.drafts import DraftCount, DraftUsage
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.text.tokenizer import Tokenizer


async def generate(connect: Connect, body: dict[str, Any]) -> Any:
    async with connect() as client:
        reply = await client.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def stream(connect: Connect, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with connect() as client:
        reply = await client.post("/generate", json=body | {"stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


async def test_text_gives_text_ids_and_what_it_cost(
    connect: Connect, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    backend.says = "the baton"
    reply = await generate(connect, {"text": "hello world"})
    meta = reply["meta_info"]
    assert reply["text"] == "the baton"
    assert reply["output_ids"] == tokenizer.encode("the baton")
    assert meta["id"] == backend.seen[0].request_id
    assert meta["prompt_tokens"] == len(tokenizer.encode("hello world"))
    assert meta["completion_tokens"] == len(reply["output_ids"])
    assert meta["cached_tokens"] == 1
    assert meta["cached_tokens_details"] == {"device": 1, "host": 0}
    assert meta["e2e_latency"] == 9e-6
    assert meta["finish_reason"] == {"type": "stop", "matched": None}
    assert "output_token_logprobs" not in meta


async def test_the_drafts_of_an_answer_are_counted_by_proposer(
    connect: Connect, backend: FakeBackend
) -> None:
    plain = (await generate(connect, {"text": "hello"}))["meta_info"]
    assert not [name for name in plain if name.startswith("spec_")]
    backend.drafts = DraftUsage(4, (DraftCount("ngram", 7, 5), DraftCount("grammar", 3, 3)))
    meta = (await generate(connect, {"text": "hello"}))["meta_info"]
    assert {name: meta[name] for name in meta if name.startswith("spec_")} == {
        "spec_verify_ct": 4,
        "spec_draft_token_num": 10,
        "spec_accept_token_num": 8,
        "spec_accept_rate": 0.8,
        "spec_accept_length": 3.0,
        "spec_by_proposer": {
            "ngram": {"proposed": 7, "accepted": 5},
            "grammar": {"proposed": 3, "accepted": 3},
        },
    }
    *_, last = await stream(connect, {"text": "hello"})
    assert last["meta_info"]["spec_verify_ct"] == 4


async def test_sglangs_names_and_defaults_reach_the_backend(
    connect: Connect, backend: FakeBackend
) -> None:
    await generate(connect, {"text": "hello"})
    left_out = backend.seen[-1].sampling
    prompt = len(backend.seen[-1].prompt_ids)
    assert left_out.max_tokens == CONTEXT - prompt, "128, but for what the context leaves"
    assert (left_out.temperature, left_out.top_k, left_out.top_p) == (1.0, 0, 1.0)
    assert left_out.logprobs is None and left_out.prompt_logprobs_start is None
    given = {
        "max_new_tokens": 9,
        "min_new_tokens": 2,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.25,
        "frequency_penalty": 0.75,
        "stop": "END",
        "stop_token_ids": [5],
        "ignore_eos": True,
        "sampling_seed": -1,
        "no_stop_trim": True,
        "spaces_between_special_tokens": True,
        "regex": None,
    }
    await generate(connect, {"text": "hello", "sampling_params": given, "priority": 3})
    params = backend.seen[-1].sampling
    assert (params.max_tokens, params.min_tokens, params.temperature) == (9, 2, 0)
    assert (params.top_p, params.top_k, params.min_p) == (0.5, 7, 0.125)
    assert (params.repetition_penalty, params.presence_penalty) == (1.5, 0.25)
    assert (params.frequency_penalty, params.stop, params.stop_token_ids) == (0.75, ("END",), (5,))
    assert params.ignore_eos and params.include_stop and params.seed == 2**64 - 1
    assert backend.seen[-1].priority == 3


async def test_a_prompt_of_ids_goes_through_as_it_is(
    connect: Connect, backend: FakeBackend
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    ids = [rng.randrange(10, 250) for _ in range(9)]
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 3}, "routed_dp_rank": 1}
    reply = await generate(connect, body)
    assert backend.seen[0].prompt_ids == tuple(ids)
    assert backend.seen[0].routed_dp_rank == 1
    assert reply["output_ids"] == ids[:3]
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 3}


async def test_a_list_of_prompts_gives_a_list_also_of_one(
    connect: Connect, backend: FakeBackend
) -> None:
    one = await generate(connect, {"text": ["hello"]})
    assert [reply["text"] for reply in one] == ["hello"]
    several = await generate(connect, {"input_ids": [[40, 41], [42]]})
    assert [reply["output_ids"] for reply in several] == [[40, 41], [42]]
    body = {
        "text": ["hello", "world"],
        "rid": ["a", "b"],
        "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2, "n": 2}],
        "return_logprob": [True, False],
    }
    each = await generate(connect, body)
    assert [reply["meta_info"]["id"] for reply in each] == ["a", "b_0", "b_1"]
    assert [reply["meta_info"]["completion_tokens"] for reply in each] == [1, 2, 2]
    assert ["output_token_logprobs" in reply["meta_info"] for reply in each] == [True, False, False]
    assert [request.client_id for request in backend.seen[-3:]] == ["a", "b", "b"]


async def test_a_stop_string_is_named_and_cut_or_kept(
    connect: Connect, backend: FakeBackend
) -> None:
    backend.says = "the STOP world"
    for keep, text in ((False, "the "), (True, "the STOP")):
        params = {"stop": ["STOP"], "no_stop_trim": keep, "max_new_tokens": 40}
        reply = await generate(connect, {"text": "hello", "sampling_params": params})
        assert reply["text"] == text
        assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": "STOP"}


async def test_a_stream_repeats_the_whole_reply_as_it_grows(
    connect: Connect, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    backend.says = "the baton passes on"
    chunks = await stream(connect, {"text": "hello", "return_logprob": True})
    ids = tokenizer.encode(backend.says)
    assert [chunk["output_ids"] for chunk in chunks[:-1]] == [ids[: i + 1] for i in range(len(ids))]
    for earlier, later in itertools.pairwise(chunks):
        assert later["text"].startswith(earlier["text"])
    assert all(chunk["meta_info"]["finish_reason"] is None for chunk in chunks[:-1])
    last = chunks[-1]
    assert last["text"] == backend.says and last["output_ids"] == ids
    assert last["meta_info"]["finish_reason"]["type"] == "stop"
    assert len(last["meta_info"]["output_token_logprobs"]) == len(ids)
    assert "index" not in last


async def test_an_incremental_stream_sends_each_part_once(
    connect_incremental: Connect, connect: Connect, backend: FakeBackend
) -> None:
    backend.says = "the baton passes on"
    body = {"text": ["hello", "world"], "return_logprob": True, "logprob_start_len": 0}
    body |= {"top_logprobs_num": 1, "token_ids_logprob": [9]}
    whole = await generate(connect, body)
    chunks = await stream(connect_incremental, body)
    for number, expected in enumerate(whole):
        mine = [chunk for chunk in chunks if chunk["index"] == number]
        assert len(mine) > 3 and all(len(chunk["output_ids"]) <= 1 for chunk in mine)
        assert "".join(chunk["text"] for chunk in mine) == expected["text"]
        assert [i for chunk in mine for i in chunk["output_ids"]] == expected["output_ids"]
        for name, entries in expected["meta_info"].items():
            if name.endswith("_logprobs"):
                parts = [chunk["meta_info"][name] for chunk in mine]
                assert [entry for part in parts for entry in part] == entries, name
        counts = [chunk["meta_info"]["completion_tokens"] for chunk in mine]
        assert counts == sorted(counts) and counts[0] == 1, "of the whole answer so far"
        last = mine[-1]["meta_info"]
        assert last["finish_reason"] == expected["meta_info"]["finish_reason"]
        assert last["completion_tokens"] == expected["meta_info"]["completion_tokens"]
    async with connect_incremental() as client:
        assert (await client.get("/server_info")).json()["incremental_streaming_output"] is True


async def test_chunks_of_a_batch_say_which_prompt_they_belong_to(connect: Connect) -> None:
    chunks = await stream(connect, {"text": ["hello", "world"]})
    last = {chunk["index"]: chunk["text"] for chunk in chunks}
    assert last == {0: "hello", 1: "world"}


async def test_logprobs_are_triples_and_the_first_prompt_token_has_none(
    connect: Connect, tokenizer: Tokenizer
) -> None:
    body = {
        "input_ids": [40, 41, 42],
        "sampling_params": {"max_new_tokens": 2},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "return_text_in_logprobs": True,
    }
    meta = (await generate(connect, body))["meta_info"]
    assert [entry[:2] for entry in meta["input_token_logprobs"]] == [[None, 40], [-1, 41], [-1, 42]]
    assert [entry[1] for entry in meta["output_token_logprobs"]] == [40, 41]
    assert meta["output_token_logprobs"][0][2] == tokenizer.decode([40])
    assert meta["input_top_logprobs"][0] is None
    assert [entry[:2] for entry in meta["input_top_logprobs"][1]] == [[-1, 41], [-2, 70]]
    assert [entry[:2] for entry in meta["output_top_logprobs"][0]] == [[-1, 40], [-2, 70]]
    plain = body | {"return_text_in_logprobs": False, "top_logprobs_num": 0}
    meta = (await generate(connect, plain | {"logprob_start_len": 2}))["meta_info"]
    assert meta["input_token_logprobs"] == [[-1, 42, None]]
    assert "input_top_logprobs" not in meta
    assert "input_token_ids_logprobs" not in meta
    asked = body | {"token_ids_logprob": [9, 41]}
    meta = (await generate(connect, asked))["meta_info"]
    assert meta["input_token_ids_logprobs"][0] is None
    for entry in (*meta["input_token_ids_logprobs"][1:], *meta["output_token_ids_logprobs"]):
        assert [pair[:2] for pair in entry] == [[-9, 9], [-41, 41]]
    for nothing in (-1, 3):
        meta = (await generate(connect, plain | {"logprob_start_len": nothing}))["meta_info"]
        assert meta["input_token_logprobs"] == []


async def test_scoring_asks_for_no_token(connect: Connect, backend: FakeBackend) -> None:
    body = {
        "input_ids": [40, 41, 42],
        "sampling_params": {"max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": 1,
    }
    reply = await generate(connect, body)
    assert (reply["text"], reply["output_ids"]) == ("", [])
    assert [entry[1] for entry in reply["meta_info"]["input_token_logprobs"]] == [41, 42]
    assert reply["meta_info"]["output_token_logprobs"] == []
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert backend.seen[0].sampling.max_tokens == 0


async def test_an_aborted_answer_says_so_and_keeps_what_it_had(
    connect: Connect, backend: FakeBackend
) -> None:
    backend.hold_after = 2
    body = {"input_ids": [40, 41, 42], "rid": "mine"}
    async with connect() as client:
        asking = asyncio.create_task(client.post("/generate", json=body))
        await asyncio.wait_for(backend.holding.wait(), 60)
        other = await client.post("/abort_request", json={"rid": "another"})
        assert other.json() == {"aborted": 0}
        stopped = await client.post("/abort_request", json={"rid": "mine"})
        assert stopped.json() == {"aborted": 1}
        reply = await asyncio.wait_for(asking, 60)
    assert reply.status_code == 200
    assert reply.json()["output_ids"] == [40, 41]
    meta = reply.json()["meta_info"]
    assert meta["id"] == "mine"
    assert meta["finish_reason"]["type"] == "abort"
    assert meta["finish_reason"]["message"] == "the request was aborted"
    assert meta["completion_tokens"] == 2


async def test_abort_all_ends_every_answer_of_a_batch(
    connect: Connect, backend: FakeBackend
) -> None:
    backend.hold_after = 1
    async with connect() as client:
        asking = asyncio.create_task(client.post("/generate", json={"input_ids": [[40], [41]]}))
        async with asyncio.timeout(60):
            while len(backend.seen) < 2:
                await asyncio.sleep(0)
            stopped = 0
            while stopped < 2:
                stopped = (await client.post("/abort_request", json={"abort_all": True})).json()[
                    "aborted"
                ]
            replies = (await asking).json()
    assert [r["meta_info"]["finish_reason"]["type"] for r in replies] == ["abort", "abort"]


async def test_a_failure_is_an_error_and_not_an_abort(
    connect: Connect, backend: FakeBackend
) -> None:
    backend.fail_first = ApiError(ErrorCode.OVERLOADED, "too many", retry_after_s=2)
    async with connect() as client:
        reply = await client.post("/generate", json={"text": "hello"})
    assert reply.status_code == 429
    assert reply.json()["error"]["message"] == "too many"


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({}, "text", "exactly one of text and input_ids"),
    ({"text": "x", "input_ids": [1]}, "text", "exactly one"),
    ({"text": []}, "text", "empty"),
    ({"text": ""}, "text", "empty"),
    ({"input_ids": []}, "input_ids", "empty"),
    ({"input_ids": [[]]}, "input_ids", "no tokens"),
    ({"input_ids": [-1]}, "input_ids", "token id -1"),
    ({"input_ids": [10**6]}, "input_ids", "token id 1000000"),
    ({"input_ids": ["x"]}, "input_ids.0", "valid integer"),
    ({"input_ids": [1] * CONTEXT}, "input_ids", f"context length is {CONTEXT}"),
    ({"text": ["x"] * 257}, "text", "257 prompts"),
    ({"text": "x", "sampling_params": {"max_new_tokens": -1}},
     "sampling_params.max_new_tokens", "is -1; expected 0 to"),
    ({"text": "x", "sampling_params": {"max_new_tokens": 2, "min_new_tokens": 3}},
     "sampling_params.min_new_tokens", "more than max_tokens, 2"),
    ({"text": "x", "sampling_params": {"min_new_tokens": 64}},
     "sampling_params.min_new_tokens", "min_tokens is 64, more than max_tokens, 63"),
    ({"text": "x", "sampling_params": {"temperature": -1}},
     "sampling_params.temperature", "expected 0 to 100"),
    ({"text": "x", "sampling_params": {"temprature": 1}}, "sampling_params.temprature",
     "did you mean temperature?"),
    ({"text": "x", "sampling_params": [{"top_k": "x"}]}, "sampling_params.0.top_k", "integer"),
    ({"text": "x", "sampling_params": [{}, {}]}, "sampling_params", "2 entries for 1 prompts"),
    ({"text": "x", "sampling_params": {"regex": "a("}}, "sampling_params.regex", "unclosed group"),
    ({"text": "x", "sampling_params": {"json_schema": "[]"}},
     "sampling_params.json_schema", "no JSON object"),
    ({"text": "x", "sampling_params": {"n": 0}}, "sampling_params.n", "greater than or equal"),
    ({"text": ["x"] * 3, "sampling_params": {"n": 128}}, "text", "more than 256 answers"),
    ({"text": "x", "sampling_params": {"seed": 1, "sampling_seed": 2}},
     "sampling_params.sampling_seed", "give one of them"),
    ({"text": "x", "rid": ["a", "b"]}, "rid", "2 entries for 1 prompts"),
    ({"text": "x", "lora_path": "a"}, "lora_path", "not supported"),
    ({"text": "x", "return_logprob": True, "token_ids_logprob": [10**6]},
     "token_ids_logprob", "token id 1000000"),
    ({"text": "x", "return_logprob": True, "token_ids_logprob": [[1], [2]]},
     "token_ids_logprob", "2 entries for 1 prompts"),
    ({"text": "x", "return_logprob": True, "token_ids_logprob": list(range(129))},
     "token_ids_logprob", "expected 0 to 128"),
    ({"text": "x", "return_logprob": True, "logprob_start_len": -2},
     "logprob_start_len", "a position in the prompt"),
    ({"text": "x", "return_logprob": True, "logprob_start_len": 9},
     "logprob_start_len", "the prompt has 1 tokens"),
    ({"text": "x", "return_logprob": True, "top_logprobs_num": 129},
     "top_logprobs_num", "expected 0 to 128"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param", "message"), BAD)
async def test_a_bad_field_is_named_and_the_next_request_works(
    connect: Connect, backend: FakeBackend, body: dict[str, Any], param: str, message: str
) -> None:
    async with connect() as client:
        reply = await client.post("/generate", json=body)
        assert reply.status_code == 400, reply.text
        error = reply.json()["error"]
        assert error["param"] == param, error
        assert message in error["message"], error
        assert not backend.seen
        assert (await client.post("/generate", json={"text": "x"})).status_code == 200
