"""A head that a checkpoint holds beside the embedding that config.json ties it to."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from oracle.checkpoints import load_reference
from oracle.reference import LOGIT_BOUND, Oracle
from oracle.specs import SPECS
from safetensors.torch import load_file, save_file
from step_driver import StepDriver

from baton.core.errors import WeightsError
from baton.engine.assembly.loader import build_model, load_model, planned_memory
from baton.engine.collectives.comm import Shard
from baton.engine.loading.weights import Checkpoint
from baton.engine.models.family_table import read_config
from baton.engine.settings.config import EngineConfig

HEAD = "lm_head.weight"
EMBEDDING = ("embed_tokens.weight", "embeddings.weight")
PROMPT = [5, 17, 300, 4, 111]
TIED = [name for name, spec in SPECS.items() if spec.config.get("tie_word_embeddings")]
SILENT = ["lfm2_tied", "zamba2_adapted"]  # families that are tied where config.json says nothing
MakeHead = Callable[[torch.Tensor], torch.Tensor | None]


def changed(
    folder: Path,
    to: Path,
    head: MakeHead,
    tied: bool | None = True,
    dtype: torch.dtype | None = None,
) -> Path:
    """Copy a checkpoint, with the head that `head` makes of its embedding."""
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    config.pop("tie_word_embeddings", None)
    if tied is not None:
        config["tie_word_embeddings"] = tied
    (to / "config.json").write_text(json.dumps(config))
    tensors = load_file(to / "model.safetensors")
    (embedding,) = (t for name, t in tensors.items() if name.endswith(EMBEDDING))
    if dtype is not None:
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    tensors.pop(HEAD, None)
    made = head(embedding)
    if made is not None:
        tensors[HEAD] = made.clone()
    save_file({name: t.clone() for name, t in tensors.items()}, to / "model.safetensors",
              metadata={"format": "pt"})  # fmt: skip
    return to


def logits(folder: Path, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    driver = StepDriver(load_model(EngineConfig(model=folder, dtype=dtype)))
    return driver.prefill(driver.start(PROMPT))


def another(embedding: torch.Tensor) -> torch.Tensor:
    return embedding.flip(0)


def nothing(embedding: torch.Tensor) -> None:
    return None


def same(embedding: torch.Tensor) -> torch.Tensor:
    return embedding


@pytest.mark.parametrize("name", [*TIED, *SILENT])
def test_a_head_of_other_values_is_used_and_logged(
    oracle: Oracle, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    tied = None if name in SILENT else True
    folder = changed(oracle.checkpoint(name), tmp_path / "changed", another, tied)
    with caplog.at_level(logging.WARNING):
        found = logits(folder)
    (line,) = (r.getMessage() for r in caplog.records if HEAD in r.getMessage())
    assert "differs from" in line and str(folder) in line
    with torch.no_grad():
        wanted = load_reference(folder)(torch.tensor([PROMPT])).logits[0]
    assert (found - wanted).abs().max() < LOGIT_BOUND
    assert (found - logits(oracle.checkpoint(name))).abs().max() > 0.1


@pytest.mark.parametrize("name", ["llama_tied", "lfm2_tied", "mamba2_grouped"])
def test_a_head_of_equal_values_is_the_embedding(
    oracle: Oracle, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain = changed(oracle.checkpoint(name), tmp_path / "plain", nothing)
    # Equal by value, though the file has it in another dtype.
    half = changed(plain, tmp_path / "half", same, dtype=torch.bfloat16)
    wide = changed(half, tmp_path / "wide", torch.Tensor.float)
    with caplog.at_level(logging.WARNING):
        before, after = (load_model(EngineConfig(model=each)) for each in (plain, wide))
    assert after.weight_bytes == before.weight_bytes
    assert not [r for r in caplog.records if HEAD in r.getMessage()]
    seen: list[tuple[int, int]] = []
    load_model(EngineConfig(model=wide), lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]


def test_values_are_compared_before_they_are_rounded(oracle: Oracle, tmp_path: Path) -> None:
    def nearly(embedding: torch.Tensor) -> torch.Tensor:
        head = embedding.clone()
        head[-1, -1] *= 1 + 2**-20
        return head

    tied = changed(oracle.checkpoint("llama_tied"), tmp_path / "tied", nothing)
    near = changed(tied, tmp_path / "near", nearly)
    tables = [
        load_model(EngineConfig(model=each, dtype=torch.bfloat16)).weight_bytes
        for each in (tied, near)
    ]
    assert tables[1] - tables[0] == 320 * 64 * 2


def test_the_plan_counts_a_head_that_is_there_by_the_header(oracle: Oracle, tmp_path: Path) -> None:
    tied = changed(oracle.checkpoint("llama_tied"), tmp_path / "tied", nothing)
    other = changed(tied, tmp_path / "other", another)
    plans = [
        planned_memory(EngineConfig(model=each, memory_bytes=1 << 30)) for each in (tied, other)
    ]
    assert plans[1].weight_bytes - plans[0].weight_bytes == 320 * 64 * 4


@pytest.mark.parametrize(("head", "copies"), [(same, 1), (another, 2)], ids=["equal", "other"])
def test_all_ranks_decide_alike(
    oracle: Oracle, tmp_path: Path, head: MakeHead, copies: int
) -> None:
    """Rows of one rank alone may be equal: it is the whole tables that are compared."""

    def half(embedding: torch.Tensor) -> torch.Tensor:
        made = head(embedding)
        assert made is not None
        return torch.cat((embedding[:160], made[160:]))

    folder = changed(oracle.checkpoint("llama_tied"), tmp_path / "changed", half)
    config = read_config(folder, torch.float32, torch.float32)
    for rank in range(2):
        checkpoint, cpu = Checkpoint(folder), torch.device("cpu")
        part = build_model(config, checkpoint, cpu, Shard(rank, 2))
        assert (part.head.weight is part.embedding.table) == (copies == 1)


def test_a_head_that_is_missing_is_named_where_nothing_ties_it(
    oracle: Oracle, tmp_path: Path
) -> None:
    folder = changed(oracle.checkpoint("llama_tied"), tmp_path / "untied", nothing, tied=False)
    with pytest.raises(WeightsError, match=r"missing \(1\): lm_head.weight \(tie_word_embeddings "):
        load_model(EngineConfig(model=folder))


def test_a_head_of_another_shape_is_named(oracle: Oracle, tmp_path: Path) -> None:
    folder = changed(oracle.checkpoint("llama_tied"), tmp_path / "short", lambda e: e[:-1])
    with pytest.raises(WeightsError, match=r"lm_head.weight is \[319, 64\], expected \[320, 64\]"):
        load_model(EngineConfig(model=folder))
