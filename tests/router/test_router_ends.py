"""A router that has lost what it cannot do without ends its process: whoever started it starts
another."""

import subprocess
import sys
from pathlib import Path

import pytest
from certificates import folder_of
from rich.console import Console
from router_neighbours import model_folder

from baton.core.errors import StoppedError
from baton.deploy.commands import run_router
from baton.router.cluster_view.registry import RegistryServicer
from baton.router.config import RouterConfig

REASON = "leases ended: ValueError: out of range"
CODE = """
import sys, threading
from pathlib import Path
from baton.core.process_end import ending_owner
from baton.router.actor import RouterActor
from baton.router.cluster_view.registry import RegistryServicer
from baton.router.config import RouterConfig

async def broken(servicer):
    raise ValueError("out of range")

def record(reason):
    recorded.write_text(reason)
    if hangs == "hangs":
        threading.Event().wait()
    if hangs == "raises":
        raise OSError("the control store is away")

RegistryServicer.watch_leases = broken
*folders, hangs = sys.argv[1:]
model, credentials, recorded = map(Path, folders)
config = RouterConfig(model, credentials, http_port=0, grpc_port=0)
RouterActor(config, ending_owner(record)).start()
threading.Event().wait(60)
"""


@pytest.mark.parametrize("record", ["returns", "hangs", "raises"])
def test_the_process_ends_with_its_reason_recorded(record: str, tmp_path: Path) -> None:
    recorded = tmp_path / "recorded"
    certificate = folder_of("router", "router-0")
    ran = subprocess.run(
        [sys.executable, "-c", CODE, model_folder(tmp_path), certificate, recorded, record],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1, ran.stderr
    assert f"{REASON}; this process ends" in ran.stderr
    assert recorded.read_text() == REASON


async def test_a_router_by_hand_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(servicer: RegistryServicer) -> None:
        raise ValueError("out of range")

    monkeypatch.setattr(RegistryServicer, "watch_leases", broken)
    config = RouterConfig(
        model_folder(tmp_path), folder_of("router", "router-0"), http_port=0, grpc_port=0
    )
    with pytest.raises(StoppedError, match=f"{REASON}; start it again"):
        await run_router._serve(Console(quiet=True), config, 0.0)
