"""transformers as the oracle of what a checkpoint says, and whether a checkpoint can tell."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from oracle.checkpoints import load_reference, make_checkpoint
from oracle.exact import Exact, exact
from oracle.specs import SPECS, STATES
from torch import Tensor

# Logits may differ by this much in float32, at a standard deviation of one.
LOGIT_BOUND = 1e-4
# What a lost state must at least do to the next token's distribution (in nats): 100 times what
# LOGIT_BOUND is taken to stand for, though an error of that size moves it by less than 1e-8.
LOST_STATE_KL = 100 * LOGIT_BOUND
# Where rounding decides, float32 of ours may be this many times as far from float64 as float32 of
# transformers.
DOUBT_FACTOR = 10
MOST_TURNED = 8
"""Nearly tied choices of experts that are tried the other way, one at a time."""
_PROMPT = 48
_STEPS = 64


class Oracle:
    """`checkpoint(name)` is fit for use: what it returns has been accepted (see `accept`).

    Everything is computed once a session. Positions are always passed: without them, Bamba in
    transformers counts from zero again at each decode step.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._models: dict[tuple[Path, torch.dtype], Any] = {}
        self._answers: dict[tuple[Path, tuple[int, ...]], list[int]] = {}
        self._accepted: set[str] = set()
        self.steps = 0  # tokens that were compared,
        self.ties = 0  # and of these, near ties that went the other way
        self.prompts = 0  # that were compared,
        self.doubts = 0  # and of these, some of whose tokens float32 decides by rounding

    def checkpoint(self, name: str) -> Path:
        """The folder of the checkpoint called `name` in oracle.specs."""
        folder = self._root / name
        if name not in self._accepted:
            make_checkpoint(SPECS[name], folder)
            accept(self._model(folder), SPECS[name].config["vocab_size"], SPECS[name].states)
            self._accepted.add(name)
        return folder

    def logits(
        self, folder: Path, ids: Sequence[int], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Logits of every position of `ids`: [tokens, vocab] float32."""
        model = self._model(folder, dtype)
        with torch.no_grad():
            out = model(torch.tensor([ids]), position_ids=torch.arange(len(ids))[None])
        logits: Tensor = out.logits[0].float()
        return logits

    def greedy(self, folder: Path, prompts: Sequence[Sequence[int]], n: int) -> list[list[int]]:
        """The `n` tokens that follow each prompt; ends of sequence do not end them."""
        return [self._greedy(folder, tuple(prompt), n) for prompt in prompts]

    def assert_same_logits(
        self,
        folder: Path,
        ids: Sequence[int],
        got: Tensor,
        first: int = 0,
        *,
        bound: float = LOGIT_BOUND,
        of: Callable[[Tensor], Tensor] = lambda logits: logits,
    ) -> None:
        """`got` [tokens, ...] float32 is near to what the reference says from token `first` of
        `ids` on. of: what `got` is of logits [tokens, vocab].

        Where it is not, the reference in float64 decides, if it can: tokens after nearly tied
        experts, and those for which the float32 reference is itself far from it, are printed and
        counted as doubts. Even there our distance from float64 is at most 10 times that of the
        float32 reference, or `bound`; where experts are nearly tied, the distance is from the
        nearest of the answers that float64 gives when one of those choices is turned.
        """
        reference = self.logits(folder, ids)[first:]
        error = _apart(got, of(reference))
        wrong = ~(error <= bound)  # NaN is not near
        self.prompts += 1
        if not wrong.any():
            return
        truth = self._exact(folder, ids)
        ours, theirs = (_apart(x.double(), of(truth.logits[first:])) for x in (got, of(reference)))
        doubtful = truth.tied()[first:][: len(wrong)] | (theirs > bound / 2) | (ours <= bound)
        far = ~self._close(folder, ids, truth, got, reference, first, bound, of)
        decisive = wrong & (~doubtful | far)
        place = int((decisive if decisive.any() else wrong).nonzero()[0])
        said = (
            f"token {first + place} of {len(ids)} differs by {error[place]:.1e}; at most "
            f"{bound:.0e} is allowed. From float64 we are {ours[place]:.1e} away there, float32 "
            f"transformers {theirs[place]:.1e}; {_circumstances(truth, first + place)}"
        )
        assert not decisive.any(), said
        print(f"in doubt, {int(wrong.sum())} tokens: {said}")
        self.doubts += 1

    def _close(
        self,
        folder: Path,
        ids: Sequence[int],
        truth: Exact,
        got: Tensor,
        reference: Tensor,
        first: int,
        bound: float,
        of: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """[tokens] bool: `got` is at most DOUBT_FACTOR times as far from an answer in float64 as
        `reference`, or at most `bound`. NaN is not close."""
        answers = [
            truth,
            *(self._exact(folder, ids, n) for n in range(min(truth.ties, MOST_TURNED))),
        ]
        close = torch.zeros(len(got), dtype=torch.bool)
        theirs = _apart(of(reference).double(), of(truth.logits[first:]))
        for answer in answers:
            wanted = of(answer.logits[first:])
            close |= _apart(got.double(), wanted) <= torch.clamp(DOUBT_FACTOR * theirs, min=bound)
        return close

    def assert_same_greedy(
        self, folder: Path, prompt: Sequence[int], got: Sequence[int], error: float = LOGIT_BOUND
    ) -> None:
        """`got` are the greedy tokens after `prompt`: at each, the likeliest in one forward of the
        reference over both (that its decode steps say the same, `accept` has seen).

        A token may be the reference's second where its two best logits are nearer than twice the
        `error` that logits are known to have. Such ties are printed and counted. As in
        `assert_same_logits`, float64 decides where float32 says something else.
        """
        assert got, "there is no answer"
        ids, rows = [*prompt, *got], slice(len(prompt) - 1, -1)
        found = others(self.logits(folder, ids)[rows], got, error)
        self.prompts += 1
        self.steps += len(got)
        self.ties += found.ties
        if not found.wrong:
            return
        truth = self._exact(folder, ids)
        tied = truth.tied()[rows].tolist()
        still = others(truth.logits[rows], got, error).wrong
        decisive = {number: said for number, said in still.items() if not tied[number]}
        place, said = next(iter((decisive or found.wrong).items()))
        said += f"; {_circumstances(truth, len(prompt) - 1 + place)}"
        assert not decisive, said
        print(f"in doubt, {len(found.wrong)} tokens: {said}")
        self.doubts += 1

    def assert_all_greedy(
        self,
        folder: Path,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        n: int,
    ) -> None:
        """Each answer is the `n` greedy tokens after its prompt (see `assert_same_greedy`)."""
        for prompt, answer in zip(prompts, answers, strict=True):
            assert len(answer) == n, f"{len(answer)} tokens; expected {n}"
            self.assert_same_greedy(folder, prompt, answer)

    def _greedy(self, folder: Path, prompt: tuple[int, ...], n: int) -> list[int]:
        known = self._answers.get((folder, prompt), [])
        if len(known) < n:
            known, _ = continue_greedily(self._model(folder), torch.tensor([prompt]), n)[0]
            self._answers[folder, prompt] = known
        return known[:n]

    def _model(self, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
        if (folder, dtype) not in self._models:
            self._models[folder, dtype] = load_reference(folder, dtype)
        return self._models[folder, dtype]

    def _exact(self, folder: Path, ids: Sequence[int], turned: int | None = None) -> Exact:
        return exact(self._model(folder, torch.float64), ids, turned)


def continue_greedily(
    model: Any, prompts: Tensor, n: int, lose: Sequence[str] = ()
) -> list[tuple[list[int], Tensor]]:
    """Each row's `n` greedy tokens, and the logits [vocab] of its second.

    prompts: [rows, tokens]. lose: a state for each row that is zeroed after the prompt: "kv",
    "conv", "ssm", or "" for none.
    """
    rows, length = prompts.shape
    with torch.no_grad():
        positions = torch.arange(length).expand(rows, length)
        out = _step(model, prompts, positions)
        cache = _cache(out)
        for row, state in enumerate(lose):
            _zero(cache, row, state)
        tokens = [out.logits[:, -1].argmax(-1)]
        second = out.logits[:, -1]
        while len(tokens) < n:
            positions = torch.full((rows, 1), length + len(tokens) - 1)
            out = _step(model, tokens[-1][:, None], positions, cache)
            if len(tokens) == 1:
                second = out.logits[:, -1]
            tokens.append(out.logits[:, -1].argmax(-1))
    answers = torch.stack(tokens, dim=1).tolist()
    return list(zip(answers, second, strict=True))


def accept(model: Any, vocab_size: int, states: Sequence[str] = STATES) -> None:
    """Assert that the checkpoint shows a wrong state: lively, scaled, and no state is idle.

    states: those that the family has; the reference's cache must hold these and no other.
    """
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(3, vocab_size, (1, _PROMPT), generator=generator)
    with torch.no_grad():
        out = _step(model, prompt, torch.arange(_PROMPT)[None])
    held = tuple(state for state in STATES if _tensors(_cache(out), state))
    assert held == tuple(states), f"the cache holds {held}; expected {tuple(states)}"
    std = float(out.logits.std())
    assert 0.7 < std < 1.4, f"logits should have a standard deviation near 1; got {std:.2f}"
    rows = ("", *states)
    (tokens, logits), *lost = continue_greedily(model, prompt.expand(len(rows), -1), _STEPS, rows)
    with torch.no_grad():
        whole = torch.cat((prompt, torch.tensor([tokens])), dim=1)
        out = _step(model, whole, torch.arange(whole.shape[1])[None])
    near_ties(out.logits[0, _PROMPT - 1 : -1], tokens, LOGIT_BOUND)
    distinct = len(set(tokens))
    assert distinct >= 16, f"{_STEPS} greedy tokens should hold 16 distinct ones; got {distinct}"
    for state, (lost_tokens, lost_logits) in zip(states, lost, strict=True):
        assert lost_tokens != tokens, f"zeroing {state} does not change the greedy tokens"
        kl = kl_divergence(logits, lost_logits)
        assert kl >= LOST_STATE_KL, (
            f"zeroing {state} moves the next token's distribution by {kl:.1e} nats; "
            f"at least {LOST_STATE_KL:.0e} is needed"
        )


@dataclass(frozen=True)
class Others:
    """Tokens that are not the likeliest: how many near ties, and what is wrong with the others, by
    their numbers."""

    ties: int
    wrong: dict[int, str]


def others(logits: Tensor, got: Sequence[int], error: float) -> Others:
    """Return those of the tokens `got` that are not the likeliest by `logits` [tokens, vocab]. A
    near tie is the second likeliest where the best two differ by less than twice `error`."""
    best = logits.topk(2)
    ties = 0
    wrong = {}
    for number, (token, likely) in enumerate(zip(got, best.indices.tolist(), strict=True)):
        if token == likely[0]:
            continue
        margin = float(best.values[number, 0] - best.values[number, 1])
        where = f"token {number} is {token}, expected {likely[0]}"
        if margin < 2 * error and token == likely[1]:
            print(f"near tie: {where}; the reference prefers it by {margin:.1e}")
            ties += 1
        else:
            wrong[number] = f"{where}; the reference prefers it by {margin:.1e}"
    return Others(ties, wrong)


def near_ties(logits: Tensor, got: Sequence[int], error: float) -> int:
    """Return how many of the tokens `got` are near ties that went the other way; assert that no
    others differ."""
    found = others(logits, got, error)
    assert not found.wrong, next(iter(found.wrong.values()))
    return found.ties


def kl_divergence(reference: Tensor, other: Tensor) -> float:
    """KL(reference || other) of two logit vectors [vocab], in nats."""
    log_p, log_q = reference.double().log_softmax(-1), other.double().log_softmax(-1)
    return float((log_p.exp() * (log_p - log_q)).sum())


def _step(model: Any, ids: Tensor, positions: Tensor, cache: Any = None) -> Any:
    """One forward with a cache, under whichever name the model takes it."""
    name = "cache_params" if model.config.model_type == "mamba2" else "past_key_values"
    return model(ids, position_ids=positions, use_cache=True, **{name: cache})


def _cache(out: Any) -> Any:
    return out["cache_params"] if "cache_params" in out else out["past_key_values"]


def _tensors(cache: Any, state: str) -> list[Tensor]:
    """Every layer's tensors [rows, ...] of one kind of state."""
    found: list[Tensor | None] = []
    for layer in cache.layers:
        if state == "kv" and hasattr(layer, "keys"):
            found += [layer.keys, layer.values]
        elif state == "conv" and hasattr(layer, "conv_states"):
            found.append(layer.conv_states[0])
        elif state == "ssm" and hasattr(layer, "recurrent_states"):
            found.append(layer.recurrent_states[0])
    return [tensor for tensor in found if tensor is not None]


def _zero(cache: Any, row: int, state: str) -> None:
    for tensor in _tensors(cache, state):
        tensor[row] = 0


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """[tokens]: the largest difference of two tensors [tokens, ...]."""
    return (one - other).abs().flatten(1).amax(dim=1) if one.dim() > 1 else (one - other).abs()


def _circumstances(truth: Exact, place: int) -> str:
    """Return the circumstances that a failure's message should name."""
    closest = float(truth.closest[: place + 1].min())
    chosen = "" if closest == torch.inf else f"an expert was chosen by {closest:.1e} up to there, "
    return f"{chosen}torch has {torch.get_num_threads()} threads"
