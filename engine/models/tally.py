"""The bytes that a model takes."""

from dataclasses import dataclass


@dataclass
class Tally:
    """Bytes of the tensors that a model has taken, mapped or copied."""

    nbytes: int = 0
    eight_bit_bytes: int = 0  # of these, of matrices that stay in 8 bits

    def add_eight_bit(self, nbytes: int) -> None:
        """Count the bytes of a matrix that stays in 8 bits."""
        self.nbytes += nbytes
        self.eight_bit_bytes += nbytes
