"""The indices by which recurrent layers find the prefill rows of a step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from baton.engine.settings.config import Mixer, ModelConfig
from baton.kernels.base import Kernels
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.conv1d import GatedConvRows
from baton.kernels.delta_mixer import DeltaRows
from baton.kernels.host_plan import HostPlan
from baton.kernels.mamba2 import Mamba2Rows


@dataclass(frozen=True)
class RecurrentIndex:
    """The index of a step's prefill rows, shared by all layers. Built from the step's one copy."""

    conv: GatedConvRows | None = None  # where recurrent layers are convolutions alone
    mamba2: Mamba2Rows | None = None  # where they are Mamba-2
    delta: DeltaRows | None = None  # where they are gated delta nets
    shift: GatedConvRows | None = None  # of the hidden state that MTP goes on from


# Taps of the convolution that gives each token the hidden state of the one before it.
SHIFT_WIDTH = 2

NO_INDEX = HostPlan((), lambda _: RecurrentIndex())


def plan_recurrent(
    config: ModelConfig,
    kernels: Kernels,
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    snapshots: SnapshotPlan | None,
) -> HostPlan[RecurrentIndex]:
    """Plan what the model's recurrent layers need for the prefill rows of a step.

    cu_seqlens_host: [P + 1], the token where each prefill row begins, the first at 0.
    prefix_lens_host: [P], absolute depth of each row's first token
    """
    if not config.recurrent or not prefix_lens_host:
        return NO_INDEX
    lens = (cu_seqlens_host, prefix_lens_host)
    if not config.mtp:
        return _plan_mixers(config, kernels, *lens, snapshots)
    alone = len(config.recurrent) == 1  # the hidden state
    mixers = NO_INDEX if alone else _plan_mixers(config, kernels, *lens, snapshots)
    shift = kernels.plan_gated_conv_prefill(*lens, SHIFT_WIDTH, snapshots)

    def build(parts: Iterator[Tensor]) -> RecurrentIndex:
        return replace(mixers.build(parts), shift=shift.build(parts))

    return HostPlan((*mixers.lists, *shift.lists), build)


def _plan_mixers(
    config: ModelConfig,
    kernels: Kernels,
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    snapshots: SnapshotPlan | None,
) -> HostPlan[RecurrentIndex]:
    lens = (cu_seqlens_host, prefix_lens_host)
    width = config.recurrent[0].conv[1] + 1
    if Mixer.SHORT_CONV in config.mixers:
        conv = kernels.plan_gated_conv_prefill(*lens, width, snapshots)
        return HostPlan(conv.lists, lambda parts: RecurrentIndex(conv=conv.build(parts)))
    if config.mixers & {Mixer.GATED_DELTA_NET, Mixer.KDA}:
        delta = kernels.plan_delta_prefill(*lens, width, snapshots)
        return HostPlan(delta.lists, lambda parts: RecurrentIndex(delta=delta.build(parts)))
    mamba2 = kernels.plan_mamba2_prefill(*lens, width, config.mamba_chunk_size, snapshots)
    return HostPlan(mamba2.lists, lambda parts: RecurrentIndex(mamba2=mamba2.build(parts)))
