"""The device tensors of one step."""

from dataclasses import dataclass, field

from torch import Tensor

from baton.engine.step.layer_progress import LayerProgress
from baton.engine.step.recurrent_index import RecurrentIndex
from baton.kernels.chunks import SnapshotPlan


@dataclass(frozen=True)
class HostLengths:
    """Host copies of the lengths that kernels plan by. Rows are the step's rows, decode
    rows first.
    """

    cu_seqlens: tuple[int, ...]  # [rows + 1], token offsets of each row in the flat batch
    prefix_lens: tuple[int, ...]  # [rows], tokens computed before this step
    kv_lens: tuple[int, ...]  # [rows], prefix + this step's tokens; empty where none asks for it
    has_initial: tuple[bool, ...]  # [rows]

    def prefill(self, decode_rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return cu_seqlens, from 0, and prefix_lens of the rows after the decode rows, which have
        one token each.
        """
        cu_seqlens = tuple(end - decode_rows for end in self.cu_seqlens[decode_rows:])
        return cu_seqlens, self.prefix_lens[decode_rows:]


@dataclass(frozen=True)
class Window:
    """The verification of several tokens a decoding request in one step.

    kept: [most tokens, values] a recurrent layer, where a token's inputs go.
    nodes: [most tokens] int64, the links of trees, see `Kernels.gated_conv_verify`: written before
           the forward. None: tokens follow one another.
    """

    tokens: int  # of each decoding request, the last ones padding where it has fewer
    kept: tuple[Tensor, ...]
    nodes: Tensor | None = None


@dataclass(frozen=True)
class ForwardBatch:
    """The tensors of one step. `decode_rows` rows of one token each come first, then prefill rows.

    T tokens lie flat in row order. Everything is int64 unless said otherwise, and comes from one
    packed host-to-device copy.

    With a `window` each decoding request has `window.tokens` consecutive rows of one token, with a
    length each; state slots go by request.
    """

    token_ids: Tensor  # [T]
    positions: Tensor  # [T], absolute
    cu_seqlens: Tensor  # [rows + 1]
    kv_lens: Tensor  # [rows]
    read_slots: Tensor  # [requests], state slot index; ignored where has_initial is false
    write_slots: Tensor  # [requests], state slot index
    has_initial: Tensor  # [requests], bool
    block_tables: Tensor  # [any, max pages] int32, page index; past a row's pages anything
    table_rows: Tensor  # [rows], row of block_tables
    token_pages: Tensor  # [T], the page that takes each token's KV
    token_offsets: Tensor  # [T], its offset in that page
    logit_tokens: Tensor  # [L], flat token indices whose logits are wanted
    decode_rows: int
    host: HostLengths
    index: RecurrentIndex = field(default_factory=RecurrentIndex)  # what the model planned
    snapshots: SnapshotPlan | None = None  # of prefill rows, which count from 0 here
    progress: LayerProgress | None = None  # where a hand-off waits for the state of this step
    window: Window | None = None  # where decoding requests have several tokens

    @property
    def decode_requests(self) -> int:
        """Requests that decode: one a decode row, but where there is a window."""
        return self.decode_rows // (self.window.tokens if self.window is not None else 1)

    @property
    def kept(self) -> tuple[Tensor, ...]:
        """The part of the window's memory that this step uses, a recurrent layer each."""
        kept = () if self.window is None else self.window.kept
        return tuple(layer[: self.decode_rows] for layer in kept)

    @property
    def nodes(self) -> Tensor | None:
        """The part of the links of trees that this step uses: [decode rows] int64."""
        nodes = None if self.window is None else self.window.nodes
        return None if nodes is None else nodes[: self.decode_rows]

    @property
    def rows(self) -> int:
        return len(self.host.prefix_lens)

    @property
    def tokens(self) -> int:
        return self.host.cu_seqlens[-1]
