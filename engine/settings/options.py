"""The options of an engine. Its import needs no torch."""

from dataclasses import dataclass
from pathlib import Path

from baton.core.latency_target import LatencyTarget
from baton.core.options import File, Folder, Group, Number, Whole, Words, option
from baton.engine.layout.grids import Strategy
from baton.engine.settings.choices import (
    CPU_MAX_RUNNING,
    CPU_MEMORY_FRACTION,
    GPU_MAX_RUNNING,
    GPU_MEMORY_FRACTION,
    HELD_FRACTION,
    LAYER_GROUP_BYTES,
    MOST_CHAIN,
    RANK_TIMEOUT_S,
    TRACK_INTERVAL,
    LoadFormat,
    MixedBudget,
    MtpRecycle,
    QuantizationMethod,
    WeightFormat,
)
from baton.kernels.kernel_choice import KernelChoice


# fmt: off
@dataclass(frozen=True, kw_only=True)
class EngineOptions(LatencyTarget):
    """The options of one engine, each declared once."""

    load_format: LoadFormat = option(
        LoadFormat.SAFETENSORS, Group.MODEL,
        "Source of the weights; dummy makes random ones, for measurements.")
    weight_format: WeightFormat = option(
        WeightFormat.AUTO, Group.MODEL,
        "Storage of the matrices: model is --dtype; fp8 keeps those that the files have in FP8, on "
        "a CPU in INT8 too, and rounds those of a checkpoint that has none to FP8 at load; int8 "
        "rounds all to 8-bit integers, on a CPU; auto keeps what the files have in 8 bits where "
        "the device reads it, else it is model.")
    round_vocabulary: bool = option(
        False, Group.MODEL,
        "Round the embedding and the head too, where --weight-format rounds at load: less memory "
        "and faster steps, and coarser logits.")
    quantization: QuantizationMethod | None = option(
        None, Group.MODEL,
        "The quantisation that the checkpoint should have, by the names of vLLM and SGLang; with "
        "another one, the start is refused. When left out, what the files hold is taken.")
    rank_timeout_s: float = option(
        RANK_TIMEOUT_S, Group.INSIDE,
        "Seconds that a rank waits for the others in a step; then its worker ends: "
        "`baton serve` starts it again.", Number(1, unit="seconds"), names=("--rank-timeout",))
    max_model_len: int | None = option(
        None, Group.MEMORY,
        "Most tokens of a prompt and its answer together; the model's limit when left out.",
        Whole(2))
    max_running: int | None = option(
        None, Group.MEMORY,
        f"Most requests that a worker runs at once; when left out {CPU_MAX_RUNNING} on a CPU and "
        f"{GPU_MAX_RUNNING} on a GPU, or as many as its memory serves.", Whole(1))
    memory_bytes: int | None = option(
        None, Group.MEMORY,
        "Memory of one worker in GiB, of each of its ranks with --tp; a share of the free memory "
        "when left out.", Number(0, above=True), names=("--memory-gb",), factor=1 << 30)
    memory_fraction: float | None = option(
        None, Group.MEMORY,
        "Part of the memory that workers take without --memory-gb: of what the machine has free, "
        f"{CPU_MEMORY_FRACTION:g} when left out, for all workers on its CPUs; of a GPU's whole "
        f"memory, as far as it is free, {GPU_MEMORY_FRACTION:g}, for all workers of a cluster "
        "that share it.", Number(0, 1, above=True))
    page_size: int = option(64, Group.MEMORY, "Tokens in one KV page.", Whole(1))
    chunked_prefill_size: int | None = option(
        None, Group.MEMORY,
        "Most prompt tokens in one step; 512 on a CPU, 2048 on a GPU, when left out.", Whole(1))
    prefill_beside_decode: int | MixedBudget | None = option(
        None, Group.MEMORY,
        "Most prompt tokens in a step in which requests decode, since their next tokens wait for "
        "it. When left out, a decode worker takes as many as make the step about twice as long, "
        "by measured speeds, and others as many as in other steps.", Whole(1))
    held_fraction: float = option(
        HELD_FRACTION, Group.MEMORY,
        "Part of a prefill worker's pool that prompts may hold before a decode worker has room "
        "for them.", Number(0, 1))
    mamba_full_memory_ratio: float | None = option(
        None, Group.MEMORY,
        "Memory of state slots divided by memory of KV pages. When left out, cached snapshots get "
        "half of what the running requests leave, at most 8 for each.", Number(0, above=True))
    prefix_caching: bool = option(
        True, Group.CACHE, "Compute every prompt from its first token.")
    mamba_scheduler_strategy: Strategy = option(
        Strategy.AUTO, Group.CACHE,
        "Recurrent states that the prefix cache keeps: snapshots (extra_buffer) or final ones "
        "(no_buffer).")
    mamba_track_interval: int = option(
        TRACK_INTERVAL, Group.CACHE, "Fewest tokens between two snapshots of an answer.", Whole(1))
    snapshots_per_prefill: int | None = option(
        None, Group.CACHE,
        "Most snapshots of one chunk of a prompt; set by the memory budget when left out. 1 is "
        "SGLang's behaviour.", Whole(1))
    cached_snapshots: int | None = option(
        None, Group.CACHE,
        "Slots for the prefix cache's snapshots; set by the memory budget when left out.",
        Whole(0))
    host_cache_bytes: int = option(
        0, Group.CACHE,
        "GiB of host memory, beside all other memory, in which each worker keeps copies of cached "
        "KV pages: a prefix that was evicted is copied back where that is sooner than computing "
        "it. 0: none.", Number(0), factor=1 << 30,
        names=("--host-cache-gb", "--hicache-size", "--kv-offloading-size"))
    host_cache_state_bytes: int = option(
        0, Group.CACHE,
        "GiB of host memory for copies of snapshots, beside --host-cache-gb for pages: a hybrid "
        "model needs both.", Number(0), names=("--host-cache-state-gb",), factor=1 << 30)
    file_cache: Path | None = option(
        None, Group.CACHE,
        "Folder for files with cached prefixes, which outlive the worker: what is found there is "
        "read where that is sooner than computing it. Workers may share it. Needs --host-cache-gb, "
        "--file-cache-gb and --state-key-file.", Folder())
    file_cache_bytes: int = option(
        0, Group.CACHE, "GiB of all files in --file-cache; those not used for longest go first.",
        Number(0), names=("--file-cache-gb",), factor=1 << 30)
    file_cache_age_s: float = option(
        7 * 24 * 3600.0, Group.CACHE,
        "Hours since its last use after which a file in --file-cache is removed.",
        Number(0, above=True), names=("--file-cache-hours",), factor=3600)
    state_key_file: Path | None = option(
        None, Group.CACHE,
        "File of the key that names and signs files in --file-cache; made at first use. Workers "
        "that share files need the same one.", File(exists=False))
    mtp_recycle: MtpRecycle | None = option(
        None, Group.DRAFTS,
        "What a further draft of the model's own layer goes on from: its hidden state behind its "
        "last norm, or in front of it; the model family's when left out. Answers stay the same.",
        Words({each.value: each for each in MtpRecycle}))
    speculative_synthetic_acceptance: float | None = option(
        None, Group.DRAFTS,
        "For benchmarks: instead of verifying drafts, draw how many are accepted, so that a row "
        "with drafts gives so many tokens on average. Answers are then drafts, not the model's; "
        "every reply says so. With mtp.", Number(1, MOST_CHAIN))
    # Of other answers, in which drafts are looked up: see `SharedTexts`.
    speculative_ngram_capacity: int = option(
        0, Group.DRAFTS,
        "Tokens of ended answers and their prompts, kept by each decode worker in up to 24 bytes "
        "each, from which drafts of requests of the same API key and cache salt are guessed, too; "
        "0: none.", Whole(0))
    # A report on layers costs about as much time as moving so many bytes.
    layer_group_bytes: int = option(
        LAYER_GROUP_BYTES, Group.TRANSFER,
        "Fewest bytes that one message about a prompt's finished layers covers.", Whole(1))
    kernels: KernelChoice = option(
        KernelChoice.AUTO, Group.DEBUGGING,
        "Implementation of the kernels; auto takes the fastest that the device has.")
    graphs: bool = option(
        True, Group.DEBUGGING,
        "On a GPU, launch the kernels of each decode step anew instead of replaying captured "
        "steps: slower, for debugging, or where a capture fails.",
        names=("--no-graphs", "--enforce-eager", "--disable-cuda-graph"))
    overlap: bool = option(
        True, Group.DEBUGGING, "Plan a step only after the one before it has ended.")
    canary: bool = option(
        False, Group.DEBUGGING, "Check at every step what slots and pages hold (debugging).")
# fmt: on
