"""The abstract class of all kernels that models and sampling call."""

from enum import StrEnum
from typing import ClassVar

from baton.kernels.interface.attention import AttentionKernels
from baton.kernels.interface.layers import LayerKernels
from baton.kernels.interface.recurrent import RecurrentKernels
from baton.kernels.interface.sampling import SamplingKernels
from baton.kernels.interface.speculation import SpeculationKernels
from baton.kernels.native.recorder import Native


class AttentionKind(StrEnum):
    """The contents of an attention layer's pages: keys and values, or latents."""

    PAGED = "paged"
    LATENT = "latent"


class Kernels(
    LayerKernels, AttentionKernels, RecurrentKernels, SpeculationKernels, SamplingKernels
):
    """One implementation of every kernel.

    Large because a model gets all its kernels from one object: one method a kernel, documented in
    kernels/interface.

    LEFT_TO_TORCH: names of the kernels that this implementation takes from TorchKernels
    replayable: decode launches the same work whatever the lengths are, so that one CUDA graph
            serves all lengths
    reads_fp8_words: products read 8-bit floats as `Fp8Words`
    trees:  several continuations of a row are verified at once: attention and recurrent mixers read
            `nodes`
    needs_cpu_seq_lens: kinds of attention that read the KV lengths on the host. A model that has
            none of these kinds gets no host lengths
    """

    LEFT_TO_TORCH: ClassVar[frozenset[str]] = frozenset()
    replayable: ClassVar[bool] = False
    reads_fp8_words: ClassVar[bool] = False
    trees: ClassVar[bool] = False
    needs_cpu_seq_lens: ClassVar[frozenset[AttentionKind]] = frozenset(AttentionKind)

    @property
    def native(self) -> Native | None:
        """Return the native library if these are its kernels. Activations are then float32."""
        return None

    @property
    def compilations(self) -> int | None:
        """Return the variants of kernels that this process has compiled so far; None where no
        launch compiles any."""
        return None
