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
    """Every choice of experts (or groups of them) that torch makes inside of it, with its margin.

    A choice is nearly tied where its margin, the distance between the last that is taken and the
    first that is not, is so small that rounding may change it. `ties` counts them.
    """

    def __init__(self, turned: int | None = None) -> None:
        """turned: the number of the nearly tied choice that is made the other way."""
        super().__init__()
        self._margins: list[Tensor] = []
        self._turned = turned
        self.ties = 0

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
            ordered = args[0].sort(dim=-1, descending=True)
            if kept < ordered.values.shape[-1]:
                last, next_ = (ordered.values[..., at].double() for at in (kept - 1, kept))
                self._margins.append(last - next_)
                self._turn(out, ordered, kept)
        return out

    def _turn(self, out: Any, ordered: Any, kept: int) -> None:
        """Count the ties of a choice, and turn the one that is to be turned."""
        for place in (self._margins[-1] < 2 * CHOICE_ERROR).nonzero().tolist():
            if self.ties == self._turned:
                row = tuple(place)
                slot = out[1][row] == ordered.indices[row][kept - 1]
                out[0][row][slot] = ordered.values[row][kept]
                out[1][row][slot] = ordered.indices[row][kept]
            self.ties += 1

    def nearly_tied(self) -> bool:
        """Return whether rounding may change one of the choices."""
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
    """The reference's output in float64.

    logits:  [tokens, vocab] float64
    closest: [tokens] float64, see `Choices`
    ties:    nearly tied choices, in all layers and tokens
    """

    logits: Tensor
    closest: Tensor
    ties: int = 0

    def tied(self) -> Tensor:
        """[tokens] bool: from the first token on whose experts are nearly tied. What comes after it
        has it in its state."""
        return (self.closest < 2 * CHOICE_ERROR).cummax(dim=0).values


def exact(model: Any, ids: Sequence[int], turned: int | None = None) -> Exact:
    """Run `model`, the reference loaded in float64, over `ids`.

    turned: the nearly tied choice that is made the other way, as rounding may make it.
    """
    with torch.no_grad(), Choices(turned) as choices:
        out = model(torch.tensor([ids]), position_ids=torch.arange(len(ids))[None])
    return Exact(out.logits[0].double(), choices.closest(len(ids)), choices.ties)
