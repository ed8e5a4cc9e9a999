"""A worker whose engine is lost ends its process: whoever started it starts another."""

import subprocess
import sys
from pathlib import Path

from certificates import folder_of

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint

TINY = {**GRANITE_SMALL, "hidden_size": 64, "mamba_n_heads": 4, "num_attention_heads": 4}
CODE = """
import sys, threading
from pathlib import Path
from baton.engine.settings.config import EngineConfig
from baton.engine.engine import Engine
from baton.core.process_end import ending_owner
from baton.core.errors import InvariantError
from baton.prefill.actor import PrefillActor
from baton.worker.config import WorkerConfig
from baton.core.role import Role

def broken(engine):
    raise InvariantError("the books do not balance")

Engine.plan_step = broken
Engine.has_work = property(lambda engine: True)
model, credentials = map(Path, sys.argv[1:])
config = WorkerConfig("p0", Role.PREFILL, EngineConfig(model), credentials=credentials)
actor = PrefillActor(config, ending_owner())
actor.start()
threading.Event().wait(60)
"""


def test_the_process_ends_and_says_why(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "tiny", TINY)
    certificate = str(folder_of("prefill", "p0"))
    ran = subprocess.run(
        [sys.executable, "-c", CODE, str(folder), certificate],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1
    assert "engine ended: InvariantError: the books do not balance" in ran.stderr
