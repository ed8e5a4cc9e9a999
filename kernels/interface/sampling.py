"""Abstract kernels that turn logits into tokens. R is the number of rows that sample in a step."""

from abc import ABC, abstractmethod

from torch import Tensor


class SamplingKernels(ABC):
    """Kernels of penalties and of the choice of a token. None reads the device on the host."""

    @abstractmethod
    def add_token_counts(self, counts: Tensor, rows: Tensor, token_ids: Tensor) -> None:
        """Count tokens in place.

        counts:    [S, V] int32
        rows:      [n] int64 into S
        token_ids: [n] int64; a pair of row and token may occur many times
        """

    @abstractmethod
    def apply_penalties(
        self,
        logits: Tensor,
        rows: Tensor,
        counts: Tensor,
        count_rows: Tensor,
        repetition: Tensor,
        presence: Tensor,
        frequency: Tensor,
    ) -> None:
        """Penalise tokens that were seen, in place, in the rows that ask for it.

        logits: [R, V] float32
        rows:   [n] int64 into R
        counts: [N, V] int32, occurrences of each token in the output, plus IN_PROMPT (see
                kernels.sampling) where the prompt has it
        count_rows: [n] int64 into N, a row each of `rows`
        repetition: [n] float32, divides positive and multiplies negative logits of tokens seen in
                    either (Keskar et al., 2019, arXiv:1909.05858); 1 is off
        presence:   [n] float32, subtracted once for each token of the output (OpenAI); 0 is off
        frequency:  [n] float32, subtracted for each occurrence in the output (OpenAI); 0 is off
        """

    @abstractmethod
    def sample_tokens(
        self,
        logits: Tensor,
        rows: Tensor,
        temperature: Tensor,
        seeds: Tensor,
        positions: Tensor,
        filters: tuple[Tensor, ...] | None,
    ) -> Tensor:
        """Choose the next token of every row: a draw for `rows`, the likeliest token for others.

        A draw is the argmax of logits / temperature plus Gumbel noise, whose distribution is the
        softmax. The noise depends on seed, position and token id alone (see kernels.philox).

        logits:      [R, V] float32, penalties applied
        rows:        [n] int64 into R, the rows that sample
        temperature: [n] float32, above 0
        seeds:       [n] int64
        positions:   [n] int64, index of the output token
        filters:     top_k [n] int64, top_p [n] and min_p [n] float32, as in
                     kernels.sampling.filter_logits; None: no row filters
        returns      [R] int64
        """
