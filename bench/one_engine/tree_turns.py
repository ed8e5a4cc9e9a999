"""Turns of answers with trees of drafts, beside chains of as many tokens and plain decoding."""

import random
from collections.abc import Sequence
from dataclasses import replace

import click

from baton.bench.one_engine.mtp_turns import Answered, answered
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig

_PROMPT = 64  # tokens
_PHRASE = 8  # tokens of what a prompt repeats
_SHARED = 5  # the first of them, where it goes on in two ways


class TreeTurns:
    """Engines of one checkpoint: plain, and with chains and trees of each proposer that it has."""

    def __init__(
        self, config: EngineConfig, tokens: int, topk: int, steps: int | None, rng: random.Random
    ) -> None:
        """config: of plain decoding. tokens: that a step verifies of a request, of a chain and of a
        tree. topk, steps: see `--speculative-eagle-topk` and `--speculative-num-steps`."""
        self._rng = rng
        self._plain = Engine(config, load_model(config), None)
        layered = replace(config, mtp=None)
        algorithms = {"": SpeculativeAlgorithm.NGRAM}
        if load_model(layered).config.mtp:
            algorithms["_mtp"] = SpeculativeAlgorithm.MTP
        self._rivals: dict[str, Engine] = {}
        for suffix, algorithm in algorithms.items():
            chain = replace(
                config,
                mtp=algorithm is SpeculativeAlgorithm.MTP,
                speculative_algorithm=algorithm,
                speculative_num_draft_tokens=tokens,
            )
            tree = replace(chain, speculative_eagle_topk=topk, speculative_num_steps=steps)
            for name, drafting in (("chain", chain), ("tree", tree)):
                self._rivals[name + suffix] = Engine(drafting, load_model(drafting), None)

    def run(self, turns: int, sizes: Sequence[int], tokens: int) -> dict[str, list[float]]:
        """Return the values of all turns by key; `baton bench speculate` says what they are. Raises
        ClickException where answers differ.

        sizes: requests at once. tokens: of an answer
        """
        found: dict[str, list[float]] = {}
        for turn in range(-1, turns):  # the first touches memory and records steps
            for size in sizes:
                for text in ("", "_parting"):
                    for key, value in self._turn(size, tokens, text).items():
                        if turn >= 0:
                            found.setdefault(key, []).append(value)
        return found

    def _turn(self, size: int, tokens: int, text: str) -> dict[str, float]:
        specs = self._requests(size, tokens, parting=bool(text))
        plain, found = answered(self._plain, specs), {}
        for name, engine in self._rivals.items():
            drafted = answered(engine, specs)
            if drafted.tokens != plain.tokens:
                raise click.ClickException(f"answers differ at {name}{text}, {size} requests")
            found[f"gain_{size}_{name}{text}"] = plain.rest / drafted.rest
            a_step = _tokens_a_step(drafted)
            found[f"tokens_a_step_{name}{text}_b{size}"] = a_step
        return found

    def _requests(self, size: int, tokens: int, *, parting: bool) -> list[RequestSpec]:
        """Return requests whose prompts repeat a phrase; parting: that goes on in two ways, at
        random."""
        rng, vocab = self._rng, self._plain.plan.model_config.vocab_size
        greedy = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        specs = []
        for row in range(size):
            phrases = [[rng.randrange(vocab) for _ in range(_PHRASE)]]
            if parting:
                end = [rng.randrange(vocab) for _ in range(_PHRASE - _SHARED)]
                phrases.append([*phrases[0][:_SHARED], *end])
            prompt = [token for _ in range(_PROMPT // _PHRASE) for token in rng.choice(phrases)]
            specs.append(RequestSpec(f"tree-{row}", tuple(prompt), greedy))
        return specs


def _tokens_a_step(drafted: Answered) -> float:
    """Return the tokens that a row gave in a step, behind its first token: a row without drafts
    gave one."""
    whole = sum(len(tokens) - 1 for tokens in drafted.tokens.values())
    by_drafts = sum(count * accepted for accepted, count in enumerate(drafted.lengths))
    return whole / max(1, whole - by_drafts)
