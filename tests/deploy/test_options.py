"""Tests of the path from the command line to the engine's options."""

import json
import re
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, Self

import click
import pytest
import torch
from click.testing import CliRunner
from deploy.wired import wired
from https_certificates import TestAuthority
from parsed_arguments import parse

from baton.api.access.client_limits import ClientLimits
from baton.api.access.keys import write_keys
from baton.core.errors import ConfigError
from baton.core.role import Role
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.member import Member
from baton.deploy.cluster.preflight import settle_state_return
from baton.deploy.cluster.router_ports import RouterPorts
from baton.deploy.commands import run_cluster, run_worker
from baton.deploy.commands import serve as serve_command
from baton.deploy.commands import worker as worker_command
from baton.deploy.config_from import config_from, engine_from
from baton.deploy.demand.demand import Demand, NodePlacement
from baton.deploy.errors import StartError
from baton.deploy.options.model import EngineArguments
from baton.deploy.options.serve import ClusterArguments
from baton.engine.layout.grids import Strategy
from baton.engine.settings.choices import DRAFT_TOKENS, MixedBudget
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig
from baton.router.dump.dump_options import DumpOptions
from baton.text.template_options import TemplateOptions
from baton.transfer.channels import registry
from baton.transfer.errors import ChannelError
from baton.worker.config import SendSnapshots, StateReturn, WorkerConfig


def parse_cluster(*words: str) -> ClusterConfig:
    return config_from(parse(ClusterArguments, "--model", "m", *words))


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
    wiring = wired(config)
    for role in (Role.PREFILL, Role.DECODE):
        engine = wiring.worker(Member(role, 0)).engine
        assert not engine.prefix_caching
        assert engine.mamba_scheduler_strategy is Strategy.NO_BUFFER
        assert engine.mamba_track_interval == 512
        assert engine.snapshots_per_prefill == 2
        assert engine.page_size == 1


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"dtype": "bfloat16"}, torch.bfloat16),
        ({"torch_dtype": "float16"}, torch.float16),
        ({"text_config": {"torch_dtype": "bfloat16"}}, torch.bfloat16),
        ({"torch_dtype": None}, torch.float32),
        ({}, torch.float32),
    ],
)
def test_the_dtype_is_the_checkpoints(
    config: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert parse_cluster("--model", str(tmp_path)).engine.dtype is dtype
    named = parse_cluster("--model", str(tmp_path), "--dtype", "float32")
    assert named.engine.dtype is torch.float32


def test_a_checkpoints_dtype_that_nobody_computes_in_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "float8_e4m3fn"}))
    with pytest.raises(StartError, match="names 'float8_e4m3fn'; give one of float32, bfloat16"):
        parse_cluster("--model", str(tmp_path))


def test_every_field_of_the_engine_can_be_set() -> None:
    """Every field has an option, except those that depend on the other workers, which the cluster
    decides, and those that only `baton worker` has."""
    decided = {"model", "workers_on_host", "tickets", "threads", "tp", "rank_timeout_s"}
    decided |= {"staging_bytes", "end_ids", "mtp"}
    given = parse_cluster(
        "--dtype", "bfloat16", "--mamba-ssm-dtype", "bfloat16", "--device", "cuda",
        "--load-format", "dummy", "--weight-format", "int8", "--quantization", "fp8",
        "--round-vocabulary", "--page-size", "32",
        "--max-running", "3", "--chunked-prefill-size", "77", "--max-model-len", "99",
        "--prefill-beside-decode", "7", "--itl-target-ms", "90",
        "--memory-gb", "2", "--memory-fraction", "0.25", "--held-fraction", "0.75",
        "--layer-group-bytes", "4096", "--kernels", "torch", "--no-prefix-caching",
        "--mamba-scheduler-strategy", "extra_buffer", "--mamba-track-interval", "128",
        "--snapshots-per-prefill", "2", "--canary", "--no-overlap", "--cached-snapshots", "5",
        "--no-graphs",
        "--mamba-full-memory-ratio", "0.5", "--speculative-algorithm", "ngram",
        "--speculative-num-draft-tokens", "8", "--speculative-ngram-capacity", "5000",
        "--speculative-eagle-topk", "2", "--speculative-num-steps", "4",
        "--speculative-synthetic-acceptance", "2.5", "--mtp-recycle", "before_norm",
        "--host-cache-gb", "3", "--host-cache-state-gb", "1", "--file-cache", "files",
        "--file-cache-gb", "9", "--file-cache-hours", "5", "--state-key-file", "key",
    ).engine  # fmt: skip
    default = EngineConfig(Path("m"))
    names = {field.name for field in fields(EngineConfig)}
    same = {name for name in names if getattr(given, name) == getattr(default, name)}
    assert same == decided


