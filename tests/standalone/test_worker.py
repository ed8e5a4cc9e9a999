"""One worker that answers by itself: SGLang's endpoints over a real engine and a tiny model."""

import asyncio
import json
import os
import random
import signal
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from deploy.tiny_worker import (
    DEADLINE_S,
    GRID,
    VOCAB,
    Client,
    findings,
    make_worker,
    prompt,
    served,
)
from kit.polling import until_answered
from prometheus_client.parser import text_string_to_metric_families

from baton.api.backend import GenerateRequest, TokenEvent
from baton.core.errors import ApiError
from baton.core.grammar import Grammar, GrammarKind
from baton.core.role import Role
from baton.core.sampling_params import SamplingParams
from baton.proto import common_pb2, inference_pb2, inference_pb2_grpc
from baton.text.grammar import CompiledGrammar, GrammarCompiler
from baton.text.tokenizer import Tokenizer


async def test_a_second_request_hits_until_the_cache_is_flushed(
    tiny: Path, rng: random.Random
) -> None:
    ids = prompt(rng, 5 * GRID + 3)
    async with served(tiny) as client:
        cold = await client.generate(ids)
        warm = await client.generate(ids)
        longer = await client.generate(ids + prompt(rng, 7))
        assert cold["meta_info"]["cached_tokens"] == 0
        assert warm["meta_info"]["cached_tokens"] == 5 * GRID
        assert longer["meta_info"]["cached_tokens"] == 5 * GRID
        assert warm["output_ids"] == cold["output_ids"]
        body = {"prompt": ids, "max_tokens": 1}
        usage = (await client.http.post("/v1/completions", json=body)).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 5 * GRID
        assert (await client.http.post("/flush_cache", params={"timeout": 5})).status_code == 200
        state = await client.state()
        assert state["slots"]["cache"] == state["pages"]["cache"] == 0
        assert (await client.generate(ids))["meta_info"]["cached_tokens"] == 0


@pytest.mark.parametrize("answers", [2, 4])
async def test_a_prompt_of_several_answers_counts_once_and_hits_what_was_there_before(
    tiny: Path, rng: random.Random, answers: int
) -> None:
    ids = prompt(rng, 5 * GRID + 3)
    body = {"prompt": ids, "max_tokens": 3, "n": answers, "ignore_eos": True}
    async with served(tiny) as client:
        for hit in (0, 5 * GRID):
            usage = (await client.http.post("/v1/completions", json=body)).json()["usage"]
            assert usage["prompt_tokens"] == len(ids)
            assert usage["completion_tokens"] == 3 * answers
            assert usage["prompt_tokens_details"]["cached_tokens"] == hit


async def test_a_request_hits_what_its_own_salt_has_cached(tiny: Path, rng: random.Random) -> None:
    ids = prompt(rng, 4 * GRID + 3)
    async with served(tiny) as client:
        salts: tuple[dict[str, Any], ...] = (
            {"extra_key": "ada"},
            {"extra_key": "bob"},
            {},
            {"extra_key": "ada"},
            {},
        )
        answers = [await client.generate(ids, **salt) for salt in salts]
        hits = [answer["meta_info"]["cached_tokens"] for answer in answers]
        assert hits == [0, 0, 0, 4 * GRID, 4 * GRID]
        assert all(answer["output_ids"] == answers[0]["output_ids"] for answer in answers)


async def test_a_request_past_its_timeout_gives_its_memory_back(
    tiny: Path, rng: random.Random
) -> None:
    # More than any machine does in a second.
    body = {"prompt": prompt(rng, 9), "max_tokens": 4000, "ignore_eos": True, "n": 32}
    async with served(tiny) as client:
        reply = await client.http.post("/v1/completions", json=body | {"timeout": 0.4})
        assert reply.status_code == 504
        assert "within its timeout of 0.4 s" in reply.json()["error"]["message"]
        await client.running(0)
        streamed = body | {"timeout": 1, "stream": True, "return_token_ids": True}
        reply = await client.http.post("/v1/completions", json=streamed)
        *parts, failed, done = (line[6:] for line in reply.text.splitlines() if line)
        assert reply.status_code == 200 and done == "[DONE]"
        assert json.loads(failed)["error"]["code"] == "deadline_exceeded"
        assert sum(len(json.loads(part)["choices"][0]["token_ids"]) for part in parts)
        await client.running(0)
        assert (await client.state())["waiting"] == 0


