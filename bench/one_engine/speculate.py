"""`baton bench speculate`: what verifying drafts costs, and what it gains by how many are right."""

import random
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import click
import torch
from torch import Tensor

from baton.bench.contract import Report, json_option, seed_option, show
from baton.bench.machine import cores
from baton.bench.one_engine.mtp_turns import MtpTurns
from baton.bench.one_engine.paired import least_median, quartiles
from baton.bench.one_engine.tree_turns import TreeTurns
from baton.core.cache_salt import make_salt
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.memory.request_tables import RequestTables
from baton.engine.request.events import TokenSampled
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import (
    DRAFT_TOKENS,
    MOST_CHAIN,
    MOST_NODES,
    SpeculativeAlgorithm,
    windows_up_to,
)
from baton.engine.settings.config import EngineConfig
from baton.engine.speculation.ngram import DeviceNgram, NgramProposer
from baton.engine.speculation.prediction import PredictionSource
from baton.engine.speculation.proposer import DecodingStep, DeviceProposer, Proposers
from baton.engine.speculation.shared_source import SharedSource

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_PROMPT = 64  # tokens
_KEPT = 1 << 16  # tokens of other answers
_PHRASE = 8  # tokens of what a repetitive prompt repeats
_GUESSLESS = "guessless"
_TEXTS = "ngram", _GUESSLESS, "prediction", "shared"
_MTP, _TREE = "mtp", "tree"


@click.command("speculate")
@click.option("--model", type=click.Path(exists=True, file_okay=False, path_type=Path),
              required=True, help="A Hugging Face model folder.")  # fmt: skip
@click.option("--dtype", type=click.Choice(list(_DTYPES)), default="bfloat16", show_default=True)
@click.option("--batches", default="1,8", show_default=True, help="Requests at once.")
@click.option("--acceptance", default="0,0.25,0.5,0.75,0.9,1", show_default=True,
              help="Probabilities that a draft is right.")  # fmt: skip
@click.option("--window", type=click.Choice([str(size) for size in windows_up_to(MOST_CHAIN)]),
              default=str(DRAFT_TOKENS), show_default=True,
              help="Tokens that a step verifies of a request.")  # fmt: skip
@click.option("--tokens", type=click.IntRange(16), default=96, show_default=True,
              help="Tokens of an answer.")  # fmt: skip
@click.option("--turns", type=click.IntRange(3), default=10, show_default=True)
@click.option("--only", default="", help="Comma-separated names of what is to be measured, as "
              "0.5,ngram,auto_guessless; all but mtp and tree by default.")  # fmt: skip
@click.option("--topk", type=click.IntRange(2, MOST_NODES - 1), default=4, show_default=True,
              help="Continuations of a tree.")  # fmt: skip
@click.option("--steps", type=click.IntRange(1, MOST_NODES - 1),
              help="Guesses behind one another in a tree; as many as fit by default.")  # fmt: skip
