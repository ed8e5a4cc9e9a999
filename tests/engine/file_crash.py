"""A process that is killed at one step of writing its second file: `engine.file_crash FOLDER STEP
TOKENS TOKENS`."""

import os
import signal
import sys
from pathlib import Path

from engine.engines import greedy
from engine.file_tiers import filed, written

from baton.engine.tiers import prefix_file


def main(folder: str, step: str, *prompts: str) -> None:
    engine = filed(Path(folder))
    first, second = (tuple(int(token) for token in prompt.split()) for prompt in prompts)
    engine.generate([first], greedy(4))
    written(engine)

    def killed(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    owner = prefix_file if hasattr(prefix_file, step) else os
    setattr(owner, step, killed)
    engine.generate([second], greedy(4))
    written(engine)
    raise AssertionError(f"{step} was never reached")


if __name__ == "__main__":
    main(*sys.argv[1:])
