"""A grammar is compiled before its request comes to an engine: nobody else waits for it."""

import asyncio
import random
import re
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from engine.engines import greedy, random_prompt
from engine.hash_model import HashModel, expected_tokens
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models
from worker.cluster import DEADLINE_S, TestWorker, decode_worker, prefill_worker, running, session

from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams
from baton.proto import common_pb2
from baton.text.grammar import CompiledGrammar
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = Grammar(GrammarKind.REGEX, "[a-c]{4}[x-z]{4}")


def tokenizer() -> Tokenizer:
    """A letter a token; the model's other tokens have no text."""
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(LETTERS)}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, SpecialTokens())


class Held:
    """Holds up what a worker compiles, and remembers on which threads that is."""

    def __init__(self, worker: TestWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may, self.begun = threading.Event(), threading.Event()
        self.threads: list[str] = []
        compiler = worker.engine.grammars
        assert compiler is not None
        really = compiler._compile

        def compile_when_it_may(grammar: Grammar) -> CompiledGrammar:
            self.threads.append(threading.current_thread().name)
            self.begun.set()
            assert self.may.wait(DEADLINE_S)
            return really(grammar)

        monkeypatch.setattr(compiler, "_compile", compile_when_it_may)

    async def compiling(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, DEADLINE_S)


@pytest.fixture(params=["prefill", "decode"])
def held(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[TestWorker, TestWorker, Held]]:
    """A prefill worker, a decode rank, and one of them cannot compile before it may."""
    made = {
        "prefill": prefill_worker(tokenizer=tokenizer()),
        "decode": decode_worker(tokenizer=tokenizer()),
    }
    holding = Held(made[request.param], monkeypatch)
    yield made["prefill"], made["decode"], holding
    holding.may.set()


def constrained(rng: random.Random) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=rng.getrandbits(64), max_tokens=30, grammar=WORDS)


async def test_others_are_answered_while_a_grammar_is_compiled(
    held: tuple[TestWorker, TestWorker, Held], seeded: random.Random
) -> None:
    prefill, decode, holding = held
    async with running(prefill, decode), session(decode) as router:
        _, waits = await router.start((5, 6), constrained(seeded), [prefill])
        await holding.compiling()
        prompts = [random_prompt(seeded) for _ in range(3)]
        started = [await router.start(prompt, greedy(6), [prefill]) for prompt in prompts]
        for prompt, (_, answer) in zip(prompts, started, strict=True):
            await answer.end()
            assert answer.token_ids == expected_tokens(HashModel(), prompt, 6)
        assert not waits.token_ids and waits.finished is None
        holding.may.set()
        assert (await waits.end()).reason == common_pb2.STOP
        assert re.fullmatch(WORDS.text, tokenizer().decode(waits.token_ids))
        assert holding.threads and "engine" not in holding.threads
        await decode.clean()
        await prefill.clean()


async def test_one_that_is_cancelled_meanwhile_is_over_at_once(
    held: tuple[TestWorker, TestWorker, Held], seeded: random.Random
) -> None:
    prefill, decode, holding = held
    async with running(prefill, decode), session(decode) as router:
        name, answer = await router.start((5, 6), constrained(seeded), [prefill])
        await holding.compiling()
        await router.cancel(name)
        assert (await answer.end()).reason == common_pb2.ABORT
        holding.may.set()
        _, after = await router.start((5, 6), constrained(seeded), [prefill])
        assert (await after.end()).reason == common_pb2.STOP, "it is compiled, for the next one"
        assert len(holding.threads) == 1
        await decode.clean()
        await prefill.clean()


@pytest.mark.parametrize(("regex", "why"), [("[a-", "unclosed"), ("[0-9]", "no token of this")])
async def test_one_that_no_answer_can_fit_is_refused_with_the_reason(regex: str, why: str) -> None:
    prefill, decode = prefill_worker(tokenizer=tokenizer()), decode_worker(tokenizer=tokenizer())
    wrong = SamplingParams(grammar=Grammar(GrammarKind.REGEX, regex))
    async with running(prefill, decode), session(decode) as router:
        _, answer = await router.start((5, 6), wrong, [prefill])
        error = (await answer.end()).error
        assert (error.code, error.retryable) == (common_pb2.INVALID_REQUEST, False)
        assert why in error.message
        await decode.clean()
        await prefill.clean()


async def test_an_answer_that_cannot_go_on_fails_and_never_passes_for_whole(
    seeded: random.Random,
) -> None:
    """The model has no digits, which shows when the letters are over."""
    prefill, decode = prefill_worker(tokenizer=tokenizer()), decode_worker(tokenizer=tokenizer())
    letters = Grammar(GrammarKind.REGEX, "[a-c]{3}[0-9]")
    sampling = SamplingParams(seed=seeded.getrandbits(64), max_tokens=30, grammar=letters)
    async with running(prefill, decode), session(decode) as router:
        _, answer = await router.start((5, 6), sampling, [prefill])
        finished = await answer.end()
        assert finished.reason == common_pb2.ERROR
        assert "no token of this model" in finished.error.message
        assert re.fullmatch("[a-c]{3}", tokenizer().decode(answer.token_ids))
        short = replace(sampling, max_tokens=3)
        _, answer = await router.start((5, 6), short, [prefill])
        assert (await answer.end()).reason == common_pb2.LENGTH, "it need not go on"
        await decode.clean()
        await prefill.clean()
