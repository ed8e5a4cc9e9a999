"""Runs a model step by step without a scheduler: batches made by hand, pools of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.engine.layout.owners import Owner
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.step.forward_batch import ForwardBatch, HostLengths
from baton.engine.step.model import Model


@dataclass
class Row:
    """One sequence that the driver runs: its slot, its pages, and how much of it is computed."""

    slot: int
    read_slot: int  # another's, until its own has been written
    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    computed: int = 0


class StepDriver:
    """Everything that no row owns holds NaN, the padding slot and page too."""

    def __init__(
        self,
        model: Model,
        slots: int = 12,
        pages: int = 128,
        page_size: int = 16,
        device: torch.device | None = None,
    ):
        config, device = model.config, device or torch.device("cpu")
        self.model = model
        self.device = device
        self.page_size = page_size
        slot_layout = SlotLayout(config.recurrent, config.conv_dtype, config.ssm_dtype)
        self.states = StatePool(slot_layout, slots, device)
        self.pages = PagePool(PageLayout(config.attention, page_size, config.dtype), pages, device)
        for pool in self.pools():
            pool.fill_(torch.nan)
        self.tables = torch.zeros((slots, pages), dtype=torch.int32, device=device)  # a row a slot

    def pools(self) -> list[Tensor]:
        """Every typed view of the state and page pools."""
        ssm = [pool for pool in self.states.ssm if pool is not None]
        return [*self.states.conv, *ssm, *self.pages.k, *self.pages.v, *self.pages.latents]

    def start(self, tokens: Sequence[int]) -> Row:
        slot = self.states.ids.take(Owner.LIVE)
        assert slot is not None
        return Row(slot, slot, list(tokens))

    def branch(self, row: Row, tokens: Sequence[int]) -> Row:
        """A row that goes on with `tokens` from where `row` is: its slot is read, not copied.

        `row` must end on a page's end, so that full pages are shared.
        """
        assert row.computed == len(row.tokens) and row.computed % self.page_size == 0
        other = self.start([*row.tokens, *tokens])
        other.read_slot, other.pages, other.computed = row.slot, list(row.pages), row.computed
        return other

    def unowned(self) -> list[Tensor]:
        """Copies of what no row owns, as bytes: slots, then pages; the padding ones too."""
        copies = []
        for pool in (self.states, self.pages):
            free = [i for i in range(pool.ids.size) if pool.ids.owner(i) is Owner.FREE]
            copies.append(pool.storage[free].clone())
        return copies

    def step(
        self, decode: Sequence[Row] = (), prefill: Sequence[tuple[Row, int]] = ()
    ) -> list[Tensor]:
        """One forward: `decode` rows of one token, then (sequence, tokens) prefill rows.

        Returns each row's logits [its tokens, vocab] float32.
        """
        rows = [(seq, 1) for seq in decode] + list(prefill)
        batch = self.batch(rows, len(decode))
        logits = self.model.forward(batch, self.states, self.pages)
        for seq, count in rows:
            seq.computed += count
            seq.read_slot = seq.slot
        return list(torch.split(logits, [count for _, count in rows]))

    def prefill(self, seq: Row, chunk: int | None = None) -> Tensor:
        """All of `seq` that is not computed, in chunks: logits [its tokens, vocab]."""
        logits = []
        while left := len(seq.tokens) - seq.computed:
            logits += self.step(prefill=[(seq, min(left, chunk or left))])
        return torch.cat(logits)

    def greedy(self, seqs: Sequence[Row], logits: Sequence[Tensor], count: int) -> None:
        """Append `count` greedy tokens to each, the first of each from its last logits."""
        for step in range(count):
            for seq, row in zip(seqs, logits, strict=True):
                seq.tokens.append(int(row[-1].argmax()))
            if step + 1 < count:
                logits = self.step(decode=seqs)

    def batch(
        self,
        rows: Sequence[tuple[Row, int]],
        decode_rows: int,
        logit_tokens: Sequence[int] | None = None,
    ) -> ForwardBatch:
        """(row, tokens of it) one after another; logits of all tokens, or of `logit_tokens`."""
        cu_seqlens = [0]
        positions: list[int] = []
        tokens: list[int] = []
        token_pages: list[int] = []
        for seq, count in rows:
            end = seq.computed + count
            while len(seq.pages) * self.page_size < end:
                page = self.pages.ids.take(Owner.LIVE)
                assert page is not None
                seq.pages.append(page)
            places = range(seq.computed, end)
            cu_seqlens.append(cu_seqlens[-1] + count)
            positions += places
            tokens += seq.tokens[seq.computed : end]
            token_pages += [seq.pages[place // self.page_size] for place in places]
        kv_lens = tuple(seq.computed + count for seq, count in rows)
        host = HostLengths(
            cu_seqlens=tuple(cu_seqlens),
            prefix_lens=tuple(seq.computed for seq, _ in rows),
            kv_lens=kv_lens if self.model.needs_cpu_seq_lens else (),
            has_initial=tuple(seq.computed > 0 for seq, _ in rows),
        )
        put = partial(torch.tensor, device=self.device)
        for seq, _ in rows:
            self.tables[seq.slot, : len(seq.pages)] = put(seq.pages, dtype=torch.int32)
        wanted = range(cu_seqlens[-1]) if logit_tokens is None else logit_tokens
        return ForwardBatch(
            token_ids=put(tokens),
            positions=put(positions),
            cu_seqlens=put(cu_seqlens),
            kv_lens=put(kv_lens),
            read_slots=put([seq.read_slot for seq, _ in rows]),
            write_slots=put([seq.slot for seq, _ in rows]),
            has_initial=put(host.has_initial),
            block_tables=self.tables,
            table_rows=put([seq.slot for seq, _ in rows]),
            token_pages=put(token_pages),
            token_offsets=put([place % self.page_size for place in positions]),
            logit_tokens=put(wanted, dtype=torch.int64),
            decode_rows=decode_rows,
            host=host,
            index=self.model.plan(host, decode_rows, None).on(self.device),
        )