@pytest.mark.parametrize("name", ["--host-cache-gb", "--hicache-size", "--kv-offloading-size"])
def test_other_servers_names_size_the_hosts_cache(name: str) -> None:
    engine = parse_cluster(
        name, "1.5", "--host-cache-state-gb", "2", "--enable-hierarchical-cache",
        "--hicache-write-policy", "write_through",
    ).engine  # fmt: skip
    assert (engine.host_cache_bytes, engine.host_cache_state_bytes) == (3 << 29, 2 << 30)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--enable-hierarchical-cache",), "needs sizes: give --host-cache-gb for KV pages and"),
        (("--enable-hicache", "--hicache-ratio", "2"), "--hicache-ratio 2: .* not sized by the"),
        (("--hicache-size", "4", "--hicache-write-policy", "write_back"),
         "write_back: prefixes are copied behind .* Use write_through, or leave it out"),
    ],
)  # fmt: skip
def test_what_the_hosts_cache_does_not_do_is_refused_with_the_reason(
    words: tuple[str, ...], told: str
) -> None:
    with pytest.raises(StartError, match=told):
        parse_cluster(*words)


def test_what_moves_between_prefix_caches_is_told_to_every_worker() -> None:
    plain = parse_cluster()
    asked = parse_cluster("--state-return", "demand", "--send-snapshots", "last")
    for config, returns, snapshots in (
        (plain, StateReturn.AUTO, SendSnapshots.OFF),
        (asked, StateReturn.DEMAND, SendSnapshots.LAST),
    ):
        wiring = wired(config)
        for role in (Role.PREFILL, Role.DECODE):
            worker = wiring.worker(Member(role, 0))
            assert (worker.state_return, worker.send_snapshots) == (returns, snapshots)
        assert wiring.worker(Member(Role.PREFILL, 0)).engine.tickets > 0
    never = wired(parse_cluster("--state-return", "off")).worker(Member(Role.PREFILL, 0))
    assert (never.state_return, never.engine.tickets) == (StateReturn.OFF, 0)


@pytest.mark.parametrize(("word", "most"), [("auto", None), ("off", 0), ("512", 512)])
def test_ranks_compute_prompts_by_measured_speeds_unless_told_otherwise(
    word: str, most: int | None
) -> None:
    assert wired(parse_cluster("--prefill-here", word)).router().prefill_here == most
    assert wired(parse_cluster()).router().prefill_here is None


def test_the_target_of_the_time_between_tokens_reaches_router_and_ranks() -> None:
    wiring = wired(parse_cluster("--itl-target-ms", "250"))
    assert wiring.router().itl_target_s == 0.25
    assert wiring.worker(Member(Role.DECODE, 0)).engine.itl_target_s == 0.25
    assert wired(parse_cluster()).router().itl_target_s is None


def test_a_rank_learns_how_many_prompt_tokens_go_beside_its_answers() -> None:
    for words, most in (((), MixedBudget.AUTO), (("--prefill-beside-decode", "48"), 48)):
        wiring = wired(parse_cluster(*words))
        assert wiring.worker(Member(Role.DECODE, 0)).engine.prefill_beside_decode == most


@pytest.mark.parametrize(
    ("word", "room", "returns"),
    [("auto", 2, "off"), ("auto", 7, "auto"), ("auto", 1, "auto"), ("demand", 2, "demand")],
)
def test_states_go_back_by_default_only_where_hand_offs_have_room_beside_it(
    monkeypatch: pytest.MonkeyPatch, word: str, room: int, returns: str
) -> None:
    """A pair has two ends, and with states that go back seven."""

    def check_room(wanted: str, ends: int) -> None:
        if ends > room:
            raise ChannelError(f"no room for {ends}")

    monkeypatch.setattr(registry, "check_room", check_room)
    settled, why = settle_state_return(parse_cluster("--state-return", word))
    assert settled.value == returns
    assert why == ("no room for 7" if returns != word else "")