async def test_without_prefix_caching_nothing_hits(tiny: Path, rng: random.Random) -> None:
    ids = prompt(rng, 4 * GRID)
    async with served(tiny, prefix_caching=False) as client:
        assert (await client.http.get("/get_server_info")).json()["disable_radix_cache"] is True
        for _ in range(2):
            assert (await client.generate(ids))["meta_info"]["cached_tokens"] == 0


async def test_scores_of_a_prompt_are_those_of_its_tokens_when_they_were_written(
    tiny: Path, rng: random.Random
) -> None:
    """Output logprobs, made on a prefix hit, against a cold recomputation: SGLang's KL check."""
    ids = prompt(rng, 4 * GRID + 1)
    async with served(tiny) as client:
        await client.generate(ids)
        answer = await client.generate(ids, 12, return_logprob=True, top_logprobs_num=3)
        assert answer["meta_info"]["cached_tokens"] == 4 * GRID
        written = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
        await client.http.post("/flush_cache")
        whole = ids + answer["output_ids"]
        scoring = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 3}
        scored = await client.generate(whole, 0, **scoring)
    meta = scored["meta_info"]
    assert meta["cached_tokens"] == 0
    assert (scored["output_ids"], meta["completion_tokens"]) == ([], 0)
    assert [entry[1] for entry in meta["input_token_logprobs"]] == whole
    assert meta["input_token_logprobs"][0][0] is None
    read = [entry[0] for entry in meta["input_token_logprobs"][len(ids) :]]
    assert read == pytest.approx(written, abs=1e-4)
    assert len(meta["input_top_logprobs"]) == len(whole)
    tops = answer["meta_info"]["output_top_logprobs"]
    assert all(len(top) == 3 for top in tops)
    assert [top[0][1] for top in tops] == answer["output_ids"], "greedy takes the best"


async def test_scored_positions_are_computed_and_those_before_them_may_hit(
    tiny: Path, rng: random.Random
) -> None:
    ids = prompt(rng, 6 * GRID)
    async with served(tiny) as client:
        await client.generate(ids)
        hits = {}
        for start in (0, 1, 4 * GRID + 2, 6 * GRID):
            reply = await client.generate(ids, 1, return_logprob=True, logprob_start_len=start)
            assert len(reply["meta_info"]["input_token_logprobs"]) == len(ids) - start
            hits[start] = reply["meta_info"]["cached_tokens"]
    assert hits[0] == hits[1] == 0
    assert hits[4 * GRID + 2] in (3 * GRID, 4 * GRID)
    assert hits[6 * GRID] in (4 * GRID, 5 * GRID)


async def test_a_flush_waits_for_what_runs_and_says_when_it_did_not_happen(
    tiny: Path, rng: random.Random
) -> None:
    ids = prompt(rng, 3 * GRID + 1)
    async with served(tiny) as client:
        await client.generate(ids)
        running = asyncio.create_task(client.generate(prompt(rng, 5), 3000, rid="long"))
        await client.running(1)
        busy = await client.http.post("/flush_cache", params={"timeout": 0})
        assert busy.status_code == 504
        assert "still at work" in busy.json()["error"]["message"]
        assert (await client.generate(ids))["meta_info"]["cached_tokens"] == 3 * GRID
        waiting = asyncio.create_task(client.http.post("/flush_cache", params={"timeout": 20}))
        await client.http.post("/abort_request", json={"rid": "long"})
        assert (await running)["meta_info"]["finish_reason"]["type"] == "abort"
        assert (await waiting).status_code == 200
        assert (await client.generate(ids))["meta_info"]["cached_tokens"] == 0


async def test_an_abort_frees_what_the_request_had(tiny: Path, rng: random.Random) -> None:
    async with served(tiny) as client:
        asking = [
            asyncio.create_task(client.generate(prompt(rng, 5), 3000, rid=name)) for name in "abc"
        ]
        await client.running(3)
        reply = await client.http.post("/abort_request", json={"rid": "b"})
        assert reply.json() == {"aborted": 1}
        stopped = await asking[1]
        assert stopped["meta_info"]["id"] == "b"
        assert stopped["meta_info"]["completion_tokens"] == len(stopped["output_ids"]) < 3000
        await client.running(2)
        reply = await client.http.post("/abort_request", json={"abort_all": True})
        assert reply.json() == {"aborted": 2}
        for task in (asking[0], asking[2]):
            assert (await task)["meta_info"]["finish_reason"]["type"] == "abort"
        await client.running(0)
        assert (await client.state())["slots"]["live"] == 0


