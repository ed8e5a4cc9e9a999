"""Abstract kernels of recurrent mixers, which read and write slots of the state pools.

A row reads its state from its read slot and leaves the new state in its write slot. If the two
differ, the read slot is not written. Slot 0 is padding.

Prompts are planned in two steps. `plan_*_prefill` takes host integers alone and is called once a
batch; the plan it returns is then bound to the rows on the device (`HostPlan.build`) and called
once a layer.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from baton.kernels.chunks import SnapshotPlan
from baton.kernels.conv1d import GatedConvRows
from baton.kernels.delta_mixer import DeltaInputs, DeltaRows, DeltaWeights
from baton.kernels.host_plan import HostPlan
from baton.kernels.mamba2 import Mamba2Rows, Mamba2Weights


class RecurrentKernels(ABC):
    """Kernels of gated convolutions, Mamba-2 and gated-delta mixers."""

    @abstractmethod
    def gated_conv_step(
        self,
        bcx: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        conv_pool: Tensor,
        read_slots: Tensor,
        write_slots: Tensor,
        has_initial: Tensor | None,
    ) -> Tensor:
        """Advance LFM2's gated convolution by one token a row: C * convolution(B * x), in float32.

        bcx:         [B, 3 C] float: B, C and x, of C channels each; or [B, C]: x alone, whose
                     convolution is the result
        weight:      [C, W] float; the last column multiplies the newest input
        bias:        [C] float, or None
        conv_pool:   [slots, C, W - 1] float, strided over slots; written in place
        read_slots, write_slots: [B] int64; 0 for padding rows
        has_initial: [B] bool; False: start from zeros, whatever the read slot holds. None: all True
        returns      [B, C], dtype of bcx
        """

    @abstractmethod
    def plan_gated_conv_prefill(
        self,
        cu_seqlens_host: Sequence[int],
        prefix_lens_host: Sequence[int],
        width: int,
        snapshots: SnapshotPlan | None,
    ) -> HostPlan[GatedConvRows]:
        """Plan the gated convolutions of a batch of prompts.

        cu_seqlens_host:  [B + 1], packed token where each row begins
        prefix_lens_host: [B], absolute depth of each row's first token
        width:            taps of the convolution
        snapshots:        windows to keep at inner depths, in slots of their own
        """

    @abstractmethod
    def mamba2_step(
        self,
        weights: Mamba2Weights,
        zxbcdt: Tensor,
        conv_pool: Tensor,
        ssm_pool: Tensor,
        read_slots: Tensor,
        write_slots: Tensor,
        has_initial: Tensor | None,
    ) -> Tensor:
        """Advance a Mamba-2 mixer by one token a row: convolution, state, gate and
        norm, in float32.

        zxbcdt:    [B, H P + C + H] float, the input projection: z, then x B C, then dt (raw)
        conv_pool: [slots, C, W - 1] float, strided over slots; written in place
        ssm_pool:  [slots, H, P, N] float, strided over slots; written in place
        read_slots, write_slots, has_initial: as in gated_conv_step
        returns    [B, H P], dtype of zxbcdt
        """

    @abstractmethod
    def plan_mamba2_prefill(
        self,
        cu_seqlens_host: Sequence[int],
        prefix_lens_host: Sequence[int],
        width: int,
        chunk_size: int,
        snapshots: SnapshotPlan | None,
    ) -> HostPlan[Mamba2Rows]:
        """Plan the Mamba-2 mixers of a batch of prompts.

        chunk_size: the model's; chunks are cut at its absolute multiples, or finer
        snapshots:  states to keep at multiples of `chunk_size` or at a row's end
        cu_seqlens_host, prefix_lens_host, width: as in plan_gated_conv_prefill
        """

    @abstractmethod
    def gated_delta_step(
        self,
        weights: DeltaWeights,
        inputs: DeltaInputs,
        conv_pool: Tensor,
        state_pool: Tensor,
        read_slots: Tensor,
        write_slots: Tensor,
        has_initial: Tensor | None,
    ) -> Tensor:
        """Advance a gated-delta mixer by one token a row: convolution, state, norm and gate, in
        float32.

        inputs:     one token a row
        conv_pool:  [slots, C, W - 1] float, strided over slots; written in place
        state_pool: [slots, Hv, K, V] float, strided over slots; written in place
        read_slots, write_slots, has_initial: as in gated_conv_step
        returns     [B, Hv V], dtype of the inputs
        """

    @abstractmethod
    def plan_delta_prefill(
        self,
        cu_seqlens_host: Sequence[int],
        prefix_lens_host: Sequence[int],
        width: int,
        snapshots: SnapshotPlan | None,
    ) -> HostPlan[DeltaRows]:
        """Plan the gated-delta mixers of a batch of prompts.

        snapshots: states to keep at multiples of gated_delta.CHUNK or at a row's end
        cu_seqlens_host, prefix_lens_host, width: as in plan_gated_conv_prefill
        """
