"""A substitute for a CUDA graph on a CPU: it runs the captured function again."""

from collections.abc import Callable

from torch import Tensor


class RerunCapture:
    """A capture that computes the step again, into the result that it gave."""

    def __init__(self) -> None:
        self.captures = 0
        self.replays = 0

    def __call__(self, forward: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        self.captures += 1
        result = forward().clone()

        def replay() -> None:
            self.replays += 1
            result.copy_(forward())

        return replay, result
