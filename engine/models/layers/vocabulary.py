"""The embedding and the head, whose rows tensor-parallel ranks divide."""

from torch import Tensor

from baton.engine.layout.shards import SubBlock
from baton.engine.models.scope import Scope
from baton.kernels.linear import Matrix, Table


class Embedding:
    """Rows of a table by token id. table: [this rank's tokens, hidden]."""

    def __init__(
        self, scope: Scope, name: str, vocab_size: int, hidden: int, multiplied: bool
    ) -> None:
        """multiplied: the table is a matrix of products too, and kept in their form."""
        self.kernels = scope.kernels
        self.comm = scope.comm
        self.vocab = SubBlock("tokens of the vocabulary", vocab_size, uneven=True)
        self.own = scope.shard.held(self.vocab)
        name, shape, blocks = f"{name}.weight", (vocab_size, hidden), (self.vocab,)
        self.table: Table = scope.table(name, shape, blocks, multiplied)

    def __call__(self, ids: Tensor) -> Tensor:
        """Look up tokens. ids: [T] int64 -> [T, hidden], on every rank"""
        if len(self.own) == self.vocab.units:
            return self.kernels.embedding(ids, self.table)
        return self.comm.all_reduce(self.kernels.embedding(ids, self.table, self.own))


HEAD = "lm_head.weight"


class Head:
    """The logits of each token of the vocabulary, times `factor`."""

    def __init__(
        self, scope: Scope, embedding: Embedding, hidden: int, tied: bool, factor: float
    ) -> None:
        """tied: the embedding's table is the head's weight too."""
        self.kernels = scope.kernels
        self.comm = scope.comm
        self.factor = factor
        vocab, size = embedding.vocab, scope.shard.size
        self.widths = [vocab.places_of(rank, size) for rank in range(size)]
        self.weight: Matrix = embedding.table
        if not tied:
            self.weight = scope.product(HEAD, (vocab.units, hidden), (vocab,), vocabulary=True)

    def __call__(self, x: Tensor) -> Tensor:
        """Compute logits. x: [L, hidden] -> [L, vocab] float32 on rank 0; on others, the part of
        their own tokens
        """
        parts = self.kernels.linear(x, self.weight, None)  # gathered before they are widened
        logits = self.comm.gather(parts, self.widths).float()
        return self.kernels.scaled(logits, self.factor)
