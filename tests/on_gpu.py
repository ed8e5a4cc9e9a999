"""CPU tensors that say that they lie on a GPU, for tests on machines without one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

GPU = torch.device("cuda", 0)


class OnGpu(torch.Tensor):
    """A tensor whose bytes lie in the CPU's memory, and which behaves as one of a GPU does: its
    views are such tensors too, numpy cannot read it, and `cpu` makes an ordinary one.
    """

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU

    def numpy(self, *, force: bool = False) -> NoReturn:
        raise TypeError(f"can't convert {GPU} device type tensor to numpy")

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.cpu:
            return result.clone().as_subclass(torch.Tensor)
        return result


def on_gpu(tensor: Tensor) -> Tensor:
    """Return the tensor's own bytes, as if they lay on a GPU."""
    return tensor.as_subclass(OnGpu)
