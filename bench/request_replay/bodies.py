"""The bodies of `/v1/completions` that ask again what a dump recorded."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from baton.api.openai.completion_schema import CompletionBody
from baton.api.schema import OTHER_NAMES, SamplingFields
from baton.bench.request_replay.dumps import Dumped
from baton.core.grammar import GrammarKind
from baton.core.sampling_params import SamplingParams

FIRST_ID = 3
"""The first token id of synthetic prompts: those below are often special."""
_NAMES = {each.name: OTHER_NAMES.get(each.name, each.name) for each in fields(SamplingParams)}
"""The names of parameters in a body, by those in SamplingParams."""
_SCORES = frozenset({"prompt_logprobs_start", "prompt_logprobs"})
"""Parameters that a stream asks for by `echo`."""
_SENT = frozenset(name for name in _NAMES if _NAMES[name] in CompletionBody.model_fields) - _SCORES
_DEFAULTS = {
    each.name: each.default
    for each in fields(SamplingParams)
    if each.name in SamplingFields.model_fields and isinstance(each.default, int | float)
}
"""Defaults that a dump leaves out, and in whose place a server may take the model's own."""


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
        sent = {name: value for name, value in (_DEFAULTS | values).items() if name in _SENT}
        body: dict[str, Any] = {_NAMES[name]: value for name, value in sent.items()}
        body |= {"prompt": prompt, "priority": record.priority, "return_token_ids": True}
        if "logit_bias" in body:
            body["logit_bias"] = {str(token): bias for token, bias in body["logit_bias"]}
        if values.get("prompt_logprobs_start") == 0:
            body |= {"echo": True, "logprobs": values.get("prompt_logprobs", 0)}
        if record.routed_dp_rank is not None:
            body["routed_dp_rank"] = record.routed_dp_rank
        if record.salt or record.prompt_ids is not None:
            body["cache_salt"] = f"replay {self._seed} {dumped.file} {record.salt}"
        return body | _grammar(values.get("grammar"))

    def lost(self, dumped: Dumped) -> list[str]:
        """Return the names of the recorded parameters that no body can carry."""
        values = dumped.record.sampling
        lost = [name for name in values if name not in _SENT | _SCORES | {"grammar"}]
        scores = values.get("prompt_logprobs_start")
        if scores is not None and (
            scores > 0 or values.get("logprobs") != values.get("prompt_logprobs", 0)
        ):
            lost.append("prompt_logprobs_start" if scores else "logprobs")
        if "grammar" in values and not _grammar(values["grammar"]):
            lost.append("grammar")
        return lost

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
    if kind == GrammarKind.LARK:  # the endpoint tells it from EBNF by this mark
        return {} if "::=" in text else {"guided_grammar": text}
    return {kind: text}
