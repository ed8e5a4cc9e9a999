"""The command-line options that describe a cluster, shared by every command that starts one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch

from baton.deploy.cluster_config import ClusterConfig
from baton.deploy.errors import StartError
from baton.engine.config import EngineConfig, WeightFormat
from baton.engine.errors import ConfigError
from baton.engine.grids import Strategy
from baton.engine.hub import find_model
from baton.kernels.dispatch import KernelChoice
from baton.router.policies import POLICIES
from baton.transfer.tls import Tls
from baton.worker.config import AUTO, CHANNELS, SendSnapshots, StateReturn

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_DEFAULTS = EngineConfig(Path())

_ENGINE = (
    click.option("--model", required=True,
                 help="A Hugging Face model folder, or the id of a model on its hub."),
    click.option("--revision", default=None,
                 help="Of a model on the hub: a branch, tag or commit."),
    click.option("--offline", is_flag=True,
                 help="Take a model on the hub from this machine's cache alone."),
    click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32",
                 show_default=True, help="Of weights, activations and KV."),
    click.option("--weight-format", type=click.Choice([f.value for f in WeightFormat]),
                 default=_DEFAULTS.weight_format.value, show_default=True,
                 help="How matrices are kept: as the model has them, or in 8 bits."),
    click.option("--kernels", type=click.Choice([k.value for k in KernelChoice]),
                 default=_DEFAULTS.kernels.value, show_default=True,
                 help="auto: the fastest that the device has."),
    click.option("--device", default="cpu", show_default=True),
    click.option("--page-size", type=click.IntRange(1), default=64, show_default=True,
                 help="Tokens a KV page."),
    click.option("--max-running", type=click.IntRange(1), default=16, show_default=True,
                 help="Requests at once on a worker."),
    click.option("--chunked-prefill-size", type=click.IntRange(1), default=None,
                 help="Prompt tokens a step; 512 on a CPU, 2048 on a GPU, when left out."),
    click.option("--max-model-len", type=click.IntRange(2), default=None,
                 help="Prompt and answer together; the model's when left out."),
    click.option("--memory-gb", type=click.FloatRange(0, min_open=True), default=None,
                 help="Of one worker; shares of what is free when left out."),
    click.option("--no-prefix-caching", is_flag=True,
                 help="Compute every prompt from its first token."),
    click.option("--mamba-scheduler-strategy", type=click.Choice([s.value for s in Strategy]),
                 default=_DEFAULTS.mamba_scheduler_strategy.value, show_default=True,
                 help="What of a request's recurrent state the prefix cache may have."),
    click.option("--mamba-track-interval", type=click.IntRange(1),
                 default=_DEFAULTS.mamba_track_interval, show_default=True,
                 help="Tokens between the snapshots of an answer, at least."),
    click.option("--snapshots-per-prefill", type=click.IntRange(1),
                 default=None, help="Most snapshots that one chunk of a prompt takes; by the "
                 "memory budget when left out, 1 for SGLang's behaviour."),
    click.option("--no-overlap", is_flag=True,
                 help="Plan a step when the one before it has ended."),
    click.option("--canary", is_flag=True,
                 help="Check that slots and pages hold what each step believes: for debugging."),
)  # fmt: skip

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_TRANSFER = (
    click.option("--channel", type=click.Choice(CHANNELS), default=AUTO, show_default=True,
                 help="How state travels between workers; auto: the best that both ends have."),
    click.option("--tls-cert", type=_FILE, help="PEM, of every worker: for the gRPC channel."),
    click.option("--tls-key", type=_FILE, help="PEM, of the certificate."),
    click.option("--tls-ca", type=_FILE, help="PEM, whose signature both ends must show."),
    click.option("--verify", type=click.Choice(["off", "full"]), default=None,
                 help="Checksums of what travels; full when left out, but off between GPUs."),
)  # fmt: skip

_CLUSTER = (
    click.option("--prefill", type=click.IntRange(1), default=1, show_default=True,
                 help="Workers that read prompts."),
    click.option("--decode", type=click.IntRange(1), default=1, show_default=True,
                 help="Groups of workers that write answers."),
    click.option("--decode-dp", type=click.IntRange(1), default=1, show_default=True,
                 help="Ranks of each decode group: a worker each, which requests may name."),
    click.option("--threads", type=click.IntRange(1), default=None,
                 help="Compute threads of each worker; the cores, shared evenly, when left out."),
    click.option("--policy", type=click.Choice(sorted(POLICIES)), default="round_robin",
                 show_default=True, help="How the router places requests."),
    click.option("--state-return", type=click.Choice([r.value for r in StateReturn]),
                 default=StateReturn.OFF.value, show_default=True,
                 help="Whether the state of a conversation's last turn goes back to the worker "
                 "that reads its next: when that comes (demand), or at once (eager)."),
    click.option("--send-snapshots", type=click.Choice([s.value for s in SendSnapshots]),
                 default=SendSnapshots.OFF.value, show_default=True,
                 help="Whether a prompt's last snapshot follows it to the rank's prefix cache."),
    click.option("--served-model-name", default=None,
                 help="What clients ask for; the folder's name when left out."),
    click.option("--ray-address", default=None,
                 help="A Ray cluster to join; a Ray of its own when left out. Start one with "
                      "RAY_worker_niceness=0, or workers give way to whatever else runs."),
    click.option("--start-timeout", type=click.FloatRange(0, min_open=True), default=600.0,
                 show_default=True, help="Seconds until a start has failed."),
)  # fmt: skip


def streaming_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """What streams of `/generate` send: of a router, and of a worker that answers alone."""
    return click.option(
        "--incremental-streaming-output", is_flag=True,
        help="Streams of /generate send what is new; the whole reply so far when left out.",
    )(command)  # fmt: skip


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add them all; `config_from` reads what they gave."""
    for option in reversed(_ENGINE + _TRANSFER + _CLUSTER):
        command = option(command)
    return streaming_option(command)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Those of one engine alone; `engine_from` reads what they gave."""
    for option in reversed(_ENGINE):
        command = option(command)
    return command


def transfer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How state travels; `verify_from` reads one of them."""
    for option in reversed(_TRANSFER):
        command = option(command)
    return command


