"""Random steps of whole models meet no variant of a kernel that the start has not met: one that is
met while serving stops all requests until Triton has compiled it."""

import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from rerun_capture import RerunCapture
from torch import Tensor

from baton.bench.gpu.models import KIMI_LINEAR, NEMOTRON_9B, QWEN3_NEXT, small_config, write_config
from baton.bench.gpu.variants import Variants, counted_variants
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import build_model
from baton.engine.engine import Engine
from baton.engine.loading.weights import DummyWeights
from baton.engine.models.family_table import read_config
from baton.engine.replay.graphed_model import GraphedModel
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.step.model import Model
from baton.engine.stream.forward_stream import InlineStream
from baton.kernels.linear import Matrix
from baton.kernels.triton.kernel import COUNTS, INDICES
from baton.kernels.triton.triton_kernels import TritonKernels

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="where there is a GPU, launches run"
)
MOST = 30  # variants that an engine's start meets beside those of captured decode steps
# What may have several values: tiles, by the size of a batch; what differs between layers; the
# filters of sampling, which are there or not.
TILES = {"QUERIES", "ROWS", "COLUMNS", "options"}
OF_LAYERS = {
    "ACTIVATION", "PER_ROW", "WHOLE", "BLOCK", "gate_stride", "per_row", "weights", "width",
    "x_stride",
}  # fmt: skip
# What decode steps that are captured read on the device, and others know on the host.
REPLAYED = {"has_initial"}
FILTERS = {"row_top_ks", "row_top_ps", "row_min_ps", "PLACES"}
DRAFTS = {"speculative_algorithm": SpeculativeAlgorithm.NGRAM}
EAGER = {"graphs": False}
LONGEST = 1900  # tokens of a prompt
# Small, but with rows of a multiple of 16 bytes, as all real models have them.
FAMILIES: dict[str, dict[str, Any]] = {
    "Nemotron-H": {**small_config(NEMOTRON_9B), "mamba_num_heads": 16},
    "Qwen3-Next": {
        **small_config(QWEN3_NEXT),
        "linear_num_value_heads": 16,
        "linear_num_key_heads": 8,
    },
    "Kimi-Linear": {**small_config(KIMI_LINEAR), "linear_num_heads": 16, "kv_lora_rank": 32},
}

MAX_RUNNING = 64


class NoProducts(TritonKernels):
    """Triton's kernels beside matrix products that are not computed: nothing else is, either."""

    @staticmethod
    def linear(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
        assert isinstance(weight, Tensor)
        return x.new_zeros((x.shape[0], weight.shape[0]))


def variants_of(
    config: dict[str, Any], folder: Path, steps: int, **more: Any
) -> tuple[Variants, Variants]:
    """The variants that an engine's start meets beside those of captured decode steps, and those
    that its steps with random arrivals meet after that."""
    config = {**config, "max_position_embeddings": 4096}
    options = EngineConfig(
        model=write_config(folder / "model", config, small=False),
        dtype=torch.bfloat16,
        max_running=MAX_RUNNING,
        max_model_len=2048,
        chunked_prefill_size=2048,
        page_size=64,
        memory_bytes=1 << 29,
        overlap=False,
        **more,
    )
    read = read_config(options.model, options.dtype, options.ssm_dtype)
    model = build_model(read, DummyWeights(), torch.device("cpu"), kernels=NoProducts())
    with counted_variants() as at_start:
        graphed = CountedCapture(model, at_start, MAX_RUNNING)
        engine = Engine(options, graphed if options.graphs else model, None, InlineStream())
    rng = random.Random(0)
    serial = 0
    with counted_variants() as met:
        for _ in range(steps):
            arrivals = rng.choice([1, 1, 2, 3, 6]) if rng.random() < 0.3 else 0
            for _ in range(arrivals if engine.status().waiting < 8 else 0):
                serial += 1
                prompt = min(LONGEST, int(5 + rng.expovariate(1 / 350)))
                tokens = tuple(rng.randrange(3, 300) for _ in range(prompt))
                engine.submit(RequestSpec(f"r{serial}", tokens, sampling_of(rng)))
            engine.step()
    return at_start.without(graphed.captured), met.without(at_start)


class CountedCapture(GraphedModel):
    """A replayed model with the variants that were met before its decode steps were captured, and
    while they were."""

    def __init__(self, model: Model, met: Variants, max_rows: int) -> None:
        super().__init__(model, max_rows, RerunCapture())
        self._met = met
        self.captured = Variants()

    def capture(self, *memory: Any) -> None:
        super().capture(*memory)
        self.captured = deepcopy(self._met)


def sampling_of(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0, 0, 0.8]),
        top_p=rng.choice([1.0, 0.9]),
        presence_penalty=rng.choice([0.0, 0.0, 0.5]),
        max_tokens=rng.randint(4, 60),
        ignore_eos=True,
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("steps", "options"),
    [
        (100, {}),
        (60, DRAFTS),
        pytest.param(1000, {}, marks=pytest.mark.chaos),
        pytest.param(1000, DRAFTS, marks=pytest.mark.chaos),
        pytest.param(1000, EAGER, marks=pytest.mark.chaos),
    ],
    ids=["few", "drafts", "many", "many-drafts", "many-eager"],
)
def test_random_steps_meet_no_variant_that_the_start_has_not_met(
    family: str, steps: int, options: dict[str, Any], tmp_path: Path
) -> None:
    at_start, later = variants_of(FAMILIES[family], tmp_path, steps, **options)
    assert not later, str(later)
    assert len(at_start.of) >= 10
    # Without captures, those of decode steps are among them.
    assert len(at_start) <= (2 * MOST if options == EAGER else MOST), str(at_start)
    varying = set().union(*(at_start.varying(kernel) for kernel in at_start.of))
    assert varying <= TILES | OF_LAYERS | FILTERS | REPLAYED, str(at_start)


def test_each_name_means_the_same_in_every_kernel() -> None:
    """`kernel` goes by names: what varies in one kernel must not be a size in another."""
    assert not INDICES & COUNTS
    assert not (INDICES | COUNTS) & (TILES | OF_LAYERS)