@seed_option
@json_option
def speculate(
    model: Path,
    dtype: str,
    batches: str,
    acceptance: str,
    window: str,
    tokens: int,
    turns: int,
    only: str,
    topk: int,
    steps: int | None,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Measure answers with drafts against plain decoding of the same prompts, in turns.

    Plain decoding runs as it is served, with overlap. gain_<batch>_<acceptance>: plain seconds over
    those with drafts, of which each is right with that probability; the median of all turns. _low
    and _high: the quartiles. gain_<batch>_ngram: n-grams on prompts that repeat a phrase;
    gain_<batch>_guessless: n-grams at temperature 1, where little repeats. gain_<batch>_prediction:
    the client has sent the answer as its prediction. gain_<batch>_shared: the answer is known from
    the same request before. gain_<batch>_auto_…: the same with --speculative-algorithm auto.
    loss_<batch>_…guessless: what nothing to guess costs, 1 less the gain; _upper: its upper bound
    with 95 % confidence, from five turns on. These turns answer plain, drafts, drafts, plain.
    accepted_…: drafts that were right, of those verified;
    length_…: tokens a row with drafts and step.

    \b
    --only mtp, for checkpoints with a layer of multi-token prediction; prompts repeat a phrase:
    gain_<batch>_mtp: plain seconds over those with the layer's drafts; tok_s_<batch>_mtp,
      tok_s_<batch>_plain: tokens a second
    gain_<batch>_auto_mtp, tok_s_<batch>_auto_mtp: --speculative-algorithm auto on the same
      prompts, in the turns plain, auto, auto, plain
    gain_<batch>_mtp_<acceptance>: at the cost of the layer's drafts, but each is right with that
      probability
    acceptance_mtp_<depth>_b<batch>: the layer's drafts of that depth that were right, with all
      before them
    entries_ttft_<batch>, entries_decode_<batch>: seconds where steps write the layer's entries
      and draft nothing, over plain ones

    \b
    --only tree; prompts repeat a phrase, with _parting one that goes on in two ways at random; with
    _mtp the drafts are those of the checkpoint's layer, else n-grams:
    gain_<batch>_tree, gain_<batch>_chain: plain seconds over those with trees, or with chains of
      as many tokens
    tokens_a_step_tree_b<batch>, tokens_a_step_chain_b<batch>: tokens that a request gets in a step
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    sizes = [int(size) for size in batches.split(",")]
    config = EngineConfig(
        model=model,
        dtype=_DTYPES[dtype],
        threads=cores(),
        max_running=max(sizes),
        max_model_len=_PROMPT + tokens + 8,
        prefix_caching=False,
    )
    shares = [float(share) for share in acceptance.split(",")]
    wanted = _wanted(only, shares)
    found: dict[str, list[float]] = {}
    settings = {
        "model": str(model), "dtype": dtype, "window": int(window), "tokens": tokens,
        "turns": turns, "seed": seed,
    }  # fmt: skip
    if _MTP in wanted:
        layered = MtpTurns(config, int(window), random.Random(seed))
        found |= layered.run(turns, sizes, tokens, shares)
        wanted.remove(_MTP)
    if _TREE in wanted:
        branching = TreeTurns(config, int(window), topk, steps, random.Random(seed))
        found |= branching.run(turns, sizes, tokens)
        settings |= {"topk": topk, "steps": steps or int(window) - 1}
        wanted.remove(_TREE)
    if not wanted:
        show(Report("speculate", settings, quartiles(found, "gain")), json_wanted)
        return
    weights = load_model(config)
    plain = Engine(config, weights, None)
    guesser = DeviceNgram(weights.kernels)
    proposer = _Chosen(guesser)
    ngram, auto = (
        replace(
            config,
            speculative_algorithm=algorithm,
            speculative_num_draft_tokens=int(window),
            speculative_ngram_capacity=_KEPT,
        )
        for algorithm in (SpeculativeAlgorithm.NGRAM, SpeculativeAlgorithm.AUTO)
    )
    sources = Proposers(NgramProposer(), proposer, (PredictionSource(), SharedSource(_KEPT)))
    always = Engine(ngram, load_model(config), None, proposers=sources)
    deciding = Engine(auto, load_model(config), None)
    for turn in range(-1, turns):  # the first touches memory and records steps
        for size in sizes:
            rng = random.Random(f"{seed} {turn} {size}")
            for name, specs, source in _rivals(rng, shares, size, tokens, plain, guesser):
                if name not in wanted:
                    continue
                before, answers = _seconds(plain, specs)
                drafting = deciding if name.startswith("auto") else always
                if drafting is always:
                    proposer.source = source or _Known(specs, answers, float(name), rng, plain)
                specs = _told(name, drafting, specs, answers)
                counters = drafting.counters
                rows, drafts = counters.draft_rows, counters.draft_tokens
                right = counters.draft_tokens_accepted
                after, other = _seconds(drafting, specs)
                if other != answers:
                    raise click.ClickException(f"answers differ at {name}, seed {seed}")
                if name.endswith(_GUESSLESS):
                    after += _seconds(drafting, specs)[0]
                    before += _seconds(plain, specs)[0]
                if turn < 0:
                    continue
                rows, drafts = counters.draft_rows - rows, counters.draft_tokens - drafts
                right = counters.draft_tokens_accepted - right
                key = f"{size}_{name}"
                found.setdefault(f"gain_{key}", []).append(before / after)
                found.setdefault(f"accepted_{key}", []).append(right / max(1, drafts))
                found.setdefault(f"length_{key}", []).append(1 + right / max(1, rows))
    results = quartiles(found, "gain")
    for size in sizes:
        for name in wanted:
            if name.endswith(_GUESSLESS):
                results |= _loss(f"{size}_{name}", found[f"gain_{size}_{name}"])
    show(Report("speculate", settings, results), json_wanted)


def _wanted(only: str, shares: list[float]) -> list[str]:
    """Return the names of what is measured. Raises BadParameter."""
    kinds = [f"{kind}{text}" for kind in ("", "auto_") for text in _TEXTS]
    names = [*(f"{share:g}" for share in shares), *kinds]
    wanted = only.split(",") if only else list(names)
    names += [_MTP, _TREE]
    if unknown := sorted(set(wanted) - set(names)):
        raise click.BadParameter(
            f"{', '.join(unknown)} are not among {', '.join(names)}", param_hint="--only"
        )
    return wanted


def _loss(key: str, gains: list[float]) -> dict[str, float]:
    """Return what was lost, and its upper bound where there are turns enough."""
    least = least_median(gains)
    found = {f"loss_{key}": 1 - median(gains)}
    return found if least is None else found | {f"loss_{key}_upper": 1 - least}


def _rivals(
    rng: random.Random,
    shares: list[float],
    size: int,
    tokens: int,
    engine: Engine,
    guesser: DeviceProposer,
) -> list[tuple[str, list[RequestSpec], DeviceProposer | None]]:
    """Return (name, requests, proposer); no proposer: that of the name's acceptance."""
    vocab = engine.plan.model_config.vocab_size
    greedy = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)

    def requests(name: str, sampling: SamplingParams, phrase: int) -> list[RequestSpec]:
        found = []
        for row in range(size):
            text = [rng.randrange(vocab) for _ in range(phrase)]
            prompt = tuple(text[place % phrase] for place in range(_PROMPT))
            found.append(RequestSpec(f"{name}-{row}", prompt, replace(sampling, seed=row)))
        return found

    drawn = replace(greedy, temperature=1.0)
    rivals: list[tuple[str, list[RequestSpec], DeviceProposer | None]] = [
        (f"{share:g}", requests(f"{share:g}", greedy, _PROMPT), None) for share in shares
    ]
    for kind in ("", "auto_"):
        texts = (f"{kind}ngram", greedy, _PHRASE), (f"{kind}{_GUESSLESS}", drawn, _PROMPT)
        rivals += [(text[0], requests(*text), guesser) for text in texts]
        names = f"{kind}prediction", f"{kind}shared"
        rivals += [(name, requests(name, greedy, _PROMPT), guesser) for name in names]
    return rivals


