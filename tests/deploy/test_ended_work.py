"""A decode worker of a real cluster that loses a work which it cannot do without."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deploy.failing_rank import FailingRank
from deploy.some_ray import TESTS
from deploy.tiny_worker import GRID, prompt
from kit.polling import wait_until

from baton.bench.cluster.stream_client import exchange
from baton.core.role import Role
from baton.core.supervised import ProcessSupervisor
from baton.deploy.cluster import fleet
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.supervisor import Supervisor
from baton.deploy.commands.status import status
from baton.deploy.files.owned_folder import owned_folder
from baton.deploy.files.state_file import folder
from baton.deploy.messages.start_progress import Silent
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig

pytestmark = pytest.mark.cluster

DEADLINE_S = 180.0
REASON = "grants ended: MadeToFail: as the test wants it"


def answered(cluster: Cluster, rng: random.Random) -> bool:
    wanted = {"prompt": prompt(rng, 20), "max_tokens": 3, "ignore_eos": True}
    wanted["return_token_ids"] = True
    reply = asyncio.run(exchange(cluster.address, wanted, DEADLINE_S)).answer()
    return len(reply.token_ids) == 3


def test_it_is_started_again_and_the_status_says_why_it_ended(
    tiny: Path, rng: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fleet._KINDS, Role.DECODE, FailingRank)
    monkeypatch.setenv("PYTHONPATH", TESTS)
    engine = EngineConfig(tiny, page_size=GRID, max_running=4, memory_bytes=64 << 20)
    config = ClusterConfig(
        engine, RouterConfig(tiny), name="failing", threads=1, profile_folder=tmp_path
    )
    with owned_folder(folder()) as own:
        supervisor = Supervisor(config, own, Silent(), ProcessSupervisor())

        def shown(*words: str) -> str:
            told = CliRunner().invoke(status, ["--cluster", "failing", *words])
            assert told.exit_code == 0, told.output
            return told.output

        def member() -> dict[str, Any]:
            told: dict[str, Any] = json.loads(shown("--json"))["cluster"]["members"]["decode-0"]
            return told

        with supervisor.running() as cluster:
            assert answered(cluster, rng)
            wait_until(lambda: member()["state"] == "serving")
            assert not member()["ended"] and "grants" not in shown()
            (tmp_path / "fail").touch()
            ended = wait_until(lambda: found if (found := member())["ended"] else None)
            assert ended["ended"] == REASON
            wait_until(lambda: member()["restarts"] == 1 and member()["state"] == "serving")
            assert f"decode-0 serves again; its life before: {REASON}" in " ".join(shown().split())
            assert answered(cluster, rng)
            logs = [each.read_text() for each in cluster.logs.glob("worker-*.err")]
            assert any(f"{REASON}; this process ends" in each for each in logs)
            cluster.kill("decode-0")  # this end has no reason of its own
            wait_until(lambda: member()["restarts"] == 2 and member()["state"] == "serving")
            assert not member()["ended"]
