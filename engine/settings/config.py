"""A model's configuration, in our own terms, and the engine's options."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from baton.engine.layout.layout import CacheShape, RecurrentShape
from baton.engine.settings.choices import (
    CPU_MAX_RUNNING,
    CPU_MEMORY_FRACTION,
    DRAFT_TOKENS,
    GPU_MAX_RUNNING,
    GPU_MEMORY_FRACTION,
    WINDOWS,
    MixedBudget,
    MtpRecycle,
    SpeculativeAlgorithm,
)
from baton.engine.settings.options import EngineOptions
from baton.engine.settings.quantisation import UNQUANTISED, Quantisation
from baton.kernels.kernel_choice import KernelChoice


class Mixer(StrEnum):
    """The operation with which a layer mixes tokens."""

    ATTENTION = "attention"
    MLA = "mla"  # attention over latents
    MAMBA2 = "mamba2"
    GATED_DELTA_NET = "gated_delta_net"
    KDA = "kda"  # a gated delta net that decays each key channel alone
    SHORT_CONV = "short_conv"


@dataclass(frozen=True)
class ModelConfig:
    """A model's configuration, read from a Hugging Face folder by `models.family_table`.

    Family-specific numbers stay in `raw`, for that family's own file to read.
    """

    family: str  # `model_type` of config.json
    folder: Path
    vocab_size: int
    hidden_size: int
    max_model_len: int  # max_position_embeddings
    layers: tuple[tuple[Mixer, ...], ...]  # each layer's mixers: none, one, or two side by side
    recurrent: tuple[RecurrentShape, ...]  # one a recurrent mixer, in order
    attention: tuple[CacheShape, ...]  # one an attention or latent attention mixer, in order
    mamba_chunk_size: int  # kernel chunk K, tokens; 1 where no kernel cuts a row
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype  # of weights and activations
    conv_dtype: torch.dtype
    ssm_dtype: torch.dtype
    raw: dict[str, Any] = field(repr=False, hash=False, compare=False)
    query_heads: int = 0  # of an attention layer; the memory plan's
    # The model's layer of multi-token prediction is run. It comes last in `attention`, and in
    # `recurrent` the hidden state of the last token, which it goes on from.
    mtp: bool = False
    mtp_recycle: MtpRecycle = MtpRecycle.AFTER_NORM  # the family's, or the operator's
    expanded_latent: int = 0  # values that prompts expand a cached latent to; 0: no latents
    quantisation: Quantisation = UNQUANTISED

    def part(self, rank: int, size: int) -> "ModelConfig":
        """Return the configuration with the states of tensor-parallel rank `rank` of `size`. Raises
        ConfigError.
        """
        if size == 1:
            return self
        return replace(
            self,
            recurrent=tuple(shape.shard(rank, size) for shape in self.recurrent),
            attention=tuple(shape.shard(rank, size) for shape in self.attention),
            query_heads=self.query_heads // size,
            expanded_latent=self.expanded_latent // size,
        )

    @cached_property
    def mixers(self) -> frozenset[Mixer]:
        """The mixers that any layer has."""
        return frozenset(mixer for mixers in self.layers for mixer in mixers)


@dataclass(frozen=True)
class EngineConfig(EngineOptions):
    """The settings of one engine: the operator's options, and what depends on model and cluster.
    Set once, at start.

    Large because each option is one field.
    """

    model: Path
    dtype: torch.dtype = torch.float32
    ssm_dtype: torch.dtype = torch.float32
    device: str = "cpu"
    workers_on_host: int = 1  # the budget, on a CPU, is divided by them and their ranks
    tickets: int = 0  # hand-offs that may be under way into this engine
    # Of the budget, for buffers in which transfers bring KV of other numbers of ranks together.
    staging_bytes: int = 0
    threads: int | None = None  # compute threads, of all ranks together; None: torch's
    tp: int = 1  # tensor-parallel ranks of the replica, a process each
    # Run the model's layer of multi-token prediction in every step, as drafts by it need. None: if
    # the model's files have one.
    mtp: bool | None = False
    speculative_algorithm: SpeculativeAlgorithm = SpeculativeAlgorithm.OFF
    # Tokens that a step verifies of a request: the newest, and guesses; at least 2.
    speculative_num_draft_tokens: int = DRAFT_TOKENS
    speculative_eagle_topk: int = 1  # ways in which a request may go on; 1: guesses are a chain
    # Guesses behind one another in each way, at most; None: as many as are verified.
    speculative_num_steps: int | None = None
    # Tokens that end answers beside those of the model's folder: of --chat-template.
    end_ids: tuple[int, ...] = ()

    @property
    def conv_dtype(self) -> torch.dtype:
        """The dtype of the windows of convolutions. Native kernels convolve float32 inputs: if the
        window were rounded, a prompt would have other bits wherever it is cut.
        """
        native = self.device == "cpu" and self.kernels is KernelChoice.AUTO
        return torch.float32 if native else self.dtype

    @property
    def on_gpu(self) -> bool:
        """True where the replica computes on GPUs."""
        return self.device != "cpu"

    @property
    def most_running(self) -> int:
        """The most requests that decode at once."""
        default = GPU_MAX_RUNNING if self.on_gpu else CPU_MAX_RUNNING
        return default if self.max_running is None else self.max_running

    @property
    def fraction(self) -> float:
        """The part of the memory that the engine may take; see `memory_fraction`."""
        default = GPU_MEMORY_FRACTION if self.on_gpu else CPU_MEMORY_FRACTION
        return default if self.memory_fraction is None else self.memory_fraction

    @property
    def host_tier_bytes(self) -> int:
        """Bytes of the host's memory for copies of cached prefixes; 0: none are kept."""
        return self.host_cache_bytes + self.host_cache_state_bytes

    @property
    def window(self) -> int:
        """Tokens that a step computes of a request that decodes, at most, with padding."""
        return next((size for size in WINDOWS if size >= self.draft_tokens), self.draft_tokens)

    @property
    def draft_tokens(self) -> int:
        """Tokens that a step verifies of a request, its newest one among them."""
        if self.speculative_algorithm is SpeculativeAlgorithm.OFF:
            return 1
        return self.speculative_num_draft_tokens

    @property
    def trees(self) -> bool:
        """True if steps verify trees of guesses."""
        return self.draft_tokens > 1 and self.speculative_eagle_topk > 1

    @property
    def draft_depth(self) -> int:
        """Guesses behind one another, at most."""
        most = self.draft_tokens - 1
        return most if self.speculative_num_steps is None else min(self.speculative_num_steps, most)

    @property
    def for_answers(self) -> "EngineConfig":
        """The options of an engine that computes prompts beside answers, and that others compute
        prompts for.
        """
        return replace(self, prefill_beside_decode=self.prefill_beside_decode or MixedBudget.AUTO)

    @property
    def for_prompts(self) -> "EngineConfig":
        """The options of an engine that only computes prompts. It verifies no drafts."""
        return replace(
            self, speculative_algorithm=SpeculativeAlgorithm.OFF, speculative_ngram_capacity=0
        )
