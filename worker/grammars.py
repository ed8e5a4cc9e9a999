"""Compiles the grammars of requests before the requests reach the engine."""

import asyncio
import logging
from collections.abc import Callable

from baton.core.grammar import Grammar
from baton.core.supervised import OnFailure, ProcessSupervisor, spawn
from baton.text.async_grammar_compiler import AsyncGrammarCompiler
from baton.text.errors import TextError
from baton.text.grammar import CompiledGrammar, GrammarCompiler

log = logging.getLogger(__name__)


class Grammars:
    """Compiles grammars off the engine's thread, where a large one would delay every other request.

    Every method is called on the asyncio thread.
    """

    def __init__(self, compiler: GrammarCompiler | None, owner: ProcessSupervisor) -> None:
        """compiler: the engine's. None: requests that need a grammar are refused."""
        self._compiler = None if compiler is None else AsyncGrammarCompiler(compiler)
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()

    def compile(
        self,
        grammar: Grammar | None,
        then: Callable[[CompiledGrammar | None], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Compile a grammar and call `then` with it, at once where there is nothing to compile."""
        if grammar is None or self._compiler is None:
            then(None)
            return
        compiler = self._compiler
        # END: whatever is wrong with a grammar, its request is told. If a callback fails, the
        # request would wait for ever.
        task = spawn(
            lambda: _compile(compiler, grammar, then, failed),
            self._owner,
            OnFailure.END,
            "grammar of a request",
            may_return=True,
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel what is being compiled, without calling back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._compiler is not None:
            self._compiler.close()


async def _compile(
    compiler: AsyncGrammarCompiler,
    grammar: Grammar,
    then: Callable[[CompiledGrammar | None], None],
    failed: Callable[[Exception], None],
) -> None:
    try:
        compiled = await compiler.compile(grammar)
    except TextError as error:
        failed(error)
    except Exception as error:  # the compiler's library may raise anything: this request alone ends
        log.exception("a grammar could not be compiled")
        failed(error)
    else:
        then(compiled)