def test_states_go_back_between_replicas_of_several_ranks_only_if_asked_for() -> None:
    for words, returns in (((), "off"), (("--state-return", "demand"), "demand")):
        settled, why = settle_state_return(parse_cluster("--decode-tp", "2", *words))
        assert settled.value == returns and ("several" in why) is (returns == "off")


def test_only_ranks_verify_drafts() -> None:
    wiring = wired(parse_cluster("--speculative-algorithm", "ngram"))
    windows = {
        role: wiring.worker(Member(role, 0)).engine.window for role in (Role.PREFILL, Role.DECODE)
    }
    assert windows == {Role.PREFILL: 1, Role.DECODE: DRAFT_TOKENS}


def test_one_engine_is_described_by_the_same_options() -> None:
    arguments = parse(EngineArguments, "--model", "m", "--page-size", "32")
    assert engine_from(arguments) == EngineConfig(Path("m"), page_size=32)


def test_how_state_travels_is_told_to_every_worker() -> None:
    for words, channel, verify in (
        ((), "auto", None),
        (("--channel", "nixl", "--verify", "off"), "nixl", False),
        (("--channel", "grpc", "--verify", "full"), "grpc", True),
    ):
        wiring = wired(parse_cluster(*words))
        for role in (Role.PREFILL, Role.DECODE):
            worker = wiring.worker(Member(role, 0))
            assert (worker.channel, worker.verify) == (channel, verify)


def test_what_streams_send_reaches_the_router() -> None:
    for words, wanted in (
        ((), (False, 1)),
        (("--incremental-streaming-output", "--stream-interval", "8"), (True, 8)),
    ):
        router = wired(parse_cluster(*words)).router()
        assert (router.incremental_streaming_output, router.stream_interval) == wanted


class StoppedAtStartError(StartError):
    """Raised in place of a start, with the config that the start was given."""

    def __init__(self, config: Any, *more: object, **options: object) -> None:
        super().__init__("this test starts nothing")
        self.config = config

    @classmethod
    def start(cls, config: Any, *more: object, **options: object) -> Self:
        raise cls(config)


@pytest.fixture
def starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `serve` and `worker` stop where they would start, with StoppedAtStartError."""
    for command in (serve_command, worker_command):
        monkeypatch.setattr(command, "check_folder", lambda folder: None)
    for run in (run_cluster, run_worker):
        monkeypatch.setattr(run, "check_model", lambda engine, template: None)
        monkeypatch.setattr(run, "with_ends", with_length_of_name)
    monkeypatch.setattr(run_cluster, "Supervisor", StoppedAtStartError.start)
    monkeypatch.setattr(run_worker, "StandaloneWorker", StoppedAtStartError.start)
    monkeypatch.setattr(run_worker.Engine, "load", lambda config: None)
    for tuning in ("keep_freed_memory", "switch_often"):
        monkeypatch.setattr(run_worker, tuning, lambda: None)


def with_length_of_name(engine: EngineConfig, template: TemplateOptions) -> EngineConfig:
    """Stand for the ends of an operator's template."""
    return engine if template.file is None else replace(engine, end_ids=(len(template.file.name),))


def run_command(command: click.Command, *words: str) -> Any:
    """Return the config that a command would start with."""
    with pytest.raises(StoppedAtStartError) as stopped:
        CliRunner().invoke(command, ["--model", "m", *words], catch_exceptions=False)
    return stopped.value.config


