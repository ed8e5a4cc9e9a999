"""Compiling grammars off the event loop."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from baton.core.grammar import Grammar
from baton.core.supervised import submit
from baton.text.errors import GrammarBusyError, GrammarError
from baton.text.grammar import CompiledGrammar, GrammarCompiler

DEADLINE_S = 10.0
"""The slowest grammar that was found ends within a second, by llguidance's own limits."""


class AsyncGrammarCompiler:
    """A grammar compiler on a thread of its own: large grammars wait only for each other."""

    def __init__(self, compiler: GrammarCompiler, deadline_s: float = DEADLINE_S) -> None:
        self._compiler = compiler
        self._deadline_s = deadline_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    async def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Return the compiled grammar, at once if it was compiled before.

        Raises GrammarError if it is wrong or takes longer than the deadline, and GrammarBusyError
        if other grammars took all of the deadline.
        """
        found = self._compiler.kept(grammar)
        if found is not None:
            return found
        job = submit(self._thread, self._compiler.compile, grammar)
        compiling = asyncio.wrap_future(job)
        await asyncio.wait([compiling], timeout=self._deadline_s)
        if compiling.done():
            return compiling.result()
        compiling.add_done_callback(_ignore)
        if job.cancel():
            raise GrammarBusyError(
                f"other grammars have been compiled for {self._deadline_s:g} s; send it again later"
            )
        raise GrammarError(
            f"the {grammar.kind} takes longer than {self._deadline_s:g} s to compile; make it "
            "simpler: fewer alternatives, optional properties and allOf"
        )

    def close(self) -> None:
        """Stop taking grammars. One that is being compiled is finished and dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _ignore(compiling: "asyncio.Future[CompiledGrammar]") -> None:
    """Drop the result of a compilation that no request waits for, with its exception."""
    if not compiling.cancelled():
        compiling.exception()
