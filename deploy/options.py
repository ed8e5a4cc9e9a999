"""The command-line options of a cluster, shared by every command that starts one.

Its import needs neither torch nor Ray, so that a wrong option is refused at once; `config_from`
reads the values.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from baton.core.errors import ConfigError
from baton.deploy.certs.authority import AuthorityFiles
from baton.deploy.errors import StartError
from baton.deploy.files.example_model import EXAMPLE_MODEL
from baton.deploy.number_types import Ratio, Seconds
from baton.deploy.placement_options import placement_options
from baton.deploy.record_options import check_can_be_made, profile_option
from baton.deploy.router_options import check_served_name, itl_target_option, router_options
from baton.engine.layout.grids import Strategy
from baton.engine.loading.hub import find_model
from baton.engine.settings.choices import (
    AUTO_DEVICE,
    CPU_MAX_RUNNING,
    CPU_MEMORY_FRACTION,
    DRAFT_TOKENS,
    GPU_MAX_RUNNING,
    GPU_MEMORY_FRACTION,
    HELD_FRACTION,
    LAYER_GROUP_BYTES,
    RANK_TIMEOUT_S,
    TRACK_INTERVAL,
    WINDOWS,
    LoadFormat,
    SpeculativeAlgorithm,
    WeightFormat,
)
from baton.kernels.kernel_choice import KernelChoice
from baton.text.model_folder import read_json_object
from baton.transfer.channels.names import AUTO, BETWEEN_PROCESSES
from baton.worker.state_options import SendSnapshots, StateReturn

AUTO_DTYPE = "auto"
DTYPES = ("float32", "bfloat16", "float16")

_MODEL = (
    click.option("--model", default=None,
                 help="A Hugging Face model folder, or the id of a model on its hub; a small "
                 "example model when left out."),
    click.option("--revision", default=None,
                 help="Branch, tag or commit of a model on the hub."),
    click.option("--offline", is_flag=True,
                 help="Take a hub model only from this machine's cache."),
)  # fmt: skip
_ENGINE = (
    click.option("--dtype", type=click.Choice((AUTO_DTYPE, *DTYPES)), default=AUTO_DTYPE,
                 show_default=True, help="Type of weights, activations and KV; auto takes the "
                 "checkpoint's."),
    click.option("--mamba-ssm-dtype", type=click.Choice(["float32", "bfloat16"]),
                 default="float32", show_default=True, help="Type of the SSM states in the pool."),
    click.option("--load-format", type=click.Choice([f.value for f in LoadFormat]),
                 default=LoadFormat.SAFETENSORS.value, show_default=True,
                 help="Source of the weights; dummy makes random ones, for measurements."),
    click.option("--weight-format", type=click.Choice([f.value for f in WeightFormat]),
                 default=WeightFormat.AUTO.value, show_default=True,
                 help="Storage of the matrices: model is --dtype; fp8 keeps those that the files "
                 "have in FP8, for CPUs; auto is fp8 where the CPU reads it, else model; int8 "
                 "rounds to 8 bits at load."),
    click.option("--kernels", type=click.Choice([k.value for k in KernelChoice]),
                 default=KernelChoice.AUTO.value, show_default=True,
                 help="Implementation of the kernels; auto takes the fastest that the device has."),
    click.option("--device", default=AUTO_DEVICE, show_default=True,
                 help="Device of every worker: cpu, cuda, of `baton worker` cuda:N too, or auto, "
                 "which takes this machine's GPUs where workers can use them."),
    click.option("--page-size", type=click.IntRange(1), default=64, show_default=True,
                 help="Tokens in one KV page."),
    click.option("--max-running", type=click.IntRange(1), default=None,
                 help="Most requests that a worker runs at once; when left out "
                 f"{CPU_MAX_RUNNING} on a CPU and {GPU_MAX_RUNNING} on a GPU, or as many as its "
                 "memory serves."),
    click.option("--chunked-prefill-size", type=click.IntRange(1), default=None,
                 help="Most prompt tokens in one step; 512 on a CPU, 2048 on a GPU, when left "
                 "out."),
    click.option("--prefill-beside-decode", type=click.IntRange(1), default=None,
                 help="Most prompt tokens in a step in which requests decode, since their next "
                 "tokens wait for it. When left out, a decode worker takes as many as make the "
                 "step about twice as long, by measured speeds, and others as many as in other "
                 "steps."),
    click.option("--max-model-len", type=click.IntRange(2), default=None,
                 help="Most tokens of a prompt and its answer together; the model's limit when "
                 "left out."),
    click.option("--memory-gb", type=click.FloatRange(0, min_open=True), default=None,
                 help="Memory of one worker in GiB, of each of its ranks with --tp; a share of "
                 "the free memory when left out."),
    click.option("--memory-fraction", type=click.FloatRange(0, 1, min_open=True),
                 default=None,
                 help="Part of the memory that workers take without --memory-gb: of what the "
                 f"machine has free, {CPU_MEMORY_FRACTION:g} when left out, for all workers on its "
                 f"CPUs; of a GPU's whole memory, as far as it is free, {GPU_MEMORY_FRACTION:g}, "
                 "for all workers of a cluster that share it."),
    click.option("--held-fraction", type=click.FloatRange(0, 1),
                 default=HELD_FRACTION, show_default=True,
                 help="Part of a prefill worker's pool that prompts may hold before a "
                 "decode worker has room for them."),
    click.option("--layer-group-bytes", type=click.IntRange(1),
                 default=LAYER_GROUP_BYTES, show_default=True,
                 help="Fewest bytes that one message about a prompt's finished layers covers."),
    click.option("--no-prefix-caching", is_flag=True,
                 help="Compute every prompt from its first token."),
    click.option("--mamba-scheduler-strategy", type=click.Choice([s.value for s in Strategy]),
                 default=Strategy.AUTO.value, show_default=True,
                 help="Recurrent states that the prefix cache keeps: snapshots (extra_buffer) or "
                 "final ones (no_buffer)."),
    click.option("--mamba-track-interval", type=click.IntRange(1),
                 default=TRACK_INTERVAL, show_default=True,
                 help="Fewest tokens between two snapshots of an answer."),
    click.option("--snapshots-per-prefill", type=click.IntRange(1),
                 default=None, help="Most snapshots of one chunk of a prompt; set by the memory "
                 "budget when left out. 1 is SGLang's behaviour."),
    click.option("--cached-snapshots", type=click.IntRange(0), default=None,
                 help="Slots for the prefix cache's snapshots; set by the memory budget when left "
                 "out."),
    click.option("--mamba-full-memory-ratio", type=Ratio(0, min_open=True), default=None,
                 help="Memory of state slots divided by memory of KV pages. When left out, cached "
                 "snapshots get half of what the running requests leave, at most 8 for each."),
    click.option("--speculative-algorithm",
                 type=click.Choice([s.value for s in SpeculativeAlgorithm]),
                 default=SpeculativeAlgorithm.OFF.value, show_default=True,
                 help="Guess tokens and verify several in one step: ngram guesses what followed "
                 "the same tokens before; auto does where it pays, by what steps cost and how many "
                 "guesses were right. Answers stay the same."),
    click.option("--speculative-num-draft-tokens",
                 type=click.Choice([str(window) for window in WINDOWS[1:]]),
                 default=str(DRAFT_TOKENS), show_default=True,
                 help="Tokens that one step verifies of a request: its newest and guesses."),
    click.option("--speculative-ngram-capacity", type=click.IntRange(0), default=0,
                 show_default=True,
                 help="Tokens of ended answers and their prompts, kept by each decode worker in up "
                 "to 24 bytes each, from which drafts of requests of the same API key and cache "
                 "salt are guessed, too; 0: none."),
    click.option("--no-graphs", "--enforce-eager", "--disable-cuda-graph", is_flag=True,
                 help="On a GPU, launch the kernels of each decode step anew instead of replaying "
                 "captured steps: slower, for debugging, or where a capture fails."),
    click.option("--no-overlap", is_flag=True,
                 help="Plan a step only after the one before it has ended."),
    click.option("--canary", is_flag=True,
                 help="Check at every step what slots and pages hold (debugging)."),
)  # fmt: skip

# Each process of a cluster has one engine, so a channel inside one process has no other end.
_CHANNELS = (AUTO, *BETWEEN_PROCESSES)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_TRANSFER = (
    click.option("--channel", type=click.Choice(_CHANNELS), default=AUTO, show_default=True,
                 help="Channel for state between workers; auto takes the best that both ends "
                 "have."),
    click.option("--nixl-interface", "nixl_interfaces", multiple=True, metavar="NAME",
                 help="A network or RDMA device on which NIXL may listen, because everybody there "
                 "is trusted: NIXL asks nobody who they are. May be given several times; loopback "
                 "alone when left out."),
    click.option("--verify", type=click.Choice(["off", "full"]), default=None,
                 help="Checksums of transferred state; full by default, but off between GPUs."),
)  # fmt: skip

_CLUSTER = (
    click.option("--routers", type=click.IntRange(1), default=1, show_default=True,
                 help="Number of routers; router i has each port plus i. Each serves with all "
                 "workers, and a part of every API key's caps."),
    click.option("--prefill", type=click.IntRange(1), default=1, show_default=True,
                 help="Number of workers that compute prompts."),
    click.option("--decode", type=click.IntRange(1), default=1, show_default=True,
                 help="Number of groups of workers that write answers."),
    click.option("--decode-dp", type=click.IntRange(1), default=1, show_default=True,
                 help="Number of ranks (workers) in each decode group; requests may name a rank."),
    click.option("--tp", type=click.IntRange(1), default=1, show_default=True,
                 help="Tensor-parallel ranks of each worker, a process each, which share its "
                 "threads, or have a GPU each."),
    click.option("--prefill-tp", type=click.IntRange(1), default=None,
                 help="Ranks of each prefill worker; as many as --tp when left out."),
    click.option("--decode-tp", type=click.IntRange(1), default=None,
                 help="Ranks of each decode worker; as many as --tp when left out."),
    click.option("--rank-timeout", type=Seconds(1), default=RANK_TIMEOUT_S, show_default=True,
                 help="Seconds that a rank waits for the others in a step; then its worker ends, "
                 "and is started again."),
    click.option("--threads", type=click.IntRange(1), default=None,
                 help="Compute threads of each worker; an even share of the cores when left out."),
    click.option("--state-return", type=click.Choice([r.value for r in StateReturn]),
                 default=StateReturn.AUTO.value, show_default=True,
                 help="Return the state of a conversation's last turn to the worker that "
                 "computes the next turn: when that comes (demand), then where fetching is sooner "
                 "than computing, as measured (auto), or at once (eager)."),
    click.option("--send-snapshots", type=click.Choice([s.value for s in SendSnapshots]),
                 default=SendSnapshots.OFF.value, show_default=True,
                 help="Also send a prompt's last snapshot to the rank's prefix cache."),
    click.option("--authority", type=click.Path(file_okay=False, path_type=Path), default=None,
                 help="Folder that `baton certs init` made, which then holds the certificates of "
                 "router and workers: `baton certs` lists, revokes and rotates them while the "
                 "cluster serves."),
    click.option("--tls-ca", type=_FILE, default=None,
                 help="Certificate (PEM) of the authority that signs those of router and workers; "
                 "one for this cluster alone when left out."),
    click.option("--tls-ca-key", type=_FILE, default=None,
                 help="Key (PEM) of --tls-ca. It stays in this process."),
    click.option("--ray-address", default=None,
                 help="A Ray cluster to join; a Ray of its own when left out. Start one with "
                      "RAY_worker_niceness=0, or workers run at low priority."),
    click.option("--start-timeout", type=Seconds(0, min_open=True), default=600.0,
                 show_default=True, help="Seconds after which a start counts as failed."),
)  # fmt: skip


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of a cluster; `config_from` reads their values."""
    for option in reversed(_MODEL + _ENGINE + _TRANSFER + _CLUSTER):
        command = option(command)
    return router_options(profile_option(placement_options(command)))


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name the model; `folder_from` reads their values."""
    for option in reversed(_MODEL):
        command = option(command)
    return command


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of one engine; `engine_from` reads their values."""
    for option in reversed(_MODEL + _ENGINE):
        command = option(command)
    return itl_target_option(command)