def options_everywhere(folder: Path) -> tuple[str, ...]:
    """Return every option of `serve` besides the engine's, none with its default."""
    for name in ("key", "ca"):
        (folder / name).touch()
    write_keys(folder / "keys", ())
    clients = TestAuthority.make().issue(folder / "tls")
    return (
        "--channel", "grpc", "--nixl-interface", "eth9", "--verify", "full",
        "--tls-ca", str(folder / "ca"),
        "--tls-ca-key", str(folder / "key"), "--internal-port", "4",
        "--internal-host", "::1", "--routers", "2",
        "--prefill", "2", "--decode", "2", "--decode-dp", "2", "--threads", "3",
        "--tp", "2", "--decode-tp", "3",
        "--policy", "least_load", "--state-return", "demand", "--send-snapshots", "last",
        "--served-model-name", "name", "--incremental-streaming-output",
        "--stream-interval", "4", "--sse-ping-interval", "3",
        "--unknown-fields", "refuse", "--sampling-defaults", "none",
        "--closed-objects",
        "--chat-template", __file__, "--default-chat-template-kwargs", '{"a": 1}',
        "--tool-call-parser", "hermes", "--reasoning-parser", "none",
        "--lease", "1.5", "--request-timeout", "60", "--worker-wait", "0",
        "--max-queued-requests", "7", "--max-queued-tokens", "70", "--max-body-mb", "1",
        "--key-slowdown", "2", "--prefill-here", "512", "--itl-target-ms", "250",
        "--allowed-host", "models.example", "--cors-origin", "https://friend.example",
        "--api-keys", str(folder / "keys"), "--ssl-certfile", str(clients.certificate),
        "--ssl-keyfile", str(clients.key), "--cache-scope", "key",
        "--dump-requests", str(folder / "dump"), "--profile-folder", str(folder / "profiles"),
        "--ray-address", "here", "--worker-interface", "eth9", "--wait-for-nodes",
        "--gpus-per-worker", "0.5", "--prefill-label", "pool=a", "--decode-label", "pool=!a",
        "--prefill-resource", "x=1", "--decode-resource", "rdma=2", "--start-timeout", "9",
        "--page-size", "32",
        "--host", "0.0.0.0", "--http-port", "1", "--grpc-port", "2", "--drain", "3",
    )  # fmt: skip


def unset(config: Any) -> set[str]:
    """Return the fields that have their defaults."""
    return {
        field.name
        for field in fields(config)
        if field.default is not MISSING and getattr(config, field.name) == field.default
    }


@pytest.mark.usefixtures("starts_nothing")
def test_every_field_of_cluster_and_router_can_be_set(tmp_path: Path) -> None:
    config = run_command(serve_command.serve, *options_everywhere(tmp_path))
    assert isinstance(config, ClusterConfig)
    assert unset(config) == set()
    ports = RouterPorts(config.router.http_port, config.router.grpc_port, 3)
    router = wired(config, ports, ports).router()
    assert isinstance(router, RouterConfig)
    assert unset(router) == {"control", "http_socket"}, "the supervisor and the actor set them"


@pytest.mark.usefixtures("starts_nothing")
def test_engines_are_told_the_ends_of_an_operators_template(tmp_path: Path) -> None:
    words = ("--chat-template", __file__)
    ends = (len(Path(__file__).name),)
    serve = run_command(serve_command.serve, *words)
    assert serve.engine.end_ids == ends
    assert wired(serve).worker(Member(Role.DECODE, 0)).engine.end_ids == ends
    assert run_command(worker_command.worker, *words).engine.end_ids == ends
    assert run_command(serve_command.serve).engine.end_ids == ()


@pytest.mark.usefixtures("starts_nothing")
def test_the_port_has_the_name_that_other_servers_give_it() -> None:
    assert run_command(serve_command.serve, "--port", "5").router.http_port == 5


@pytest.mark.usefixtures("starts_nothing")
def test_every_field_of_a_worker_can_be_set(tmp_path: Path) -> None:
    """Every field is set by an option of `worker` or, from the options of `serve`, by the
    cluster."""
    config = run_command(serve_command.serve, *options_everywhere(tmp_path))
    in_cluster = wired(config).worker(Member(Role.DECODE, 2))
    alone = run_command(
        worker_command.worker,
        "--role", "decode", "--host", "0.0.0.0", "--advertise-host", "there", "--peer-port", "1",
        "--lease", "1.5", "--router", "there:1", "--insecure", "--credentials", str(tmp_path),
    )  # fmt: skip
    assert isinstance(alone, WorkerConfig)
    # Ray's actor sets it, once its process runs; a worker by hand has its clock.
    assert unset(in_cluster) & unset(alone) == {"incarnation"}


