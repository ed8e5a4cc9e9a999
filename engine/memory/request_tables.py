"""The facts about running requests that forwards find on the device: pages and tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.sampling_params import MAX_STOP_TOKEN_IDS
from baton.engine.memory.id_pool import IdPool
from baton.kernels.sampling import IN_PROMPT

MOST_END_IDS = 128
"""End tokens of a model, at most."""
STOP_IDS = MAX_STOP_TOKEN_IDS + MOST_END_IDS
"""Entries of a row of stop tokens."""


@dataclass(frozen=True)
class TableSizes:
    """The sizes of request tables.

    rows: with the padding row. width: pages of the longest sequence. length: its tokens.
    """

    rows: int
    width: int
    length: int
    vocab_size: int

    @property
    def nbytes(self) -> int:
        return self.rows * (4 * (self.width + self.length + self.vocab_size) + 8 * (2 + STOP_IDS))


class RequestTables:
    """A row for each running request; row 0 is for padding rows of a step.

    ids: the rows, and which are free.
    pages: [rows, width] int32, the block tables: entry i is the page of a request's tokens from
           i * page_size on. It stays at its address: recorded steps and graphs keep that. Entries
           past a request's pages are what earlier requests left there.
    tokens: [rows, length] int32, prompt and output as far as they are sampled.
    lengths: [rows] int64, tokens of prompt and output, with those that a step under way samples.
    prompts: [rows] int64, tokens of the prompt.
    counts: [rows, vocab] int32, of requests with penalties: occurrences in the output, plus
            IN_PROMPT where the prompt counts and has the token.
    stop_ids: [rows, STOP_IDS] int64, of requests with a minimum length: tokens that must not come
              before it, each at least once.
    """

    def __init__(self, sizes: TableSizes, device: torch.device) -> None:
        rows = sizes.rows
        self.ids = IdPool(rows, "table row")
        self.pages = torch.zeros((rows, sizes.width), dtype=torch.int32, device=device)
        self.tokens = torch.zeros((rows, sizes.length), dtype=torch.int32, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.prompts = torch.zeros(rows, dtype=torch.int64, device=device)
        self.counts = torch.zeros((rows, sizes.vocab_size), dtype=torch.int32, device=device)
        self.stop_ids = torch.zeros((rows, STOP_IDS), dtype=torch.int64, device=device)

    def set_pages(self, places: Tensor, pages: Tensor) -> None:
        """Write changed entries of the block tables, in the order of the stream.

        places: [n] int64, row * width + entry, each once. pages: [n] int64.
        """
        self.pages.view(-1).index_copy_(0, places, pages.int())

    def begin(self, row: int, tokens: Tensor) -> None:
        """Write the tokens that a request comes with. tokens: [n] int32."""
        self.tokens[row, : tokens.shape[0]].copy_(tokens)

    def begin_lengths(self, rows: Tensor, lengths: Tensor, prompts: Tensor) -> None:
        """Write how many tokens requests come with, and how many of those are prompt: [n] int64."""
        self.lengths.index_copy_(0, rows, lengths)
        self.prompts.index_copy_(0, rows, prompts)

    def advance(self, rows: Tensor, ends: Tensor) -> None:
        """Begin a step that samples a token for each of `rows` [n] int64.

        ends: [n] int64, set to the lengths of the sequences before that token.
        """
        torch.index_select(self.lengths, 0, rows, out=ends)
        self.lengths.index_copy_(0, rows, ends + 1)

    def begin_counts(self, row: int, prompt: Tensor, output: Tensor) -> None:
        """Count the tokens that a request with penalties comes with.

        prompt, output: [n] int32; the prompt's is empty where it does not count.
        """
        counts = self.counts[row].zero_()
        counts.index_fill_(0, prompt.long(), IN_PROMPT)
        counts.index_add_(0, output.long(), torch.ones_like(output))

    def begin_stops(self, row: int, stop_ids: Tensor) -> None:
        """Write the tokens that a request's minimum length rules out. stop_ids: [STOP_IDS]."""
        self.stop_ids[row].copy_(stop_ids)

    def output_lengths(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Return how much of sequences of `ends` tokens is output; all are [n] int64."""
        return ends - self.prompts.index_select(0, rows)

    def tokens_at(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Return the tokens at `positions` of `rows`, both [n] int64: [n] int32."""
        return self.tokens.view(-1).index_select(0, rows * self.tokens.shape[1] + positions)

    def pages_at(self, rows: Tensor, entries: Tensor) -> Tensor:
        """Return the pages in `entries` of `rows`, both [n] int64: [n] int32."""
        return self.pages.view(-1).index_select(0, rows * self.pages.shape[1] + entries)

    def append(self, rows: Tensor, positions: Tensor, token_ids: Tensor) -> None:
        """Write a sampled token to each of `rows`. All are [n] int64."""
        places = rows * self.tokens.shape[1] + positions
        self.tokens.view(-1).index_copy_(0, places, token_ids.int())
