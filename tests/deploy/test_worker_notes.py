"""Words about workers that harm a cluster: in `baton status`, and where such a worker starts."""

from pathlib import Path
from typing import Any

import pytest
from certificates import folder_of
from rich.console import Console

from baton.core.role import Role
from baton.deploy.commands.run_worker import address_warning
from baton.deploy.terminal.status_table import render
from baton.engine.settings.config import EngineConfig
from baton.worker.config import WorkerConfig

ROUTER = {
    "model": "toy", "policy": "round_robin", "uptime_s": 1, "active": 0, "capacity": 0, "queued": 0,
}  # fmt: skip


def shown(**notes: Any) -> list[str]:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(render({"router": ROUTER, "workers": [], **notes}))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_status_names_refused_workers_and_those_that_harm_the_others() -> None:
    lines = shown(
        refused_workers={"decode-3": "decode_step_us is nan"},
        worker_warnings={"decode-4": "its context is short"},
    )
    assert "decode-3: refused: decode_step_us is nan" in lines
    assert "decode-4: its context is short" in lines
    assert not any("decode-" in line for line in shown())  # a router of the release before


@pytest.mark.parametrize(
    ("host", "advertised", "router", "warned"),
    [
        ("127.0.0.1", None, "10.0.0.1:7000", True),
        ("::1", None, "[fd00::1]:7000", True),
        ("127.0.0.1", "10.0.0.2", "10.0.0.1:7000", False),
        ("10.0.0.2", None, "10.0.0.1:7000", False),
        ("127.0.0.1", None, "127.0.0.1:7000", False),
    ],
)
def test_a_worker_that_only_its_own_host_reaches_says_so_at_its_start(
    host: str, advertised: str | None, router: str, warned: bool
) -> None:
    config = WorkerConfig(
        "prefill-0",
        Role.PREFILL,
        EngineConfig(Path("model")),
        host=host,
        advertise_host=advertised,
        routers=(router,),
        credentials=folder_of("prefill", "prefill-0"),
    )
    assert ("--peer-host" in address_warning(config)) is warned