def test_where_workers_run_is_asked_of_ray() -> None:
    words = ("--ray-address", "here", "--device", "cuda", "--prefill-label", "pool=in(a,b)",
             "--decode-label", "pool=!a", "--decode-label", "zone=z",
             "--decode-resource", "rdma=2")  # fmt: skip
    placement = parse_cluster(*words).placement
    prefill, decode = (placement.demand(r, 3, "cuda", 1) for r in (Role.PREFILL, Role.DECODE))
    assert prefill == Demand(3, 1.0, (), (("pool", "in(a,b)"),))
    assert decode == Demand(3, 1.0, (("rdma", 2.0),), (("pool", "!a"), ("zone", "z")))
    assert NodePlacement().demand(Role.DECODE, 2, "cpu", 4).resources == {"CPU": 2}
    shared = parse_cluster("--gpus-per-worker", "0.5").placement
    assert shared.demand(Role.DECODE, 1, "cuda", 1).gpus == 0.5
    assert NodePlacement().demand(Role.DECODE, 1, "cuda", 4).gpus == 4


@pytest.mark.usefixtures("starts_nothing")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--prefill-label", "pool"), "--prefill-label pool: expected KEY=VALUE"),
        (("--prefill-label", "pool=in("), "expected VALUE, !VALUE"),
        (("--decode-label", "a=b", "--decode-label", "a=c"), "names a twice"),
        (("--decode-resource", "rdma"), "expected NAME=AMOUNT"),
        (("--decode-resource", "rdma=1.5"), "a whole number, or a part of 1"),
        (("--decode-resource", "GPU=1"), "for GPUs by --gpus-per-worker"),
        (("--gpus-per-worker", "1.5"), "expected a whole number, or a part of 1"),
        (("--device", "cuda:1"), "Ray gives each worker a GPU of its own; expected cuda"),
    ],
)
def test_a_wrong_place_is_refused(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(StartError, match=re.escape(told)):
        run_command(serve_command.serve, "--ray-address", "here", *words)


@pytest.mark.parametrize(
    "words",
    [
        ("--prefill-label", "a=b"),
        ("--decode-resource", "a=1"),
        ("--wait-for-nodes",),
        ("--worker-interface", "lo"),
    ],
)
def test_nodes_are_chosen_only_where_there_are_several(words: tuple[str, ...]) -> None:
    with pytest.raises(StartError, match=f"{words[0]}.*: only for a Ray that you join"):
        parse_cluster(*words)


def test_a_dump_has_its_options_or_there_is_none(tmp_path: Path) -> None:
    words = "--dump-requests", str(tmp_path), "--dump-prompts", "--dump-requests-mb", "2"
    assert wired(parse_cluster(*words)).router().dump == DumpOptions(tmp_path, True, 2 << 20)
    assert wired(parse_cluster()).router().dump == DumpOptions()
    with pytest.raises(StartError, match="--dump-requests"):
        parse_cluster("--dump-prompts")


def test_router_and_workers_have_one_lease() -> None:
    for words, lease_ms in (((), 3000), (("--lease", "1.25"), 1250)):
        wiring = wired(parse_cluster(*words))
        leases = {wiring.worker(Member(role, 0)).lease_ms for role in (Role.PREFILL, Role.DECODE)}
        assert leases | {wiring.router().lease_ms} == {lease_ms}


def test_limits_reach_the_router_in_its_units() -> None:
    words = "--max-body-mb 2 --request-timeout 1.5 --worker-wait 0.5 --max-queued-requests 0"
    router = wired(parse_cluster(*words.split())).router()
    assert router.max_body_bytes == 2 << 20
    assert (router.request_timeout_s, router.worker_wait_s, router.max_queued) == (1.5, 0.5, 0)


@pytest.mark.usefixtures("starts_nothing")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--lease", "0.99"),
        ("--lease", "3601"),
        ("--lease", "nan"),
        ("--request-timeout", "0"),
        ("--request-timeout", "inf"),
        ("--worker-wait", "-1"),
        ("--worker-wait", "nan"),
        ("--max-queued-requests", "-1"),
        ("--prefill-here", "-1"),
        ("--prefill-here", "0"),
        ("--prefill-here", "sometimes"),
        ("--itl-target-ms", "0"),
        ("--itl-target-ms", "nan"),
        ("--key-slowdown", "1"),
        ("--key-slowdown", "nan"),
        ("--max-body-mb", "0"),
        ("--max-body-mb", "2048"),
        ("--start-timeout", "nan"),
        ("--drain", "nan"),
    ],
)
def test_a_value_out_of_range_is_refused_before_anything_starts(option: str, value: str) -> None:
    result = CliRunner().invoke(serve_command.serve, ["--model", "m", option, value])
    assert result.exit_code == 2
    assert option in result.output


