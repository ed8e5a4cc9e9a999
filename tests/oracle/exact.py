"""The reference in float64: what decides where float32 may round to something else.

Two things make transformers' float32 differ from the exact model by more than our bound, on one
prompt in a few thousand: an expert that was chosen by less than rounding moves its score, so that
another one is taken; and a head whose output is all but zero, which its norm magnifies.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# How far rounding moves what experts are chosen by. Measured: a choice that was decided by 3.6e-6
# in float64 went the other way in float32.
CHOICE_ERROR = 1e-5


class Choices(TorchFunctionMode):
    """Sees every choice of experts (or groups of them) that torch makes in it."""

    def __init__(self) -> None:
        super().__init__()
        self._margins: list[Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **kwargs or {})
        if func in (torch.topk, Tensor.topk):
            kept = out[0].shape[-1]
            ordered = args[0].sort(dim=-1, descending=True).values.double()
            if kept < ordered.shape[-1]:
                self._margins.append(ordered[..., kept - 1] - ordered[..., kept])
        return out

    def nearly_tied(self) -> bool:
        """Whether rounding may change one of them."""
        return any(bool((margin < 2 * CHOICE_ERROR).any()) for margin in self._margins)

    def closest(self, tokens: int) -> Tensor:
        """[tokens] float64: by how much the nearest choice of each was decided, in any layer;
        infinity where there was nothing to choose."""
        closest = torch.full((tokens,), torch.inf, dtype=torch.float64)
        for margin in self._margins:
            closest = torch.minimum(closest, margin.reshape(tokens, -1).amin(dim=1))
        return closest


@dataclass(frozen=True)
class Exact:
    """logits:  [tokens, vocab] float64
    closest: [tokens] float64, see `Choices`"""

    logits: Tensor
    closest: Tensor

    def tied(self) -> Tensor:
        """[tokens] bool: from the first token on whose experts are nearly tied. What comes after it
        has it in its state."""
        return (self.closest < 2 * CHOICE_ERROR).cummax(dim=0).values


def exact(model: Any, ids: Sequence[int]) -> Exact:
    """What `model`, the reference loaded in float64, says of every position of `ids`."""
    with torch.no_grad(), Choices() as choices:
        out = model(torch.tensor([ids]), position_ids=torch.arange(len(ids))[None])
    return Exact(out.logits[0].double(), choices.closest(len(ids)))
