"""llama.cpp behind a pipe. A program of its own, for an interpreter that has llama_cpp and nothing
of ours.

    python llama_cpp_child.py GGUF THREADS

Each line on standard input is {"prompts": [[id, ...], ...], "steps": n}; each is answered by a line
{"prefill_s": seconds, "step_s": [seconds, ...]}: the prompts at once, then n greedy steps of them.
"""

import ctypes
import importlib
import json
import sys
import time
from typing import Any

_lib: Any = importlib.import_module("llama_cpp")
_TOKENS = 2048  # of one call


@_lib.llama_log_callback  # type: ignore[untyped-decorator]
def _quiet(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Drop llama.cpp's messages: it prints a page for each model."""


class Session:
    """A context for `rows` sequences of up to `tokens` each."""

    def __init__(self, model: Any, threads: int, rows: int, tokens: int) -> None:
        params = _lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = rows * tokens, rows
        params.n_batch = params.n_ubatch = _TOKENS
        params.n_threads = params.n_threads_batch = threads
        self._context = _lib.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"no context for {rows} sequences of {tokens} tokens")
        self._batch = _lib.llama_batch_init(_TOKENS, 0, 1)
        self._vocab = _lib.llama_vocab_n_tokens(_lib.llama_model_get_vocab(model))

    def prefill(self, prompts: list[list[int]]) -> list[int]:
        """Return the next token of each prompt."""
        tokens: list[int] = []
        for first in range(0, len(prompts), self._at_once(prompts)):
            some = prompts[first : first + self._at_once(prompts)]
            entries = [
                (token, position, first + row, position == len(prompt) - 1)
                for row, prompt in enumerate(some)
                for position, token in enumerate(prompt)
            ]
            tokens += self._decode(entries)
        return tokens

    def step(self, tokens: list[int], position: int) -> list[int]:
        return self._decode([(token, position, row, True) for row, token in enumerate(tokens)])

    def close(self) -> None:
        _lib.llama_batch_free(self._batch)
        _lib.llama_free(self._context)

    def _at_once(self, prompts: list[list[int]]) -> int:
        return max(1, _TOKENS // len(prompts[0]))

    def _decode(self, entries: list[tuple[int, int, int, bool]]) -> list[int]:
        """Decode entries of token, position, row, and whether the next token is wanted."""
        if len(entries) > _TOKENS:
            raise RuntimeError(f"prompts of at most {_TOKENS} tokens; got {len(entries)}")
        batch = self._batch
        batch.n_tokens = len(entries)
        wanted = []
        for place, (token, position, row, last) in enumerate(entries):
            batch.token[place], batch.pos[place], batch.logits[place] = token, position, last
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, row
            if last:
                wanted.append(place)
        status = _lib.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        found = []
        for place in wanted:
            logits = _lib.llama_get_logits_ith(self._context, place)
            # llama.cpp's own greedy sampler would make the same pass over the vocabulary.
            row = _numpy.ctypeslib.as_array(logits, shape=(self._vocab,))
            found.append(int(row.argmax()))
        return found


_numpy: Any = importlib.import_module("numpy")


def _answer(model: Any, threads: int, prompts: list[list[int]], steps: int) -> dict[str, Any]:
    length = len(prompts[0])
    session = Session(model, threads, len(prompts), length + steps + 1)
    began = time.perf_counter()
    tokens = session.prefill(prompts)
    prefill = time.perf_counter() - began
    seconds = []
    for step in range(steps):
        began = time.perf_counter()
        tokens = session.step(tokens, length + step)
        seconds.append(time.perf_counter() - began)
    session.close()
    return {"prefill_s": prefill, "step_s": seconds}


def main(path: str, threads: str) -> None:
    _lib.llama_log_set(_quiet, ctypes.c_void_p(0))
    _lib.llama_backend_init()
    model = _lib.llama_model_load_from_file(path.encode(), _lib.llama_model_default_params())
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {path}")
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(_answer(model, int(threads), **asked)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