def tls_from(given: dict[str, Any]) -> Tls | None:
    """Raises StartError where only some of the three are given."""
    files = given["tls_cert"], given["tls_key"], given["tls_ca"]
    if not any(files):
        return None
    if not all(files):
        raise StartError("--tls-cert, --tls-key and --tls-ca belong together: give all three")
    return Tls(*files)


def verify_from(given: str | None) -> bool | None:
    """--verify: None where it was left out."""
    return None if given is None else given == "full"


def engine_from(given: dict[str, Any]) -> EngineConfig:
    """`given`: the options' values by parameter name. Downloads the model where it is on the hub
    and not here. Raises StartError."""
    memory = given["memory_gb"]
    try:
        model = find_model(given["model"], given["revision"], given["offline"])
    except ConfigError as err:
        raise StartError(f"--model {given['model']}: {err}") from err
    return EngineConfig(
        model=model,
        dtype=DTYPES[given["dtype"]],
        weight_format=WeightFormat(given["weight_format"]),
        kernels=KernelChoice(given["kernels"]),
        device=given["device"],
        page_size=given["page_size"],
        max_running=given["max_running"],
        chunked_prefill_size=given["chunked_prefill_size"],
        max_model_len=given["max_model_len"],
        memory_bytes=None if memory is None else int(memory * 2**30),
        prefix_caching=not given["no_prefix_caching"],
        mamba_scheduler_strategy=Strategy(given["mamba_scheduler_strategy"]),
        mamba_track_interval=given["mamba_track_interval"],
        snapshots_per_prefill=given["snapshots_per_prefill"],
        overlap=not given["no_overlap"],
        canary=given["canary"],
    )


def config_from(given: dict[str, Any]) -> ClusterConfig:
    """`given`: the options' values by parameter name."""
    return ClusterConfig(
        engine=engine_from(given),
        prefill=given["prefill"],
        decode=given["decode"],
        decode_dp=given["decode_dp"],
        threads=given["threads"],
        policy=given["policy"],
        channel=given["channel"],
        verify=verify_from(given["verify"]),
        tls=tls_from(given),
        state_return=StateReturn(given["state_return"]),
        send_snapshots=SendSnapshots(given["send_snapshots"]),
        served_model_name=given["served_model_name"],
        incremental_streaming_output=given["incremental_streaming_output"],
        ray_address=given["ray_address"],
        start_deadline_s=given["start_timeout"],
    )
