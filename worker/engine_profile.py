"""One torch profile of an engine's thread."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from baton.core.errors import RequestError

MAX_STEPS = 1000
MAX_SECONDS = 60.0
"""The bounds of one profile: torch keeps all that it records in memory until it ends."""


@dataclass(frozen=True)
class ProfileLimits:
    """The bounds and the content of one profile, which the client chooses. Raises RequestError."""

    steps: int  # it ends after so many steps of the engine
    seconds: float  # or after so much time
    with_stack: bool = False  # also Python's stacks
    record_shapes: bool = False  # also the shapes of inputs

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MAX_STEPS:
            raise RequestError(
                f"num_steps is {self.steps}; expected 1 to {MAX_STEPS}",
                "num_steps",
                f"1 to {MAX_STEPS}",
                str(self.steps),
            )
        if not 0 < self.seconds <= MAX_SECONDS:
            raise RequestError(
                f"timeout_s is {self.seconds:g}; expected more than 0, at most {MAX_SECONDS:g}",
                "timeout_s",
                f"at most {MAX_SECONDS:g}",
                f"{self.seconds:g}",
            )


class EngineProfile:
    """A profile from `start` to `stop`. All but `write` is called on the engine's thread, because
    torch records the thread that started it."""

    def __init__(self, limits: ProfileLimits, device: torch.device) -> None:
        self.limits = limits
        self.steps = 0
        """Steps that ended while it was recorded."""
        self.over = False
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            with_stack=limits.with_stack,
            record_shapes=limits.record_shapes,
        )
        self._span: record_function | None = None
        self._ends = time.monotonic() + limits.seconds

    def start(self) -> None:
        """Begin to record."""
        self._profile.start()
        self._begin_span()

    def step(self) -> bool:
        """Count a step that has ended. Return True if the profile is over with it."""
        if self.over:
            return False
        self.steps += 1
        if self.steps >= self.limits.steps or time.monotonic() >= self._ends:
            self.stop()
            return True
        self._end_span()
        self._begin_span()
        return False

    def stop(self) -> None:
        """End the recording. Idempotent."""
        if self.over:
            return
        self.over = True
        self._end_span()
        self._profile.stop()

    def write(self, path: Path) -> int:
        """Write what was recorded, as Chrome's trace format in gzip; return the file's bytes.

        Called once, on any thread, after `stop`. Raises OSError.
        """
        path.touch(mode=0o600)  # torch keeps the mode of a file that is there
        self._profile.export_chrome_trace(str(path))
        return path.stat().st_size

    def _begin_span(self) -> None:
        """Name the next step in the trace: recorded CPU steps are calls that torch does not see."""
        self._span = record_function(f"engine step {self.steps}")
        self._span.__enter__()  # type: ignore[no-untyped-call]

    def _end_span(self) -> None:
        if self._span is not None:
            self._span.__exit__(None, None, None)
            self._span = None
