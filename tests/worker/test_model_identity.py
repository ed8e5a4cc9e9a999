"""Tests of what workers call the same model: an FP8 checkpoint is not the one that it was made
of."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from eight_bit_packing import BLOCKS, Pair, pack
from engine.models.test_deepseek import V3

from baton.bench.checkpoints import write_checkpoint
from baton.core.errors import IncompatibleError
from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.models.family_table import read_config
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig
from baton.rpc.handshake import check_fingerprint
from baton.transfer.memory.regions import EngineMemory
from baton.worker.model_identity import worker_fingerprint

CPU = torch.device("cpu")


def fingerprint(
    folder: Path, form: WeightFormat = WeightFormat.AUTO, round_vocabulary: bool = False
) -> dict[str, str]:
    model = read_config(folder, torch.bfloat16, torch.float32)
    slots = SlotLayout(model.recurrent, model.conv_dtype, model.ssm_dtype)
    pages = PageLayout(model.attention, 16, model.dtype)
    memory = EngineMemory(StatePool(slots, 2, CPU), PagePool(pages, 2, CPU))
    config = EngineConfig(
        folder, dtype=torch.bfloat16, weight_format=form, round_vocabulary=round_vocabulary
    )
    return worker_fingerprint(config, model, memory)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    plain = write_checkpoint(tmp_path_factory.mktemp("fp8") / "plain", V3, torch.bfloat16)
    config = {"quantization_config": {"quant_method": "fp8"}}
    return pack(plain, {"*_proj.weight": BLOCKS}, "_scale_inv", config)


def differing(first: Path, second: Path) -> set[str]:
    ours, theirs = fingerprint(first), fingerprint(second)
    return {name for name in ours if ours[name] != theirs[name]}


def test_two_copies_of_an_fp8_checkpoint_are_one_model(pair: Pair, tmp_path: Path) -> None:
    shutil.copytree(pair.packed, tmp_path / "copy")
    assert not differing(pair.packed, tmp_path / "copy")


def test_an_fp8_checkpoint_and_its_original_are_two(pair: Pair, tmp_path: Path) -> None:
    plain = pair.packed.with_name("plain")
    for other in (plain, pair.expanded):
        assert differing(pair.packed, other) == {"model", "weights"}
    with pytest.raises(IncompatibleError, match="weights"):
        check_fingerprint(fingerprint(pair.packed), fingerprint(plain), "decode-0", "prefill-0")

    # ModelOpt's older checkpoints say in a file of their own that they are quantised.
    silent = shutil.copytree(pair.packed, tmp_path / "silent")
    shutil.copy(plain / "config.json", silent / "config.json")
    own = {"quantization": {"quant_algo": "FP8_PB_WO"}}
    (silent / "hf_quant_config.json").write_text(json.dumps(own))
    assert differing(silent, plain) == {"weights"}


def test_weights_that_are_rounded_at_load_are_another_model(pair: Pair) -> None:
    folder = pair.packed
    given, rounded = fingerprint(folder), fingerprint(folder, WeightFormat.INT8)
    assert {name for name in given if given[name] != rounded[name]} == {"weights"}
    for form in (WeightFormat.MODEL, WeightFormat.FP8):  # other forms of the same values
        assert fingerprint(folder, form) == given
    with pytest.raises(IncompatibleError, match="rounded to int8 at load"):
        check_fingerprint(given, rounded, "decode-0", "prefill-0")


def test_every_way_to_round_plain_weights_is_another_model(pair: Pair) -> None:
    plain = pair.packed.with_name("plain")
    forms = (WeightFormat.FP8, WeightFormat.INT8)
    found = [fingerprint(plain)["weights"]]
    found += [
        fingerprint(plain, form, all_of)["weights"] for form in forms for all_of in (False, True)
    ]
    assert len(set(found)) == 5
    assert fingerprint(plain, WeightFormat.MODEL) == fingerprint(plain)
    assert found[2].endswith(" rounded to fp8 at load, the vocabulary too")
