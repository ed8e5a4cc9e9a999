"""A cluster of the previous release is upgraded in place: a rolling restart under load."""

import asyncio
from pathlib import Path

import pytest
from deploy.several_routers import DEADLINE_S, Load, greedy, running
from deploy.test_rolling import ROUTERS, TOKENS, WORKERS, incarnations, prompts_of
from deploy.test_scaling import Heard
from e2e.books import settled_findings
from e2e.clients import assert_same_where_it_went_on
from kit.polling import until
from oracle.reference import Oracle
from previous_release import previous

from baton.engine.settings.config import EngineConfig

pytestmark = pytest.mark.chaos  # by its length

STARTUP = """
import os, pathlib, sys
here = pathlib.Path(__file__).parent
if (here / "previous").exists() and "default_worker.py" in " ".join(sys.orig_argv):
    sys.path.insert(0, {previous!r})
    from previous import speak_previous
    speak_previous()
    sys.path.pop(0)
    (here / f"{{os.getpid()}}.pid").touch()
"""
"""`sitecustomize.py`: Ray's workers that start while there is a file `previous` speak the
protocol of that release. It stands for the package that is installed."""


async def test_a_rolling_restart_upgrades_in_place(
    oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = oracle.checkpoint("granite_dense_nope")
    engine = EngineConfig(
        model, page_size=16, chunked_prefill_size=64, max_running=32, memory_bytes=192 << 20
    )
    prompts = prompts_of(8)
    right = greedy(engine, prompts, TOKENS)
    installed = tmp_path / "previous"
    installed.touch()
    folder = str(Path(previous.__file__).parent)
    (tmp_path / "sitecustomize.py").write_text(STARTUP.format(previous=folder))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running(engine, routers=2, prefill=2, decode_dp=2) as cluster:
        before = incarnations(cluster)
        pids = {name: cluster.pid(name) for name in before} | cluster.routers.pids
        assert {path.stem for path in tmp_path.glob("*.pid")} >= set(map(str, pids.values()))
        load = Load(cluster, prompts, TOKENS)
        load.start(16)
        await until(lambda: len(load.answers) >= 16)
        installed.unlink()
        for roles in (WORKERS, ROUTERS):
            await asyncio.to_thread(cluster.rolling.restart, roles, DEADLINE_S, Heard())
        await load.stop()
        after = {name: cluster.pid(name) for name in before} | cluster.routers.pids
        assert not {path.stem for path in tmp_path.glob("*.pid")} & set(map(str, after.values()))
        assert incarnations(cluster).keys() == before.keys()
        wanted = {tuple(p): w for p, w in zip(prompts, right, strict=True)}
        asked, found = map(list, zip(*load.answers, strict=True))
        assert_same_where_it_went_on(
            oracle, engine.model, asked, found, [wanted[tuple(p)] for p in asked]
        )
        assert not await asyncio.wait_for(settled_findings(cluster), DEADLINE_S)
        print(f"{len(load.answers)} answers, {load.refused} refusals of stopping routers")
