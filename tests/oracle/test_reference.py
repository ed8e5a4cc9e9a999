"""The oracle refuses what it should: idle states, dull answers, unexplained tokens."""

import random
from pathlib import Path

import pytest
import torch
from oracle import reference
from oracle.checkpoints import load_reference, make_checkpoint
from oracle.exact import CHOICE_ERROR, Choices, Exact
from oracle.reference import LOGIT_BOUND, Oracle, accept
from oracle.specs import SPECS
from step_driver import StepDriver

from baton.engine.assembly.loader import load_model
from baton.engine.settings.config import EngineConfig

NAME = "granite_dense_nope"
VOCAB = SPECS[NAME].config["vocab_size"]
PROMPT = [5, 9, 200, 31, 77]


@pytest.mark.parametrize(
    ("tensors", "state"),
    [("self_attn.o_proj", "kv"), ("mamba.conv1d.weight", "conv"), ("mamba.A_log", "ssm")],
)
def test_a_checkpoint_with_an_idle_state_is_refused(
    tmp_path: Path, tensors: str, state: str
) -> None:
    pytest.importorskip("transformers")
    model = load_reference(make_checkpoint(SPECS[NAME], tmp_path))
    for name, parameter in model.named_parameters():
        if tensors in name:
            with torch.no_grad():
                if state == "conv":  # only the newest tap: the window does not matter
                    parameter[..., :-1] = 0
                else:  # no attention; a state that forgets at once
                    parameter.fill_(20.0 if state == "ssm" else 0.0)
    with pytest.raises(AssertionError, match=state):
        accept(model, VOCAB)


def test_a_checkpoint_that_repeats_itself_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = load_reference(make_checkpoint(SPECS[NAME], tmp_path))
    for name, parameter in model.named_parameters():
        if "o_proj" in name or "out_proj" in name or "output_linear" in name:
            with torch.no_grad():
                parameter.mul_(0.01)  # tied embeddings: each token is its own best successor
    with pytest.raises(AssertionError, match=r"distinct|deviation"):
        accept(model, VOCAB)