def transfer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of state transfer; `verify_from` reads the value of --verify."""
    for option in reversed(_TRANSFER):
        command = option(command)
    return command


def authority_from(options: dict[str, Any]) -> AuthorityFiles | Path | None:
    """Return the authority's files, its folder, or None. Raises StartError if only one file is
    given, or both files and a folder.
    """
    folder: Path | None = options["authority"]
    if folder is not None and (options["tls_ca"] or options["tls_ca_key"]):
        raise StartError("--authority and --tls-ca exclude each other: give one of them")
    if folder is not None:
        return folder.absolute()
    cert, key = options["tls_ca"], options["tls_ca_key"]
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise StartError("--tls-ca and --tls-ca-key belong together: give both")
    return AuthorityFiles(cert, key)


def verify_from(given: str | None) -> bool | None:
    """Return the value of --verify, or None if it was left out."""
    return None if given is None else given == "full"


def folder_from(options: dict[str, Any]) -> Path:
    """Return the model's folder; downloads a model of the hub that is not here yet.

    options: the options' values by parameter name; without --model it is the example model's
    folder. Raises StartError.
    """
    model = str(EXAMPLE_MODEL) if options["model"] is None else options["model"]
    try:
        return find_model(model, options["revision"], options["offline"])
    except ConfigError as err:
        raise StartError(f"--model {model}: {err}") from err


def dtype_from(options: dict[str, Any], folder: Path) -> str:
    """Return the value of --dtype; for auto, what config.json of the checkpoint names.

    float32 where it names none, as transformers does. Raises StartError.
    """
    if options["dtype"] != AUTO_DTYPE:
        return str(options["dtype"])
    try:
        config = read_json_object(folder / "config.json")
    except ConfigError as err:
        raise StartError(f"--model {folder}: {err}") from err
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        for key in ("dtype", "torch_dtype"):  # transformers 5 writes the first
            if part.get(key) is not None:
                return _known_dtype(part[key], folder)
    return "float32"


def _known_dtype(name: object, folder: Path) -> str:
    plain = str(name).removeprefix("torch.")
    if plain not in DTYPES:
        raise StartError(
            f"--dtype auto: {folder / 'config.json'} names {name!r}; give one of "
            f"{', '.join(DTYPES)}"
        )
    return plain


def check_names(options: dict[str, Any]) -> None:
    """Raise StartError for a name that nobody could give, or a folder that cannot be made."""
    check_served_name(options)
    check_can_be_made("--profile-folder", options["profile_folder"])
