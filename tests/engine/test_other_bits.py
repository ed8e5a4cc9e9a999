"""Differences in bits that native kernels have, each with its reason.

A difference that is listed must be there: who mends one takes its line out, here and in the
documents. A difference that is not listed must not be there.
"""

import pytest
import torch
from engine.test_same_bits import GRID, ONE_A_FAMILY, as_bytes, as_name
from oracle.reference import LOGIT_BOUND, Oracle
from oracle.specs import SPECS
from step_driver import StepDriver
from torch import Tensor

from baton.engine.assembly.loader import load_model
from baton.engine.settings.config import EngineConfig
from baton.kernels.native.library import load as library

LATENT = "a step meets the latent itself, a prompt the keys and values that it expands to"
RECURRENCE = "a step is a recurrence, a prompt's chunk a matrix product"

# Why a token that a prompt computed has other bits than the same token in a step, by family.
STEPS: dict[str, set[str]] = {
    "llama": set(),
    "qwen3": set(),
    "granite": set(),
    "lfm2": set(),
    "deepseek_v2": {LATENT},
    "deepseek_v3": {LATENT},
    "mamba2": {RECURRENCE},
    "bamba": {RECURRENCE},
    "falcon_h1": {RECURRENCE},
    "nemotron_h": {RECURRENCE},
    "zamba2": {RECURRENCE},
    "granitemoehybrid": {RECURRENCE},
    "qwen3_5": {RECURRENCE},
    "qwen3_next": {RECURRENCE},
    "kimi_linear": {LATENT, RECURRENCE},
}
# Families with a recurrent state beside a window: one that is kept in bfloat16 is rounded where a
# prompt is cut, and stays in float32 where it is not.
ROUNDED_STATES = {family for family, reasons in STEPS.items() if RECURRENCE in reasons}
EVERY_RUN = {"mamba2", "lfm2", "qwen3_next", "kimi_linear", "llama"}
# Logits have a standard deviation of one.
BOUND = {torch.float32: LOGIT_BOUND, torch.bfloat16: 0.25}
# Prompts of 100 tokens: in bfloat16 rounding hides a difference in most of them.
ROWS = {torch.float32: 2, torch.bfloat16: 24}
CUT_ROWS = 2

over_families = pytest.mark.parametrize("name", ONE_A_FAMILY)
# One of each kind of recurrence, and attention alone, in every run.
over_most = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if SPECS[name].family in EVERY_RUN else pytest.mark.chaos)
        for name in ONE_A_FAMILY
    ],
)
over_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=as_name)


@pytest.fixture(autouse=True)
def _native() -> None:
    if library() is None:
        pytest.skip("no C++ compiler")


def prompts(name: str, rows: int, length: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(length)
    vocab = SPECS[name].config["vocab_size"]
    return torch.randint(3, vocab, (rows, length), generator=generator).tolist()


def check(name: str, one: Tensor, other: Tensor, *, differ: bool, bound: float) -> None:
    """Assert that two tensors of logits [tokens, vocab] have other bits, or not, and are near."""
    apart = (one - other).abs().amax(dim=1)
    print(f"{name} {one.shape}: {apart.max():.1e} in a logit, at the median {apart.median():.1e}")
    assert (as_bytes(one) != as_bytes(other)) == differ
    # A token whose experts are as good as tied may go to others by a rounding.
    far = apart.max() if SPECS[name].dense else apart.median()
    assert far < bound


def test_every_family_has_a_line() -> None:
    families = {SPECS[name].family for name in ONE_A_FAMILY}
    assert set(STEPS) == families == {spec.family for spec in SPECS.values()}


@over_dtypes
@over_families
def test_steps_against_a_prompt(oracle: Oracle, name: str, dtype: torch.dtype) -> None:
    model = load_model(EngineConfig(model=oracle.checkpoint(name), dtype=dtype))
    texts = prompts(name, ROWS[dtype], 100)
    driver = StepDriver(model, slots=2 * len(texts) + 1, pages=14 * len(texts) + 1)
    whole, rows = [], []
    for tokens in texts:
        whole.append(driver.prefill(driver.start(tokens))[GRID:])
        rows.append(driver.start(tokens[:GRID]))
        driver.prefill(rows[-1])
    steps = []
    for place in range(GRID, 100):
        for row, tokens in zip(rows, texts, strict=True):
            row.tokens.append(tokens[place])
        steps.append(torch.stack([logits[0] for logits in driver.step(decode=rows)]))
    found = torch.stack(steps, dim=1).flatten(0, 1)
    reasons = STEPS[SPECS[name].family]
    check(name, found, torch.cat(whole), differ=bool(reasons), bound=BOUND[dtype])


@over_dtypes
@over_most
def test_states_in_bfloat16_at_cuts(oracle: Oracle, name: str, dtype: torch.dtype) -> None:
    options = EngineConfig(oracle.checkpoint(name), dtype=dtype, ssm_dtype=torch.bfloat16)
    driver, texts = StepDriver(load_model(options)), prompts(name, CUT_ROWS, 150)
    whole = torch.cat([driver.prefill(driver.start(tokens)) for tokens in texts])
    cut = torch.cat([driver.prefill(driver.start(tokens), GRID) for tokens in texts])
    differ = SPECS[name].family in ROUNDED_STATES
    check(name, cut, whole, differ=differ, bound=BOUND[torch.bfloat16])