def test_other_tokens_are_refused_unless_nearly_tied(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    oracle = Oracle(tmp_path)
    folder = oracle.checkpoint(NAME)
    (wanted,) = oracle.greedy(folder, [PROMPT], 8)
    oracle.assert_same_greedy(folder, PROMPT, wanted)
    best = oracle.logits(folder, [*PROMPT, *wanted[:4]])[-1].topk(2)
    parted = [*wanted[:4], int(best.indices[1])]
    other = [*parted, *oracle.greedy(folder, [[*PROMPT, *parted]], 3)[0]]
    with pytest.raises(AssertionError, match="token 4"):
        oracle.assert_same_greedy(folder, PROMPT, other, error=LOGIT_BOUND / 100)
    margin = float(best.values[0] - best.values[1])
    oracle.assert_same_greedy(folder, PROMPT, other, error=margin)
    with pytest.raises(AssertionError, match="token 6"):
        oracle.assert_same_greedy(folder, PROMPT, [*other[:6], 1, other[7]], error=margin)


def test_an_answer_of_another_length_is_refused(oracle: Oracle) -> None:
    folder = oracle.checkpoint(NAME)
    (wanted,) = oracle.greedy(folder, [PROMPT], 8)
    with pytest.raises(AssertionError, match="7 tokens; expected 8"):
        oracle.assert_all_greedy(folder, [PROMPT], [wanted[:7]], 8)


def test_logits_are_refused_from_the_bound_on_and_the_failure_explains_itself(
    oracle: Oracle,
) -> None:
    folder = oracle.checkpoint(NAME)
    got = oracle.logits(folder, PROMPT)
    oracle.assert_same_logits(folder, PROMPT, got + 0.5 * LOGIT_BOUND)
    for error in (3 * LOGIT_BOUND, float("nan")):
        wrong = got.clone()
        wrong[3, 7] += error
        with pytest.raises(AssertionError, match=r"token 3 of 5 .* From float64 we are .* threads"):
            oracle.assert_same_logits(folder, PROMPT, wrong)
        with pytest.raises(AssertionError, match="token 3 of 5"):
            oracle.assert_same_logits(folder, PROMPT, wrong[2:], first=2)


def test_float64_decides_where_float32_is_far_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    oracle = Oracle(tmp_path)
    folder = oracle.checkpoint(NAME)
    (wanted,) = oracle.greedy(folder, [PROMPT], 8)
    right = oracle.logits(folder, PROMPT)

    def rounded(folder: Path, ids: list[int]) -> torch.Tensor:
        logits = true_logits(folder, ids).clone()
        logits[4, wanted[0]] -= 4.0  # as if an expert had been taken for another
        return logits

    true_logits = oracle.logits
    monkeypatch.setattr(oracle, "logits", rounded)
    oracle.assert_same_logits(folder, PROMPT, right)
    oracle.assert_same_greedy(folder, PROMPT, wanted)
    assert oracle.doubts == 2
    with pytest.raises(AssertionError, match="token 2 is"):
        oracle.assert_same_greedy(folder, PROMPT, [*wanted[:2], wanted[2] ^ 1, *wanted[3:]])


def test_what_follows_nearly_tied_experts_is_in_doubt_and_nothing_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    oracle = Oracle(tmp_path)
    folder = oracle.checkpoint(NAME)
    right = oracle.logits(folder, PROMPT)
    closest = torch.full((len(PROMPT),), 1.0, dtype=torch.float64)
    closest[3] = CHOICE_ERROR
    turned = right.clone()
    turned[3:] += 0.1

    def answer(model: object, ids: list[int], turned_choice: int | None = None) -> Exact:
        return Exact((right if turned_choice is None else turned).double(), closest, ties=1)

    monkeypatch.setattr(reference, "exact", answer)
    oracle.assert_same_logits(folder, PROMPT, turned)
    assert oracle.doubts == 1
    with pytest.raises(AssertionError, match="token 2 of 5"):
        wrong = turned.clone()
        wrong[2] += 0.1
        oracle.assert_same_logits(folder, PROMPT, wrong)
    with pytest.raises(AssertionError, match="token 4 of 5"):
        wrong = turned.clone()
        wrong[4] += 0.1  # neither choice of experts says so
        oracle.assert_same_logits(folder, PROMPT, wrong)


@pytest.mark.parametrize(("factor", "allowed"), [(9.0, True), (11.0, False)])
def test_where_float32_is_far_from_float64_we_may_be_ten_times_as_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float, allowed: bool
) -> None:
    pytest.importorskip("transformers")
    oracle = Oracle(tmp_path)
    folder = oracle.checkpoint(NAME)
    right = oracle.logits(folder, PROMPT).double()
    theirs, ours = right.clone(), right.clone()
    theirs[2, 7] += 0.01
    ours[2, 7] -= factor * 0.01
    far = torch.full((len(PROMPT),), torch.inf, dtype=torch.float64)
    monkeypatch.setattr(oracle, "logits", lambda folder, ids: theirs.float())
    monkeypatch.setattr(reference, "exact", lambda model, ids, turned=None: Exact(right, far))
    if allowed:
        oracle.assert_same_logits(folder, PROMPT, ours.float())
        assert oracle.doubts == 1
    else:
        with pytest.raises(AssertionError, match="token 2 of 5"):
            oracle.assert_same_logits(folder, PROMPT, ours.float())


def test_a_nearly_tied_choice_can_be_turned() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.4], [0.3, 0.2, 0.2 + 1e-6, 0.0]])
    with Choices(turned=0) as choices:
        values, experts = scores.topk(2, dim=-1)
    assert choices.ties == 1
    assert experts.tolist() == [[1, 2], [0, 1]] and float(values[1, 1]) == float(scores[1, 1])


def test_choices_are_seen_with_what_decided_them() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.4], [0.3, 0.2, 0.2001, 0.0], [1.0, 2.0, 3.0, 4.0]])
    with Choices() as choices:
        scores.topk(2, dim=-1)
        torch.topk(scores, 4)  # all of them: nothing was chosen
    expected = torch.tensor([0.1, 0.0001, 1.0], dtype=torch.float64)
    torch.testing.assert_close(choices.closest(3), expected, atol=1e-6, rtol=0)
    assert Choices().closest(2).tolist() == [float("inf")] * 2


def test_experts_that_float32_transformers_confuses_are_not_held_against_us(
    oracle: Oracle,
) -> None:
    """Seen once in 11 runs of the parity tests: token 16's second and third expert are 3.6e-6
    apart, and transformers' logits 0.3 from what it says itself in float64."""
    rng = random.Random(23693733)
    prompt = [rng.randrange(3, VOCAB) for _ in range(rng.choice((64, 77, 101)))]
    folder = oracle.checkpoint("granite_moe_nope")
    driver = StepDriver(load_model(EngineConfig(model=folder)))
    oracle.assert_same_logits(folder, prompt, driver.prefill(driver.start(prompt)))
