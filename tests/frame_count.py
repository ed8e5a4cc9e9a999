"""Counting the frames of our own that Python enters."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = str(Path(__file__).parents[1])


class FrameCount:
    """Counts the frames of our own that are entered or resumed on this thread."""

    def __init__(self) -> None:
        self.frames = 0

    def __enter__(self) -> "FrameCount":
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT) and not name.startswith(f"{ROOT}/tests/"):
            if "/site-packages/" not in name:
                self.frames += 1
