"""The identity of a checkpoint, equal on every machine that holds a copy of it."""

from pathlib import Path

import xxhash

from baton.engine.assembly.kept_form import rounding_of
from baton.engine.settings.config import EngineConfig, ModelConfig
from baton.engine.settings.quantisation import UNQUANTISED
from baton.transfer.fingerprint import layout_fingerprint
from baton.transfer.memory.regions import Memory

SAMPLE_BYTES = 1 << 16


def worker_fingerprint(config: EngineConfig, model: ModelConfig, memory: Memory) -> dict[str, str]:
    """Return this worker's fingerprint, which the handshake of every stream compares.

    The layouts are those of the undivided model, also where each rank keeps a part. Weights that
    are rounded at load make another model; those kept as the files have them do not.
    """
    quantised = model.quantisation
    files = "" if quantised == UNQUANTISED else f" quantised by {quantised.name}"
    rounding = rounding_of(config.weight_format, quantised, config.round_vocabulary)
    rounded = "" if rounding is None else f" rounded to {config.weight_format} at load"
    if rounding is not None and rounding.vocabulary:
        rounded += ", the vocabulary too"
    return layout_fingerprint(
        memory.slots,
        memory.pages,
        model=f"{model.family}, config {_config_hash(config.model)}",
        weights=f"{weights_hash(config.model)}{files}{rounded}",
        dtype=str(config.dtype).removeprefix("torch."),
        chunk_size=model.mamba_chunk_size,
        ranks=config.tp,
        synthetic_acceptance=config.speculative_synthetic_acceptance,
    )


def weights_hash(folder: Path) -> str:
    """Hash the name, size, first and last 64 KiB of every weight file."""
    digest = xxhash.xxh3_64()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(SAMPLE_BYTES))
            file.seek(max(0, size - SAMPLE_BYTES))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _config_hash(folder: Path) -> str:
    path = folder / "config.json"
    return xxhash.xxh3_64_hexdigest(path.read_bytes() if path.is_file() else b"")
