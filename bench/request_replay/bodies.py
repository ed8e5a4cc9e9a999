"""The bodies of `/v1/completions` that ask again what a dump recorded."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from baton.bench.request_replay.dumps import Dumped
from baton.core.grammar import GrammarKind

FIRST_ID = 3
"""The first token id of synthetic prompts: those below are often special."""
_SAME_NAME = frozenset({
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "max_tokens",
    "logprobs",
})  # fmt: skip


class Bodies:
    """Makes the bodies of one replay. Each replay has a seed of its own, so that nothing is cached
    from another one."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        """vocab_size: synthetic prompts are drawn from ids below it."""
        self._seed = seed
        self._vocab_size = vocab_size
        self._drawn: dict[tuple[int, int], list[int]] = {}  # by file and block

    def body(self, dumped: Dumped) -> dict[str, Any]:
        """Return the request as it came, or where it is redacted, one that is as much work: a
        synthetic prompt of the same blocks, and an answer of as many tokens.
        """
        record = dumped.record
        values = dict(record.sampling)
        if record.prompt_ids is None:
            prompt = self._prompt(dumped)
            tokens = max(record.output_tokens, 1)
            values |= {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
        else:
            prompt = list(record.prompt_ids)
        body: dict[str, Any] = {n: v for n, v in values.items() if n in _SAME_NAME}
        body |= {"prompt": prompt, "priority": record.priority, "return_token_ids": True}
        if values.get("include_stop"):
            body["include_stop_str_in_output"] = True
        if values.get("prompt_logprobs_start") == 0:
            body |= {"echo": True, "logprobs": values.get("prompt_logprobs", 0)}
        if record.routed_dp_rank is not None:
            body["routed_dp_rank"] = record.routed_dp_rank
        if record.salt or record.prompt_ids is not None:
            body["cache_salt"] = f"replay {self._seed} {dumped.file} {record.salt}"
        return body | _grammar(values.get("grammar"))

    def _prompt(self, dumped: Dumped) -> list[int]:
        ids: list[int] = []
        for block in dumped.record.blocks:
            ids += self._block(dumped.file, block, dumped.header.block)
        return ids[: dumped.record.prompt_tokens]

    def _block(self, file: int, block: int, tokens: int) -> list[int]:
        drawn = self._drawn.get((file, block))
        if drawn is None:
            rng = np.random.default_rng((self._seed, file, block))
            drawn = rng.integers(FIRST_ID, self._vocab_size, tokens).tolist()
            self._drawn[file, block] = drawn
        return drawn


def _grammar(grammar: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the fields of a grammar; none for a kind that the endpoint does not take."""
    if grammar is None:
        return {}
    kind, text = grammar["kind"], grammar["text"]
    if kind == GrammarKind.JSON_SCHEMA:
        schema = {"name": "replayed", "schema": json.loads(text)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {kind: text} if kind in (GrammarKind.REGEX, GrammarKind.EBNF) else {}