async def test_a_client_that_leaves_takes_its_request_along(tiny: Path, rng: random.Random) -> None:
    params = {"max_new_tokens": 3000, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": prompt(rng, 5), "sampling_params": params, "stream": True}
    async with served(tiny) as client:
        async with client.http.stream("POST", "/generate", json=body) as reply:
            first = await anext(reply.aiter_lines())
            assert json.loads(first.removeprefix("data: "))["output_ids"], "it has begun"
            await client.running(1)
        await client.running(0)
        assert (await client.state())["counters"]["steps"] < 2500, "it ran to its end"


async def test_closing_the_backends_generator_is_enough_to_cancel(
    tiny: Path, rng: random.Random
) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=3000, ignore_eos=True)
    request = GenerateRequest("0" * 32, tuple(prompt(rng, 5)), sampling)
    async with make_worker(tiny) as worker, asyncio.timeout(DEADLINE_S):
        async with aclosing(worker.backend.generate(request)) as events:
            first = await anext(events)
            assert isinstance(first, TokenEvent) and first.token_ids, "it has begun"
            assert worker.backend.busy == 1

        async def idle() -> dict[str, Any] | None:
            info: Any = await worker.backend.server_info()
            found: dict[str, Any] = info["internal_states"][0]
            return None if found["running"] else found

        now = await until_answered(idle)
        assert now["counters"]["steps"] < 2500, "it ran to its end"
        assert worker.backend.busy == 0


