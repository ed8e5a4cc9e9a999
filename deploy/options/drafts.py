"""The options for draft tokens, by the names of SGLang and of vLLM."""

import json
from dataclasses import dataclass
from typing import NamedTuple

from baton.core.options import Group, Whole, Words, option
from baton.deploy.errors import StartError
from baton.engine.settings.choices import (
    DRAFT_TOKENS,
    MOST_CHAIN,
    MOST_NODES,
    SpeculativeAlgorithm,
)

# SGLang's names for drafts by the model's own layer, where no draft model is given.
_OWN_LAYER = dict.fromkeys(("nextn", "eagle"), SpeculativeAlgorithm.MTP)
_ALGORITHMS = {each.value: each for each in SpeculativeAlgorithm} | _OWN_LAYER
_VLLM_KEYS = ("method", "num_speculative_tokens")


# fmt: off
@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """The options for draft tokens as they are given; `speculation_of` reads them."""

    speculative_algorithm: SpeculativeAlgorithm = option(
        SpeculativeAlgorithm.OFF, Group.DRAFTS,
        "Guess tokens and verify several in one step: ngram guesses what followed the same tokens "
        "before; mtp (nextn, eagle) guesses by the model's own layer of multi-token prediction; "
        "auto does either where it pays, by what steps cost and how many guesses were right: it "
        "loads that layer if the model's files have one. Answers stay the same.",
        Words(_ALGORITHMS), names=("--speculative-algorithm", "--speculative-algo"))
    speculative_num_steps: int | None = option(
        None, Group.DRAFTS,
        "Guesses behind one another in one step: one less than --speculative-num-draft-tokens, or "
        "fewer where --speculative-eagle-topk makes trees of them.", Whole(1, MOST_NODES - 1))
    speculative_num_draft_tokens: int | None = option(
        None, Group.DRAFTS,
        f"Tokens that one step verifies of a request: its newest and guesses, up to {MOST_CHAIN}; "
        f"of trees up to {MOST_NODES}. {DRAFT_TOKENS} when left out.", Whole(2, MOST_NODES))
    speculative_eagle_topk: int | None = option(
        None, Group.DRAFTS,
        "Continuations that one step verifies of a request, as a tree; 1, a chain, when left out. "
        "More on a CPU: with ngram where the same tokens were followed by different ones, with mtp "
        "the tokens that the model's own layer puts first. auto has chains alone.",
        Whole(1, MOST_NODES - 1))
    speculative_draft_model_path: str | None = option(
        None, Group.DRAFTS, "Refused: there are no draft models beside the model.", metavar="PATH")
    speculative_config: str | None = option(
        None, Group.DRAFTS,
        'vLLM\'s spelling: {"method": "mtp" or "ngram", "num_speculative_tokens": guesses for a '
        "request in one step}.", metavar="JSON")
# fmt: on


class Speculation(NamedTuple):
    """The drafts that options ask for.

    draft_tokens: that a step verifies of a request, its newest one among them.
    topk: continuations that are verified together. steps: guesses in each; None: as many as fit
    """

    algorithm: SpeculativeAlgorithm
    draft_tokens: int
    topk: int = 1
    steps: int | None = None


def speculation_of(options: DraftOptions) -> Speculation:
    """Return what the options ask for. Raises StartError."""
    path, algorithm = options.speculative_draft_model_path, options.speculative_algorithm
    if path is not None:
        raise StartError(
            f"--speculative-draft-model-path {path}: there are no draft models. Leave it out; "
            "--speculative-algorithm mtp guesses by a layer that the model's own checkpoint has"
        )
    steps, tokens = options.speculative_num_steps, options.speculative_num_draft_tokens
    if options.speculative_eagle_topk not in (None, 1):
        return _trees(options, options.speculative_eagle_topk)
    if options.speculative_config is not None:
        if algorithm is not SpeculativeAlgorithm.OFF or steps is not None or tokens is not None:
            raise StartError(
                "--speculative-config says what the other options for drafts say: give it alone, "
                "or leave it out"
            )
        return _read_json(options.speculative_config)
    if steps is not None and tokens is not None and tokens != steps + 1:
        raise StartError(
            f"--speculative-num-draft-tokens must be --speculative-num-steps + 1 = {steps + 1}, "
            f"the guesses of one chain and the newest token; got {tokens}. Leave one of them out"
        )
    if steps is not None:
        tokens = steps + 1
    if tokens is not None and tokens > MOST_CHAIN:
        raise StartError(
            f"--speculative-num-draft-tokens must be 2 to {MOST_CHAIN} for guesses of one chain; "
            f"got {tokens}. Trees have up to {MOST_NODES}: --speculative-eagle-topk 2"
        )
    return Speculation(algorithm, DRAFT_TOKENS if tokens is None else tokens)


def _trees(options: DraftOptions, topk: int) -> Speculation:
    """Return what options of trees ask for. Raises StartError."""
    asked = f"--speculative-eagle-topk {topk}"
    if options.speculative_config is not None:
        raise StartError(
            f"{asked} makes trees of guesses, and --speculative-config asks for chains: use "
            "--speculative-algorithm ngram or mtp in its place, or leave out "
            "--speculative-eagle-topk"
        )
    algorithm, steps = options.speculative_algorithm, options.speculative_num_steps
    if algorithm is SpeculativeAlgorithm.AUTO:
        raise StartError(
            f"{asked} makes trees of guesses, and auto chooses the length of chains by what steps "
            "cost. Use --speculative-algorithm ngram or mtp, or --speculative-eagle-topk 1"
        )
    tokens = options.speculative_num_draft_tokens
    if tokens is None:
        tokens = DRAFT_TOKENS if steps is None else min(topk * steps + 1, MOST_NODES)
    if steps is not None and steps > tokens - 1:
        raise StartError(
            f"--speculative-num-steps {steps}: a tree of --speculative-num-draft-tokens {tokens} "
            f"has the newest token and {tokens - 1} guesses. Use fewer steps, or more tokens"
        )
    return Speculation(algorithm, tokens, topk, steps)


def _read_json(text: str) -> Speculation:
    """Read vLLM's --speculative-config. Raises StartError."""
    where = "--speculative-config"
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise StartError(f"{where}: expected JSON; {error}") from error
    if not isinstance(given, dict):
        raise StartError(f"{where}: expected an object with {' and '.join(_VLLM_KEYS)}")
    unknown = sorted(given.keys() - set(_VLLM_KEYS))
    if unknown:
        raise StartError(
            f"{where}: {', '.join(unknown)} cannot be given; expected {' and '.join(_VLLM_KEYS)}"
        )
    method, count = (given.get(key) for key in _VLLM_KEYS)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count < MOST_CHAIN:
        raise StartError(
            f"{where}: num_speculative_tokens must be a whole number from 1 to {MOST_CHAIN - 1}; "
            f"got {count!r}"
        )
    return Speculation(_algorithm_of(method), count + 1)


def _algorithm_of(method: object) -> SpeculativeAlgorithm:
    name = method.lower() if isinstance(method, str) else ""
    if name == SpeculativeAlgorithm.NGRAM.value:
        return SpeculativeAlgorithm.NGRAM
    # vLLM has named it by family too, as qwen3_next_mtp.
    if name == SpeculativeAlgorithm.MTP.value or name.endswith("_mtp"):
        return SpeculativeAlgorithm.MTP
    raise StartError(
        f"--speculative-config: method {method!r} is not there; expected mtp, which guesses by the "
        "model's own layer, or ngram"
    )