@pytest.mark.parametrize("lease_s", ["1", "3600"])
def test_the_ends_of_the_leases_range_are_accepted(lease_s: str) -> None:
    config = parse_cluster("--lease", lease_s, "--max-body-mb", "2047")
    wiring = wired(config)
    assert wiring.router().lease_s == wiring.worker(Member(Role.PREFILL, 0)).lease_s


def test_the_limits_of_the_client_ports_reach_the_router() -> None:
    given = {
        "--header-timeout": 1.5,
        "--body-timeout": 2.5,
        "--idle-timeout": 3.5,
        "--grpc-idle-timeout": 4,
        "--write-timeout": 4.5,
        "--max-header-kb": 5,
        "--max-connections": 60,
        "--max-connections-per-client": 7,
        "--max-http-streams": 8,
        "--max-grpc-streams": 9,
        "--max-grpc-streams-per-client": 6,
        "--max-key-guesses": 10,
        "--forwarded-allow-ips": "10.0.0.7,10.1.0.0/16",
    }
    words = [str(word) for pair in given.items() for word in pair]
    limits = wired(parse_cluster(*words)).router().limits
    proxies = "10.0.0.7,10.1.0.0/16"
    assert limits == ClientLimits(1.5, 2.5, 3.5, 4, 4.5, 5 << 10, 60, 7, 8, 9, 6, 10, proxies)
    default = ClientLimits()
    assert parse_cluster().router.limits == default
    assert all(getattr(limits, each.name) != getattr(default, each.name) for each in fields(limits))


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="header_s is 0; expected more than 0"):
        ClientLimits(header_s=0)


@pytest.mark.parametrize("proxies", ["proxy.example", "10.0.0.7;10.0.0.8", "10.1.2.3/16", "*"])
def test_a_proxy_that_is_no_address_is_refused(proxies: str) -> None:
    with pytest.raises(StartError, match=r"--forwarded-allow-ips names .*10\.1\.0\.0/16"):
        parse_cluster("--forwarded-allow-ips", proxies)


@pytest.mark.parametrize("word", ["--no-graphs", "--enforce-eager", "--disable-cuda-graph"])
def test_graphs_are_left_out_by_the_word_that_a_peer_has_for_it(word: str) -> None:
    assert parse_cluster().engine.graphs and not parse_cluster(word).engine.graphs


@pytest.mark.usefixtures("starts_nothing")
@pytest.mark.parametrize("wrong", ["{", "[1]", "3"])
def test_default_variables_of_the_template_are_an_object(wrong: str) -> None:
    words = ["--model", "m", "--default-chat-template-kwargs", wrong]
    for command in (serve_command.serve, worker_command.worker):
        result = CliRunner().invoke(command, words)
        assert result.exit_code != 0
        assert "expected a JSON object" in f"{result.output}{result.exception}"


@pytest.mark.usefixtures("starts_nothing")
@pytest.mark.parametrize("option", ["--tool-call-parser", "--reasoning-parser"])
def test_a_parser_of_a_form_that_is_not_read_is_told_which_are(option: str) -> None:
    for command in (serve_command.serve, worker_command.worker):
        with pytest.raises(StartError, match=f"{option} is 'gpt-oss'.* auto, none.*granite"):
            run_command(command, option, "gpt-oss")
    assert run_command(serve_command.serve, option, "granite").router.template != TemplateOptions()