def _told(
    name: str, engine: Engine, specs: list[RequestSpec], answers: dict[str, list[int]]
) -> list[RequestSpec]:
    """Return the requests with their answers as predictions, or as known to others, if the name
    says so.
    """
    if name.endswith("prediction"):
        return [replace(spec, prediction_ids=tuple(answers[spec.request_id])) for spec in specs]
    if name.endswith("shared"):
        specs = [replace(spec, draft_scope=make_salt("bench")) for spec in specs]
        _seconds(engine, specs)
    return specs


def _seconds(engine: Engine, specs: list[RequestSpec]) -> tuple[float, dict[str, list[int]]]:
    """Answer the requests; return the seconds from the last prompt on, and the tokens."""
    answers: dict[str, list[int]] = {spec.request_id: [] for spec in specs}
    for spec in specs:
        engine.submit(spec)
    began = 0.0
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokenSampled):
                answers[event.request_id].append(event.token_id)
        if not began and all(answers.values()):
            began = time.perf_counter()
    return time.perf_counter() - began, answers


class _Chosen:
    """The proposer of the engine with drafts, which changes between answers."""

    def __init__(self, source: DeviceProposer) -> None:
        self.source = source

    def propose(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int, step: DecodingStep
    ) -> tuple[Tensor, Tensor]:
        return self.source.propose(tables, rows, ends, most, step)


class _Known:
    """Drafts of answers that are known, each right with a probability. It reads the prompts where
    only a CPU's device may.
    """

    def __init__(
        self,
        specs: list[RequestSpec],
        answers: dict[str, list[int]],
        right: float,
        rng: random.Random,
        engine: Engine,
    ) -> None:
        self._answers = {spec.prompt_ids: answers[spec.request_id] for spec in specs}
        self._right = right
        self._rng = rng
        self._vocab = engine.plan.model_config.vocab_size

    def propose(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int, step: DecodingStep
    ) -> tuple[Tensor, Tensor]:
        drafts = torch.zeros((len(rows), most), dtype=torch.int64)
        counts = torch.zeros(len(rows), dtype=torch.int64)
        for place, (row, end) in enumerate(zip(rows.tolist(), ends.tolist(), strict=True)):
            answer = self._answers.get(tuple(tables.tokens[row, :_PROMPT].tolist()), [])
            found = answer[end - _PROMPT :][:most]
            guessed = [
                token if self._rng.random() < self._right else (token + 1) % self._vocab
                for token in found
            ]
            drafts[place, : len(guessed)] = torch.tensor(guessed, dtype=torch.int64)
            counts[place] = len(guessed)
        return drafts, counts
