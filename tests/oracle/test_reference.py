"""The oracle refuses what it should: idle states, dull answers, unexplained tokens."""

from pathlib import Path

import pytest
import torch
from oracle.checkpoints import load_reference, make_checkpoint
from oracle.reference import LOGIT_BOUND, Oracle, accept
from oracle.specs import SPECS

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
