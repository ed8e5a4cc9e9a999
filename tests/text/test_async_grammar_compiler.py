"""Grammars compiled beside an event loop, in a bounded time."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
import toy_tokenizer
from kit.polling import until

from baton.core.grammar import Grammar, GrammarKind
from baton.text.async_grammar_compiler import AsyncGrammarCompiler
from baton.text.errors import GrammarBusyError, GrammarError
from baton.text.grammar import CompiledGrammar, GrammarCompiler
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer

DEADLINE_S = 20.0
GOOD = Grammar(GrammarKind.REGEX, "[a-z]{3}")
BAD = Grammar(GrammarKind.REGEX, "[a-")


class Slow(GrammarCompiler):
    """Compiles when it may."""

    def __init__(self) -> None:
        tokenizer = Tokenizer(toy_tokenizer.byte_level(), SpecialTokens())
        super().__init__(tokenizer, tokenizer.vocab_size, {1})
        self.may = threading.Event()
        self.begun = threading.Event()
        self.threads: list[str] = []

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        self.threads.append(threading.current_thread().name)
        self.begun.set()
        assert self.may.wait(DEADLINE_S)
        return super()._compile(grammar)


@pytest.fixture
def compiler() -> Iterator[Slow]:
    compiler = Slow()
    yield compiler
    compiler.may.set()


async def test_the_loop_goes_on_meanwhile_and_all_who_ask_share_the_work(compiler: Slow) -> None:
    pool = AsyncGrammarCompiler(compiler)
    asking = [asyncio.create_task(pool.compile(GOOD)) for _ in range(5)]
    await asyncio.to_thread(compiler.begun.wait, DEADLINE_S)
    assert not any(task.done() for task in asking)
    compiler.may.set()
    async with asyncio.timeout(DEADLINE_S):
        compiled = await asyncio.gather(*asking)
    assert len(set(map(id, compiled))) == 1 == len(compiler.threads)
    assert threading.current_thread().name not in compiler.threads
    assert await pool.compile(GOOD) is compiled[0]
    pool.close()


async def test_what_is_wrong_is_told_each_time_and_found_out_once(compiler: Slow) -> None:
    compiler.may.set()
    pool = AsyncGrammarCompiler(compiler)
    for _ in range(3):
        with pytest.raises(GrammarError, match="unclosed"):
            await pool.compile(BAD)
    assert len(compiler.threads) == 1
    assert (await pool.compile(GOOD)).start().allowed()
    pool.close()


async def test_past_the_deadline_it_is_too_complex_or_its_turn_has_not_come(
    compiler: Slow,
) -> None:
    pool = AsyncGrammarCompiler(compiler, deadline_s=0.05)
    first = asyncio.create_task(pool.compile(GOOD))
    await asyncio.to_thread(compiler.begun.wait, DEADLINE_S)
    with pytest.raises(GrammarBusyError, match="send it again later"):
        await pool.compile(BAD)
    with pytest.raises(GrammarError, match=r"takes longer than 0.05 s to compile"):
        await first
    compiler.may.set()
    await until(lambda: compiler.kept(GOOD) is not None)
    assert await pool.compile(GOOD)
    pool.close()
