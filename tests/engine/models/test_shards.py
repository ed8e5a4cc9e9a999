"""Tensor-parallel ranks say together what transformers says, and what cannot be divided is
refused."""

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from oracle.reference import LOGIT_BOUND, Oracle, near_ties
from oracle.specs import SPECS
from rank_models import say_together
from step_driver import StepDriver
from torch import Tensor

from baton.core.errors import ConfigError
from baton.engine.assembly.loader import build_model, divided_model
from baton.engine.collectives.comm import Shard, SingleComm
from baton.engine.loading.weight_part import WHOLE, WeightPart
from baton.engine.loading.weights import Checkpoint, DummyWeights, Shape
from baton.engine.models.family_table import read_config
from baton.kernels.kernel_choice import KernelChoice

ANSWER = 12  # tokens
CPU = torch.device("cpu")
# At least one of every family at 2 ranks; where heads are odd in number, 3; and 4, where KV heads,
# groups of Mamba-2 or experts are fewer than ranks or do not divide among them.
DIVIDED = [
    ("granite_dense_nope", 2),
    ("granite_moe_nope", 2),
    ("bamba_grouped", 2),
    ("llama_tied", 2),
    ("qwen3_tied", 2),
    ("granite3_tied", 2),
    ("mamba2_grouped", 2),
    ("nemotron_moe", 2),
    ("nemotron_latent", 2),
    ("falcon_bare", 2),
    ("falcon_gated_last", 2),
    ("lfm2_tied", 2),
    ("zamba2_adapted", 2),
    ("deepseek3_grouped", 2),
    ("deepseek2_grouped", 2),
    ("qwen3_5_tied", 2),
    ("qwen3_next_moe", 2),
    ("kimi_moe", 2),
    ("kimi_odd", 3),
    ("qwen3_next_odd", 3),
    ("qwen3_5_moe", 3),
    ("deepseek3_odd_dense", 3),
    ("qwen3_odd", 3),
    ("granite_dense_nope", 4),
    ("nemotron_moe", 4),
    ("nemotron_latent", 4),
    ("kimi_moe", 4),
]
WITHOUT_ROPE = ["granite_moe_nope", "kimi_moe"]
# Recorded steps, of one of each kind of layer.
ON_NATIVE = [
    ("granite_dense_nope", 2),
    ("granite_moe_nope", 2),
    ("falcon_gated_last", 2),
    ("lfm2_tied", 2),
    ("zamba2_adapted", 2),
    ("qwen3_5_tied", 2),
    ("qwen3_5_moe", 3),
    ("kimi_moe", 4),
    ("nemotron_latent", 4),
]
# One of each kind of recurrent layer, and one of experts.
OVER_GLOO = ["granite_moe_nope", "lfm2_tied", "qwen3_next_moe", "kimi_moe"]


def drawn(oracle: Oracle, name: str, rng: random.Random) -> tuple[Path, list[int], list[int]]:
    """A checkpoint, a random prompt, and its greedy answer by transformers."""
    folder = oracle.checkpoint(name)
    prompt = [rng.randrange(3, SPECS[name].config["vocab_size"]) for _ in range(37)]
    return folder, prompt, oracle.greedy(folder, [prompt], ANSWER)[0]


@pytest.mark.parametrize(
    ("name", "ranks", "kernels"),
    [
        *((name, ranks, KernelChoice.TORCH) for name, ranks in DIVIDED),
        *((name, ranks, KernelChoice.AUTO) for name, ranks in ON_NATIVE),
    ],
)
def test_ranks_say_what_transformers_says(
    oracle: Oracle, seeded: random.Random, name: str, ranks: int, kernels: KernelChoice
) -> None:
    folder, prompt, answer = drawn(oracle, name, seeded)
    logits = say_together(folder, prompt, answer, ranks, kernels)
    oracle.assert_same_logits(folder, [*prompt, *answer], logits)
    likeliest = logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist()
    # Another one is a near tie of two logits, by the bound above.
    near_ties(
        oracle.logits(folder, [*prompt, *answer])[len(prompt) - 1 : -1], likeliest, LOGIT_BOUND
    )


class Counted(SingleComm):
    """Takes the place of all ranks, and notes what they would exchange."""

    def __init__(self) -> None:
        self.sums = 0
        self.gathered: list[torch.dtype] = []

    def all_reduce(self, x: Tensor) -> Tensor:
        self.sums += 1
        return x

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        self.gathered.append(x.dtype)
        return F.pad(x, (0, sum(widths) - x.shape[1]))


