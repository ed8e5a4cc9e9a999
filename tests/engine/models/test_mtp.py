"""The layer of multi-token prediction: what it drafts, and what every way through a text leaves."""

import random
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import create_autospec

import pytest
import torch
from eight_bit_packing import BLOCKS, pack
from mtp_models import MtpCheckpoints, draft, entries_in, hidden_of
from oracle.mtp import MTP_SPECS
from step_driver import Row, StepDriver
from torch import Tensor

from baton.engine.assembly.loader import load_model
from baton.engine.models.layers.vocabulary import Head
from baton.engine.settings.config import EngineConfig
from baton.engine.step.forward_batch import ForwardBatch, HostLengths, Window
from baton.engine.step.kept_inputs import kept_inputs
from baton.engine.step.layer_progress import LayerProgress
from baton.engine.step.model import Model
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.kernel_choice import KernelChoice
from baton.kernels.verify import Accepted

BOUND = 1e-4  # of logits and entries, at a standard deviation near one
TOKENS = 45


@pytest.fixture(params=MTP_SPECS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(mtp_checkpoints: MtpCheckpoints, name: str) -> Path:
    return mtp_checkpoints.folder(name)


@pytest.fixture(params=[KernelChoice.AUTO, KernelChoice.TORCH])
def model(folder: Path, request: pytest.FixtureRequest) -> Model:
    return load_model(EngineConfig(model=folder, mtp=True, kernels=request.param))


@pytest.fixture
def ids(name: str) -> list[int]:
    rng = random.Random(name)
    return [rng.randrange(3, MTP_SPECS[name].spec.config["vocab_size"]) for _ in range(TOKENS)]


def entries(driver: StepDriver, row: Row) -> Tensor:
    """[tokens - 1, values]: what the layer has written of the row, but of its first token."""
    return entries_in(driver.pages, row.pages, row.computed)


def hidden(driver: StepDriver, row: Row) -> Tensor:
    """[hidden]: the last hidden state in the row's slot."""
    return hidden_of(driver, [row])[0]


@pytest.mark.parametrize("name", ["qwen3_next_moe"], indirect=True)
def test_a_hand_off_hears_that_all_is_written_once_the_ranks_have_met(
    model: Model, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They meet in the head: another rank may still be writing its entries before."""
    done: list[str] = []
    head = Head.__call__

    def meet(self: Head, x: Tensor) -> Tensor:
        done.append("met")
        return head(self, x)

    monkeypatch.setattr(Head, "__call__", meet)
    driver = StepDriver(model)
    batch = driver.batch([(driver.start(ids), TOKENS)], 0)
    progress = create_autospec(LayerProgress, instance=True)
    progress.all_written.side_effect = lambda: done.append("written")
    model.forward(replace(batch, progress=progress), driver.states, driver.pages)
    assert done == ["met", "written"]


def test_drafts_of_three_depths_are_those_of_a_float64_reference(
    mtp_checkpoints: MtpCheckpoints, name: str, model: Model, ids: list[int]
) -> None:
    reference = mtp_checkpoints.reference(name)
    driver = StepDriver(model)
    rows = [driver.start(ids[:length]) for length in (2, 17, TOKENS)]
    newest = [row.tokens.pop() for row in rows]
    driver.step(prefill=[(row, len(row.tokens)) for row in rows])
    before = hidden_of(driver, rows)
    drafted: list[list[int]] = [[] for _ in rows]
    found = []
    tokens = newest
    for depth in range(3):
        logits, before = draft(driver, rows, tokens, depth, before)
        found.append(logits)
        tokens = logits.argmax(-1).tolist()
        for own, token in zip(drafted, tokens, strict=True):
            own.append(token)
    for index, row in enumerate(rows):
        expected = reference.draft([*row.tokens, newest[index]], drafted[index][:2])
        got = torch.stack([logits[index] for logits in found]).double()
        assert 0.3 < float(expected.std()) < 3, "logits should be near a standard deviation of one"
        torch.testing.assert_close(got, expected, rtol=0, atol=BOUND)


@pytest.mark.parametrize("name", ["deepseek3_grouped"], indirect=True)
def test_a_draft_is_that_of_the_librarys_own_layer(
    mtp_checkpoints: MtpCheckpoints, name: str, model: Model, ids: list[int]
) -> None:
    expected = mtp_checkpoints.reference(name).library_draft(ids)
    driver = StepDriver(model)
    row = driver.start(ids[:-1])
    driver.prefill(row)
    logits, _ = draft(driver, [row], ids[-1:], 0, hidden_of(driver, [row]))
    torch.testing.assert_close(logits[0].double(), expected, rtol=0, atol=BOUND)


def test_every_way_through_a_text_leaves_the_same_entries(model: Model, ids: list[int]) -> None:
    driver = StepDriver(model)
    whole = driver.start(ids)
    driver.prefill(whole)
    chunked, stepped, branched = driver.start(ids), driver.start([]), driver.start(ids[:32])
    driver.prefill(chunked, 7)
    for token in ids:
        stepped.tokens.append(token)
        driver.step(decode=[stepped])
    driver.prefill(branched)
    branch = driver.branch(branched, ids[32:])
    driver.prefill(branch)
    for row in (chunked, stepped, branch):
        torch.testing.assert_close(entries(driver, row), entries(driver, whole), rtol=0, atol=BOUND)
        torch.testing.assert_close(hidden(driver, row), hidden(driver, whole), rtol=0, atol=BOUND)


def test_rows_that_decode_beside_prompts_leave_the_same_entries(
    model: Model, ids: list[int]
) -> None:
    driver = StepDriver(model)
    whole = driver.start(ids)
    driver.prefill(whole)
    decoding, late = driver.start(ids[:9]), driver.start(ids)
    driver.prefill(decoding)
    for token in ids[9:12]:
        decoding.tokens.append(token)
        driver.step(decode=[decoding], prefill=[(late, 13)])
    for row in (decoding, late):
        count = row.computed - 1
        found, expected = entries(driver, row), entries(driver, whole)[:count]
        torch.testing.assert_close(found, expected, rtol=0, atol=BOUND)


def windowed(batch: ForwardBatch, size: int, kept: tuple[Tensor, ...]) -> ForwardBatch:
    """The batch of prompts of `size` tokens each, as the verification of these tokens."""
    rows, count = batch.rows, batch.tokens
    lens = tuple((batch.positions + 1).tolist())
    started = tuple(flag for flag in batch.host.has_initial for _ in range(size))
    host = HostLengths(tuple(range(count + 1)), tuple(n - 1 for n in lens), lens, started)
    assert rows * size == count
    return replace(
        batch,
        cu_seqlens=torch.arange(count + 1),
        kv_lens=batch.positions + 1,
        table_rows=batch.table_rows.repeat_interleave(size),
        decode_rows=count,
        host=host,
        window=Window(size, kept),
    )


@pytest.mark.parametrize("right", [1, 2, 4])
def test_verified_windows_leave_the_entries_of_what_was_right(
    model: Model, ids: list[int], right: int
) -> None:
    driver, size = StepDriver(model), 4
    whole = driver.start(ids)
    driver.prefill(whole)
    rows = [driver.start(ids[:start]) for start in (1, 20)]
    kept = kept_inputs(model, len(rows) * size, torch.device("cpu"))
    for row in rows:
        driver.prefill(row)
    for _ in range(3):
        for row in rows:
            told = ids[row.computed : row.computed + right]
            wrong = [(token + 1) % 300 for token in ids[row.computed + right :][: size - right]]
            row.tokens[row.computed :] = [*told, *wrong]
        batch = windowed(driver.batch([(row, size) for row in rows], 0), size, kept)
        model.forward(batch, driver.states, driver.pages)
        count = torch.full((len(rows),), right)
        nowhere = torch.zeros(len(rows), dtype=torch.int64)
        slots = batch.read_slots, batch.write_slots
        model.commit(batch, driver.states, Accepted(*slots, None, count, nowhere, nowhere))
        for row in rows:
            row.computed += right
    for row in rows:
        found, expected = entries(driver, row), entries(driver, whole)[: row.computed - 1]
        torch.testing.assert_close(found, expected, rtol=0, atol=BOUND)
        alone = driver.start(ids[: row.computed])
        driver.prefill(alone)
        torch.testing.assert_close(hidden(driver, row), hidden(driver, alone), rtol=0, atol=BOUND)


def test_a_snapshot_of_a_prompt_holds_the_hidden_state_of_its_depth(
    model: Model, ids: list[int]
) -> None:
    driver, depth = StepDriver(model), 64
    row, snapshot = driver.start([*ids, *ids]), driver.start([])
    batch = driver.batch([(row, len(row.tokens))], 0)
    snapshots = SnapshotPlan(rows=(0,), depths=(depth,), slots=(snapshot.slot,))
    index = model.plan(batch.host, 0, snapshots).on(torch.device("cpu"))
    model.forward(replace(batch, index=index, snapshots=snapshots), driver.states, driver.pages)
    short = driver.start(row.tokens[:depth])
    driver.prefill(short)
    torch.testing.assert_close(hidden(driver, snapshot), hidden(driver, short), rtol=0, atol=BOUND)
    assert not torch.allclose(hidden(driver, snapshot), hidden(driver, row), atol=0.1)


def test_an_entry_at_place_0_is_never_seen(model: Model, ids: list[int]) -> None:
    def drafts(poison: bool) -> Tensor:
        driver = StepDriver(model)
        row = driver.start(ids[:20])
        driver.prefill(row)
        if poison:
            for pool in [*driver.pages.k[-1:], *driver.pages.v[-1:], *driver.pages.latents[-1:]]:
                pool[row.pages[0], 0] = torch.nan
        return draft(driver, [row], [ids[20]], 0, hidden(driver, row)[None])[0]

    assert torch.equal(drafts(poison=False), drafts(poison=True))


def test_a_draft_changes_no_slot_and_only_its_own_places(model: Model, ids: list[int]) -> None:
    driver = StepDriver(model)
    row, other = driver.start(ids[:20]), driver.start(ids)
    driver.step(prefill=[(row, 20), (other, TOKENS)])
    states, before, text = (
        driver.states.storage.clone(),
        entries(driver, row),
        entries(driver, other),
    )
    draft(driver, [row], [ids[20]], 0, hidden(driver, row)[None])
    assert torch.equal(driver.states.storage, states)
    assert torch.equal(entries(driver, row), before)
    assert torch.equal(entries(driver, other), text)


def test_logits_are_those_of_the_model_without_the_layer(folder: Path, ids: list[int]) -> None:
    def logits(mtp: bool) -> Tensor:
        driver = StepDriver(load_model(EngineConfig(model=folder, mtp=mtp)))
        row = driver.start(ids[:-4])
        first = driver.prefill(row, 16)
        found = [first]
        for token in ids[-4:]:
            row.tokens.append(token)
            found += [step.clone() for step in driver.step(decode=[row])]
        return torch.cat(found)

    assert torch.equal(logits(mtp=True), logits(mtp=False))


@pytest.mark.parametrize("name", ["deepseek3_grouped", "qwen3_next_moe"], indirect=True)
def test_a_layer_in_fp8_drafts_as_the_expanded_one(
    folder: Path, name: str, ids: list[int], tmp_path: Path
) -> None:
    def drafted(checkpoint: Path) -> Tensor:
        driver = StepDriver(load_model(EngineConfig(model=checkpoint, mtp=True)))
        row = driver.start(ids[:20])
        driver.prefill(row)
        logits, _ = draft(driver, [row], [ids[20]], 0, hidden_of(driver, [row]))
        return logits

    plain = shutil.copytree(folder, tmp_path / name)
    prefix = "mtp" if name.startswith("qwen") else "model.layers.3"
    forms = {f"{prefix}.{part}.weight": BLOCKS for part in ("*_proj", "fc")}
    quantisation = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    pair = pack(plain, forms, "_scale_inv", {"quantization_config": quantisation})
    assert len(pair.quantised) > 5
    logits = drafted(pair.packed)
    assert torch.equal(logits, drafted(pair.expanded))
    assert not torch.equal(logits, drafted(plain))


@pytest.mark.parametrize("name", ["qwen3_next_odd", "nemotron_latent"], indirect=True)
def test_bfloat16_drafts_are_near_those_of_float32(folder: Path, ids: list[int]) -> None:
    def drafted(dtype: torch.dtype, kernels: KernelChoice) -> Tensor:
        driver = StepDriver(
            load_model(EngineConfig(model=folder, mtp=True, dtype=dtype, kernels=kernels))
        )
        row = driver.start(ids[:20])
        driver.prefill(row, 9)
        logits, _ = draft(driver, [row], [ids[20]], 0, hidden_of(driver, [row]))
        return logits[0]

    exact = drafted(torch.float32, KernelChoice.TORCH)
    for kernels in (KernelChoice.AUTO, KernelChoice.TORCH):
        logits = drafted(torch.bfloat16, kernels)
        assert float((logits - exact).square().mean().sqrt()) < 0.2
