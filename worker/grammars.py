"""Compiling what answers must look like, before their requests come to the engine."""

import asyncio
from collections.abc import Callable

from baton.text.errors import TextError
from baton.text.grammar import CompiledGrammar, Grammar, GrammarCompiler
from baton.text.grammar_desk import GrammarDesk


class Grammars:
    """Made on the asyncio thread; every method is called there. A large grammar takes a while, and
    on the engine's thread every other request would wait for it."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        """compiler: the engine's. None: it has none, and says so of each request that needs one."""
        self._desk = None if compiler is None else GrammarDesk(compiler)
        self._tasks: set[asyncio.Task[None]] = set()

    def compile(
        self,
        grammar: Grammar | None,
        then: Callable[[CompiledGrammar | None], None],
        failed: Callable[[TextError], None],
    ) -> None:
        """`then` is called at once where there is nothing to compile."""
        if grammar is None or self._desk is None:
            then(None)
            return
        task = asyncio.ensure_future(_compile(self._desk, grammar, then, failed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Nobody hears of what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._desk is not None:
            self._desk.close()


async def _compile(
    desk: GrammarDesk,
    grammar: Grammar,
    then: Callable[[CompiledGrammar | None], None],
    failed: Callable[[TextError], None],
) -> None:
    try:
        compiled = await desk.compile(grammar)
    except TextError as error:
        failed(error)
    else:
        then(compiled)