async def test_a_request_that_is_cancelled_before_its_grammar_is_compiled_never_runs(
    tiny: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = SamplingParams(max_tokens=3000, grammar=Grammar(GrammarKind.REGEX, "[a-z]{2000}"))
    request = GenerateRequest("0" * 32, tuple(prompt(rng, 5)), sampling)
    may, begun = threading.Event(), threading.Event()
    compile_it = GrammarCompiler._compile

    def compile_when_it_may(self: GrammarCompiler, grammar: Grammar) -> CompiledGrammar:
        begun.set()
        assert may.wait(DEADLINE_S)
        return compile_it(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "_compile", compile_when_it_may)
    async with make_worker(tiny) as worker, asyncio.timeout(DEADLINE_S):

        async def ask() -> object:
            return await anext(worker.backend.generate(request))

        asked = asyncio.create_task(ask())
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        await worker.backend.cancel(request.request_id)
        with pytest.raises(ApiError, match="the request was cancelled"):
            await asked
        may.set()
        async with aclosing(worker.backend.generate(request)) as events:  # the name is free again
            assert isinstance(await anext(events), TokenEvent)
        assert not await findings(worker)


async def test_several_answers_share_their_prompt_and_differ_by_seed(
    tiny: Path, rng: random.Random
) -> None:
    ids = prompt(rng, 3 * GRID + 1)
    params = {"n": 3, "temperature": 1.0, "seed": rng.randrange(2**63)}
    async with served(tiny) as client:
        first = await client.generate(ids, 8, params=params)
        again = await client.generate(ids, 8, params=params)
    texts = [tuple(reply["output_ids"]) for reply in first]
    assert len(set(texts)) == 3
    assert [tuple(reply["output_ids"]) for reply in again] == texts


async def test_the_token_that_ends_an_answer_is_not_shown(tiny: Path, rng: random.Random) -> None:
    tokenizer = Tokenizer.from_folder(tiny)
    async with served(tiny) as client:
        before, last = "", 0
        while not before or "\ufffd" in before + tokenizer.decode([last]):  # halves of letters
            ids = prompt(rng, 5)
            first, last = (await client.generate(ids, 2))["output_ids"]
            before = "" if first == last else tokenizer.decode([first])
        body = {"prompt": ids, "temperature": 0, "ignore_eos": True, "stop_token_ids": [last]}
        for include, text in ((False, before), (True, tokenizer.decode([first, last]))):
            body["include_stop_str_in_output"] = include
            reply = (await client.http.post("/v1/completions", json=body)).json()["choices"][0]
            assert (reply["text"], reply["finish_reason"]) == (text, "stop")
            streamed = await client.http.post("/v1/completions", json=body | {"stream": True})
            events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
            assert "".join(json.loads(e)["choices"][0]["text"] for e in events) == text


async def test_bad_input_is_refused_and_the_worker_goes_on(tiny: Path, rng: random.Random) -> None:
    async with served(tiny) as client:
        for body, code in (
            ({"input_ids": [VOCAB]}, 400),
            ({"input_ids": [5] * 5000}, 400),
            ({"text": "x", "sampling_params": {"stop": ["a"] * 99}}, 400),
            ({"nothing": 1}, 400),
        ):
            assert (await client.http.post("/generate", json=body)).status_code == code
        assert len((await client.generate(prompt(rng, 5)))["output_ids"]) == 4


async def test_health_and_metrics_follow_the_engine(tiny: Path, rng: random.Random) -> None:
    ids = prompt(rng, 3 * GRID + 1)
    async with served(tiny) as client:
        assert (await client.http.get("/health")).status_code == 200
        assert (await client.http.get("/health_generate")).status_code == 200
        await client.generate(ids)
        await client.generate(ids)
        counters = (await client.state())["counters"]

        async def counted() -> dict[str, float] | None:
            now = await _counters(client)
            return now if now.get("steps") == counters["steps"] else None

        found = await until_answered(counted)
    assert found["state_hit_tokens"] == 3 * GRID
    assert found["prompt_tokens"] == counters["prompt_tokens"] == 1 + 2 * len(ids)
    assert found["snapshots_written"] == counters["snapshots_written"] > 0
    assert found["snapshots_donated"] > 0
    assert found["steps"] > 0
    assert found["schedule_seconds"] > 0


async def _counters(client: Client) -> dict[str, float]:
    """The engine's, by the names of the fields of `Counters`."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families((await client.http.get("/metrics")).text):
        for sample in family.samples:
            if sample.name.startswith("baton_engine_") and sample.name.endswith("_total"):
                found[family.name.removeprefix("baton_engine_")] = sample.value
    return found


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_a_worker_of_one_role_answers_its_own_clients_too(
    tiny: Path, rng: random.Random, role: Role
) -> None:
    ids = prompt(rng, 40)
    async with served(tiny) as both:
        expected = (await both.generate(ids, 9))["output_ids"]
    async with served(tiny, role) as client:
        assert (await client.generate(ids, 9))["output_ids"] == expected
        assert (await client.state())["role"] == role.value
        async with grpc.aio.insecure_channel(client.grpc_address) as channel:
            call = inference_pb2_grpc.InferenceStub(channel).Generate(
                inference_pb2.GenerateRequest(
                    token_ids=inference_pb2.TokenIds(ids=ids),
                    sampling=common_pb2.SamplingParams(
                        temperature=0, max_tokens=9, ignore_eos=True
                    ),
                ),
                timeout=DEADLINE_S,
            )
            (reply,) = [reply async for reply in call]
    assert list(reply.token_ids) == expected


async def test_what_is_under_way_at_the_stop_fails_with_a_reason(
    tiny: Path, rng: random.Random
) -> None:
    worker = make_worker(tiny)
    async with httpx.AsyncClient(timeout=DEADLINE_S) as http:
        async with worker:
            http.base_url = httpx.URL(f"http://{worker.addresses.http}")
            client = Client(http, worker.addresses.grpc)
            body = {
                "input_ids": prompt(rng, 5),
                "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True},
            }
            asking = asyncio.create_task(http.post("/generate", json=body))
            await client.running(1)
        reply = await asking
    assert reply.status_code == 503
    assert reply.json()["error"]["message"] == "the worker is stopping"


async def test_a_lost_rank_ends_its_streams_with_the_reason(tiny: Path, rng: random.Random) -> None:
    worker = make_worker(tiny, tp=2)
    followers = worker._engine.followers
    assert followers is not None
    async with worker:
        url = f"http://{worker.addresses.http}"
        body = {"prompt": prompt(rng, 9), "max_tokens": 3000, "ignore_eos": True, "stream": True}
        async with (
            httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http,
            http.stream("POST", "/v1/completions", json=body) as reply,
        ):
            lines = reply.aiter_lines()
            assert "text" in await anext(lines)
            os.kill(followers.processes[0], signal.SIGKILL)
            said = [line async for line in lines if "error" in line]
        assert "rank 1 is lost: process" in said[0]
        assert "was killed by signal 9" in said[0]
