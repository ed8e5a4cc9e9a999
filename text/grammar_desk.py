"""Compiling grammars off the event loop."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from baton.text.errors import GrammarBusyError, GrammarError
from baton.text.grammar import CompiledGrammar, Grammar, GrammarCompiler

DEADLINE_S = 10.0
"""llguidance's own limits end the worst that was found within a second."""


class GrammarDesk:
    """One thread: where many large ones come, they wait for each other and for nobody else."""

    def __init__(self, compiler: GrammarCompiler, deadline_s: float = DEADLINE_S) -> None:
        self._compiler = compiler
        self._deadline_s = deadline_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    async def compile(self, grammar: Grammar) -> CompiledGrammar:
        """At once where it was compiled before. Raises GrammarError, also for one that takes
        longer than the deadline, and GrammarBusyError where others have taken all of that."""
        found = self._compiler.kept(grammar)
        if found is not None:
            return found
        job = self._thread.submit(self._compiler.compile, grammar)
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
        """What is being compiled is compiled to its end, for nobody."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _ignore(compiling: "asyncio.Future[CompiledGrammar]") -> None:
    """Nobody waits for it any more: what it raises is no news."""
    if not compiling.cancelled():
        compiling.exception()
