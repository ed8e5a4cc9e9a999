"""Abstract kernels of recurrent mixers that compute several tokens a row before it is known how
many of them are right; see baton.kernels.verify.

Attention needs none of its own: each token is a row of a decode step, with its own length.
"""

from abc import ABC, abstractmethod

from torch import Tensor

from baton.kernels.delta_mixer import DeltaInputs, DeltaLayers, DeltaWeights
from baton.kernels.mamba2 import Mamba2Layers, Mamba2Weights
from baton.kernels.verify import Accepted


class SpeculationKernels(ABC):
    """Kernels that verify Q tokens a row without writing a state, and commit those accepted: verify
    layer by layer, commit all layers of a kind at once.

    Token t of row r is token r * Q + t. The outputs and states are those of single steps.
    """

    @abstractmethod
    def guess_ngrams(
        self,
        tokens: Tensor,
        rows: Tensor,
        ends: Tensor,
        searched: int,
        sizes: tuple[int, int],
        most: int,
    ) -> tuple[Tensor, Tensor]:
        """Guess how B sequences go on: as they did where their newest n-gram occurred last, the
        longest that has occurred before.

        tokens:   [N, length] int32, a sequence a row; past its end anything
        rows:     [B] int64 into N
        ends:     [B] int64, tokens of the sequences, 1 to length
        searched: tokens of a sequence, its newest ones, that are looked at
        sizes:    of the shortest and the longest n-gram
        most:     tokens to guess
        returns   tokens [B, most] int64, zeros where none are guessed; how many of each row are
                  guessed [B] int64, `most` or 0
        """

    @abstractmethod
    def guess_tree(
        self,
        tokens: Tensor,
        rows: Tensor,
        ends: Tensor,
        searched: int,
        sizes: tuple[int, int],
        most: int,
        branches: int,
        depth: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Guess several ways in which each of B sequences goes on: as it did where its newest
        n-gram occurred, the longest first, and of these the last. They are one tree, whose nodes
        come level by level. Of each sequence 64 places are looked at, at most.

        tokens, rows, ends, searched, sizes: as in guess_ngrams
        most:     nodes of a tree, up to 63
        branches: ways that are looked for
        depth:    tokens of each
        returns   tokens [B, most] int64; [B, most] int64, of each node the bits of those that it
                  follows, and its own: bit 0 is the newest token's, bit 1 the first node's; how
                  many nodes each row has [B] int64, zeros behind them
        """

    @abstractmethod
    def gated_conv_verify(
        self,
        bcx: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        conv_pool: Tensor,
        read_slots: Tensor,
        has_initial: Tensor | None,
        kept: Tensor,
        nodes: Tensor | None = None,
    ) -> Tensor:
        """Compute LFM2's gated convolution of Q tokens a row.

        bcx:         [B Q, 3 C] float, or [B Q, C], as in gated_conv_step
        weight, bias, conv_pool: as in gated_conv_step; the pool is not written
        read_slots:  [B] int64; 0 for padding rows
        has_initial: [B] bool; False: start from zeros, whatever the read slot holds. None: all True
        kept:        [B Q, C], dtype of bcx; set to the inputs of the convolution
        nodes:       [B Q] int64, of the nodes of a tree a row: bit i of a token is set where token
                     i of its row is one that it follows, or itself. Each token comes after those
                     that it follows. None: each follows the one before. Only where `trees`
        returns      [B Q, C], dtype of bcx
        """

    @abstractmethod
    def gated_conv_commit(
        self, kept: Tensor, width: int, conv_pools: Tensor, accepted: Accepted
    ) -> None:
        """Move the windows of L layers on by the accepted tokens.

        kept:       [L, B Q, C] float, of gated_conv_verify; strided over layers
        width:      taps of the convolution
        conv_pools: [L, slots, C, width - 1] float, strided over layers and slots; written in place
        """

    @abstractmethod
    def mamba2_verify(
        self,
        weights: Mamba2Weights,
        zxbcdt: Tensor,
        conv_pool: Tensor,
        ssm_pool: Tensor,
        read_slots: Tensor,
        has_initial: Tensor | None,
        kept: Tensor,
        nodes: Tensor | None = None,
    ) -> Tensor:
        """Compute a Mamba-2 mixer of Q tokens a row.

        zxbcdt:  [B Q, H P + C + H] float, as in mamba2_step
        conv_pool, ssm_pool: as in mamba2_step; not written
        read_slots, has_initial, nodes: as in gated_conv_verify
        kept:    [B Q, C + H], dtype of zxbcdt; set to its columns x B C and dt
        returns  [B Q, H P], dtype of zxbcdt
        """

    @abstractmethod
    def mamba2_commit(
        self,
        layers: Mamba2Layers,
        kept: Tensor,
        conv_pools: Tensor,
        ssm_pools: Tensor,
        accepted: Accepted,
    ) -> None:
        """Write the states of L layers after the accepted tokens.

        kept:       [L, B Q, C + H] float, of mamba2_verify; strided over layers. What it holds
                    afterwards is undefined
        conv_pools, ssm_pools: [L, slots, ...], strided over layers and slots, else as in
                    mamba2_step; written in place
        """

    @abstractmethod
    def gated_delta_verify(
        self,
        weights: DeltaWeights,
        inputs: DeltaInputs,
        conv_pool: Tensor,
        state_pool: Tensor,
        read_slots: Tensor,
        has_initial: Tensor | None,
        kept: Tensor,
        nodes: Tensor | None = None,
    ) -> Tensor:
        """Compute a gated-delta mixer of Q tokens a row.

        inputs:  Q tokens a row
        conv_pool, state_pool: as in gated_delta_step; not written
        read_slots, has_initial, nodes: as in gated_conv_verify
        kept:    [B Q, C + Hv + n], dtype of the inputs; set to their qkv, b and a, which have C, Hv
                 and n columns
        returns  [B Q, Hv V], dtype of the inputs
        """

    @abstractmethod
    def gated_delta_commit(
        self,
        layers: DeltaLayers,
        kept: Tensor,
        conv_pools: Tensor,
        state_pools: Tensor,
        accepted: Accepted,
    ) -> None:
        """Write the states of L layers after the accepted tokens.

        kept:       [L, B Q, C + Hv + n] float, of gated_delta_verify; strided over layers. What it
                    holds afterwards is undefined
        conv_pools, state_pools: [L, slots, ...], strided over layers and slots, else as in
                    gated_delta_step; written in place
        """
