"""From the command line to the engine's options."""

from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from baton.deploy.cluster_config import ClusterConfig
from baton.deploy.member import Member
from baton.deploy.options import cluster_options, config_from, engine_from, engine_options
from baton.deploy.wiring import Wiring
from baton.engine.config import EngineConfig
from baton.engine.grids import Strategy
from baton.worker.config import Role, SendSnapshots, StateReturn


def parse_cluster(*words: str) -> ClusterConfig:
    found: list[ClusterConfig] = []

    @click.command()
    @cluster_options
    def command(**given: Any) -> None:
        found.append(config_from(given))

    result = CliRunner().invoke(command, ["--model", "m", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found[0]


def test_what_is_left_out_is_the_engines_own_default() -> None:
    assert parse_cluster().engine == EngineConfig(Path("m"))


def test_the_options_of_the_prefix_cache_reach_every_worker() -> None:
    config = parse_cluster(
        "--no-prefix-caching",
        "--mamba-scheduler-strategy", "no_buffer",
        "--mamba-track-interval", "512",
        "--snapshots-per-prefill", "2",
        "--page-size", "1",
    )  # fmt: skip
    wiring = Wiring(config, http_port=1, grpc_port=2, threads=1)
    for role in (Role.PREFILL, Role.DECODE):
        engine = wiring.worker(Member(role, 0)).engine
        assert not engine.prefix_caching
        assert engine.mamba_scheduler_strategy is Strategy.NO_BUFFER
        assert engine.mamba_track_interval == 512
        assert engine.snapshots_per_prefill == 2
        assert engine.page_size == 1


def test_what_moves_between_prefix_caches_is_told_to_every_worker() -> None:
    plain = parse_cluster()
    asked = parse_cluster("--state-return", "demand", "--send-snapshots", "last")
    for config, returns, snapshots in (
        (plain, StateReturn.OFF, SendSnapshots.OFF),
        (asked, StateReturn.DEMAND, SendSnapshots.LAST),
    ):
        wiring = Wiring(config, http_port=1, grpc_port=2, threads=1)
        for role in (Role.PREFILL, Role.DECODE):
            worker = wiring.worker(Member(role, 0))
            assert (worker.state_return, worker.send_snapshots) == (returns, snapshots)
        takes_in = wiring.worker(Member(Role.PREFILL, 0)).engine.tickets > 0
        assert takes_in is (returns is not StateReturn.OFF)


def test_one_engine_is_described_by_the_same_options() -> None:
    found: list[EngineConfig] = []

    @click.command()
    @engine_options
    def command(**given: Any) -> None:
        found.append(engine_from(given))

    result = CliRunner().invoke(command, ["--model", "m", "--page-size", "32"])
    assert result.exit_code == 0, result.output
    assert found == [EngineConfig(Path("m"), page_size=32)]


def test_how_state_travels_is_told_to_every_worker() -> None:
    for words, channel, verify in (
        ((), "auto", None),
        (("--channel", "nixl", "--verify", "off"), "nixl", False),
        (("--channel", "grpc", "--verify", "full"), "grpc", True),
    ):
        wiring = Wiring(parse_cluster(*words), http_port=1, grpc_port=2, threads=1)
        for role in (Role.PREFILL, Role.DECODE):
            worker = wiring.worker(Member(role, 0))
            assert (worker.channel, worker.verify) == (channel, verify)


def test_what_streams_send_reaches_the_router() -> None:
    for words, wanted in (((), False), (("--incremental-streaming-output",), True)):
        config = parse_cluster(*words)
        router = Wiring(config, http_port=1, grpc_port=2, threads=1).router()
        assert router.incremental_streaming_output is wanted