@pytest.mark.parametrize("name", ["qwen3_next_moe", "kimi_moe", "deepseek3_grouped"])
def test_ranks_add_up_once_a_branch_and_exchange_logits_as_they_are(
    oracle: Oracle, name: str
) -> None:
    """Routed and shared experts of a layer are one sum. Logits are wider only once they are all
    together."""
    config = read_config(oracle.checkpoint(name), torch.bfloat16, torch.float32)
    comm = Counted()
    model = build_model(config, DummyWeights(), CPU, Shard(0, 2), comm)
    driver = StepDriver(model)
    logits = driver.prefill(driver.start([5, 6, 7]))
    assert comm.sums == 1 + 2 * len(config.layers)  # the embedding, then mixer and feed-forward
    assert comm.gathered == [torch.bfloat16] and logits.dtype is torch.float32


def test_so_do_ranks_that_are_processes(
    oracle: Oracle, seeded: random.Random, tmp_path: Path
) -> None:
    cases = [drawn(oracle, name, seeded) for name in OVER_GLOO]
    given, group, out = tmp_path / "cases", tmp_path / "group", tmp_path / "out"
    group.mkdir()
    given.write_text(json.dumps([[str(folder), *tokens] for folder, *tokens in cases]))
    script = Path(__file__).parents[2] / "rank_process.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), "2", str(given), str(group), str(out)]
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=240) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for (folder, prompt, answer), logits in zip(cases, torch.load(out), strict=True):
        oracle.assert_same_logits(folder, [*prompt, *answer], logits)


@pytest.mark.parametrize(
    ("name", "ranks", "message"),
    [
        (
            "bamba_odd",
            2,
            r"Mamba heads \(5\) cannot be divided among 2 ranks.*bamba_odd runs on 1 rank",
        ),
        ("falcon_gated_last", 4, r"norm comes before the gate.* falcon_gated_last runs on 1 or 2"),
        ("granite_dense_rope", 3, r"Mamba groups .*\(2\) cannot be divided among 3 ranks"),
        ("qwen3_5_moe", 2, r"heads \(3\) .* 2 ranks.*qwen3_5_moe runs on 1 or 3"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_what_can(
    oracle: Oracle, name: str, ranks: int, message: str
) -> None:
    config = read_config(oracle.checkpoint(name), torch.float32, torch.float32)
    with pytest.raises(ConfigError, match=message):
        divided_model(config, ranks)


class CountedReads:
    """A source that counts how often each place of each tensor is read."""

    def __init__(self) -> None:
        self.reads: dict[str, torch.Tensor] = {}
        self._source = DummyWeights()

    def holds(self, name: str) -> bool:
        return False

    def differs(self, name: str, other: str) -> bool:
        return False

    def tensor(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> torch.Tensor:
        counts = self.reads.setdefault(name, torch.zeros(shape, dtype=torch.int32))
        for view in part.views(counts):
            view += 1
        return self._source.tensor(name, shape, part)

    def release(self, name: str) -> None:
        """Do nothing: every tensor was made for its caller."""


@pytest.mark.parametrize("name", ["granite_moe_nope", "falcon_bare", "qwen3_next_moe", "kimi_moe"])
def test_a_rank_reads_what_it_keeps_once_and_all_ranks_together_everything(
    oracle: Oracle, name: str
) -> None:
    config = read_config(oracle.checkpoint(name), torch.float32, torch.float32)
    together: dict[str, torch.Tensor] = {}
    for rank in range(2):
        counted = CountedReads()
        built = build_model(config, counted, CPU, Shard(rank, 2))
        read = sum(int(counts.sum()) for counts in counted.reads.values())
        if name in WITHOUT_ROPE:  # rotary tables are weights that are not read
            assert built.weight_bytes == 4 * read
        for tensor, counts in counted.reads.items():
            assert counts.max() == 1, f"{tensor} is read twice"
            together[tensor] = together.get(tensor, 0) + counts
    assert all((counts > 0).all() for counts in together.values())


def test_a_part_of_a_file_is_the_part_of_the_whole(oracle: Oracle) -> None:
    checkpoint = Checkpoint(oracle.checkpoint("llama_tied"))
    name, shape = "model.layers.0.mlp.down_proj.weight", (64, 96)
    whole = checkpoint.tensor(name, shape)
    rows = checkpoint.tensor(name, shape, WeightPart(0, (range(8, 24), range(40, 48))))
    columns = checkpoint.tensor(name, shape, WeightPart(1, (range(32, 64),)))
    assert torch.equal(rows, torch.cat((whole[8:24], whole[40:48])))
    assert torch.equal(columns, whole[:, 32:64])
