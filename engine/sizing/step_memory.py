"""The memory that steps take beside weights and pools. A pure function of numbers."""

from dataclasses import dataclass
from math import prod

from baton.engine.layout.batch_sizes import kept_bytes
from baton.engine.layout.layout import AttentionShape, LatentShape
from baton.engine.settings.choices import windows_up_to
from baton.engine.settings.config import ModelConfig
from baton.kernels.scratch import (
    EXPANDED_ON_CPU,
    EXPANDED_ON_GPU,
    HEADS_OF_LATENT,
    most_parts,
    parts_bytes,
)

SCORED_ROWS = 256  # rows of logits for prompt scores that a step may want beside its draws
_COPIES_OF_LOGITS = 3  # raw, for log probabilities; penalised; and what a kernel makes of them
_FLOAT32, _INT64 = 4, 8


@dataclass(frozen=True)
class StepMemory:
    """Estimates of the bytes that the largest step takes, by what takes them. They are generous:
    intermediates in float32, of which none is reused.

    running: requests that decode at once. prompt_tokens: of one step. context: tokens of the
    longest sequence.
    """

    model: ModelConfig
    device: str
    running: int
    prompt_tokens: int
    context: int
    window: int = 1  # tokens that a step computes of a request that decodes
    captures: bool = True  # decode steps are captured on a GPU
    trees: bool = False  # the tokens of a request may be a tree

    @property
    def total(self) -> int:
        parts = self.activations, self.logits, self.attention, self.latents, self.graphs, self.kept
        return sum(parts) + self.links

    @property
    def rows(self) -> int:
        """Tokens of the requests that decode."""
        return self.running * self.window

    @property
    def kept_tokens(self) -> int:
        """Tokens whose inputs are kept for the commit: 0 where steps verify nothing."""
        return self.rows if self.window > 1 else 0

    @property
    def kept(self) -> int:
        """Bytes of what verified tokens keep for the commit of those that are right: in each
        recurrent layer the convolution's inputs, decays and rates."""
        return self.kept_token * self.kept_tokens

    @property
    def links(self) -> int:
        """Bytes of the links of trees: a word a node, whatever the context."""
        return _INT64 * self.kept_tokens if self.trees else 0

    @property
    def kept_token(self) -> int:
        """Bytes that a verified token keeps, of all recurrent layers."""
        return self._item * sum(layer.kept for layer in self.model.recurrent)

    @property
    def activations(self) -> int:
        """Bytes of one layer's intermediates, and of its prompts' states at the ends of chunks."""
        model = self.model
        tokens = self.prompt_tokens + self.rows
        chunk = model.mamba_chunk_size
        states = 0
        for layer in model.recurrent:
            states = max(states, (tokens // chunk + self.running + 1) * prod(layer.ssm or (0,)))
        return _FLOAT32 * (tokens * self._widest + 2 * states)

    @property
    def logits(self) -> int:
        """Bytes of the logits of all drawn and scored tokens, and of what sampling makes of
        them."""
        rows = self.rows + SCORED_ROWS
        return _FLOAT32 * _COPIES_OF_LOGITS * rows * self.model.vocab_size

    @property
    def attention(self) -> int:
        """Bytes of what the parts of decode rows' contexts give in one layer. A CPU's kernels have
        no parts. Captured steps and others have memory of their own."""
        if not self._on_gpu:
            return 0
        return 2 * max(map(self._parts_bytes, set(self.model.attention)), default=0)

    def _parts_bytes(self, shape: AttentionShape | LatentShape) -> int:
        heads = self.model.query_heads
        if isinstance(shape, LatentShape):
            width, groups = shape.width, -(-heads // HEADS_OF_LATENT)
        else:
            width, groups = shape.head_dim, shape.kv_heads
        return parts_bytes(self.rows, heads, width, self.context, most_parts(groups))

    @property
    def latents(self) -> int:
        """Bytes of the keys and values that prompts expand latents to, some heads at a time."""
        at_once = EXPANDED_ON_GPU if self._on_gpu else EXPANDED_ON_CPU
        most = self.running * self.context * self.model.expanded_latent
        return min(at_once, most) * self._item

    @property
    def gathered_token_bytes(self) -> int:
        """Bytes that a cached token takes while a step's prompts gather one layer's latents of
        their contexts."""
        widths = [s.width for s in self.model.attention if isinstance(s, LatentShape)]
        return max(widths, default=0) * self._item

    @property
    def graphs(self) -> int:
        """Bytes of the steps that a GPU captures: inputs and logits of each size, and intermediates
        of the largest."""
        if not (self._on_gpu and self.captures):
            return 0
        windows = windows_up_to(self.window)
        drafts = self.model.mtp and bool(windows)
        kept = kept_bytes(self.running, self.model.vocab_size, windows, drafts=drafts)
        return kept + _FLOAT32 * self.running * self._widest

    @property
    def _widest(self) -> int:
        """Values a token, of all intermediates of the widest layer together."""
        model = self.model
        recurrent = 0
        for layer in model.recurrent:
            heads = layer.ssm[0] if layer.ssm else 0
            recurrent = max(recurrent, 6 * layer.conv[0] + heads * model.mamba_chunk_size)
        return 16 * model.hidden_size + recurrent

    @property
    def _on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def _item(self) -> int:
        """Bytes of a value that prompts attend to: a CPU's kernels compute in float32."""
        return self.model.dtype.itemsize if self._on_gpu else _FLOAT32
