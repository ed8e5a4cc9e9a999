"""Values of the engine's options, and defaults that the command line shows. Its import needs no
torch.
"""

from enum import StrEnum


class LoadFormat(StrEnum):
    """The source of weights."""

    SAFETENSORS = "safetensors"  # the model folder
    DUMMY = "dummy"  # random, of the right shapes: for measurements without the files


class WeightFormat(StrEnum):
    """The form in which matrices are kept in memory."""

    AUTO = "auto"  # FP8 where the device's products read 8 bits, else MODEL
    MODEL = "model"  # in the model's dtype, mapped where the file has it
    # As a quantised checkpoint has them: half of bfloat16's bytes, and on a CPU the bits of its
    # answers. Those of any other are rounded to 8 bits at load, with a scale a row.
    FP8 = "fp8"
    # Rounded to 8 bits at load, with a scale a row, on a CPU: half of bfloat16's bytes. The next
    # token's distribution moves by at most 1e-2 nats (tests/engine/models/test_rounding.py).
    INT8 = "int8"


class QuantizationMethod(StrEnum):
    """The names that vLLM and SGLang have for the quantisation of checkpoints that are read."""

    FP8 = "fp8"
    MODELOPT = "modelopt"
    MODELOPT_FP8 = "modelopt_fp8"
    MODELOPT_MIXED = "modelopt_mixed"
    COMPRESSED_TENSORS = "compressed-tensors"
    W8A8_FP8 = "w8a8_fp8"
    W8A8_INT8 = "w8a8_int8"


class SpeculativeAlgorithm(StrEnum):
    """The way in which steps get draft tokens, or none."""

    OFF = "off"  # plain decoding
    NGRAM = "ngram"  # what followed the same tokens before, in the request itself
    AUTO = "auto"  # ngram, or mtp if the model has the layer, for the rows and steps where it pays
    MTP = "mtp"  # what the model's own layer of multi-token prediction expects


class MtpRecycle(StrEnum):
    """The hidden state of a draft that the next draft by the same layer goes on from."""

    AFTER_NORM = "after_norm"  # behind the layer's last norm, as the logits
    BEFORE_NORM = "before_norm"  # in front of it


class MixedBudget(StrEnum):
    """The choice of the prompt tokens in a step in which requests decode, where it is no number."""

    AUTO = "auto"  # as many as make the step about twice as long, by measured speeds


AUTO_DEVICE = "auto"
"""The choice of a device that takes a GPU where there is one that can be used."""
CPU_MEMORY_FRACTION = 0.8
"""The part that workers take of the memory that a machine has free."""
GPU_MEMORY_FRACTION = 0.9
"""The part that a worker takes of a whole card, as far as it is free."""
CPU_MAX_RUNNING, GPU_MAX_RUNNING = 16, 128
"""Requests that decode at once. A GPU reads its weights once a step for all of them."""
HELD_FRACTION = 0.5
LAYER_GROUP_BYTES = 1 << 20
"""A group costs both sides as much processor time as moving a megabyte does, which takes less than
a millisecond."""
TRACK_INTERVAL = 256
LEAST_CAPACITY, MOST_CAPACITY = 1 << 10, 1 << 31
"""Tokens of texts that drafts are looked up in, if any."""
DRAFT_TOKENS = 4
WINDOWS = (1, 2, 4, 8, 16)
"""Tokens that one step may compute of a request that decodes."""
MOST_CHAIN, MOST_NODES = 8, WINDOWS[-1]
"""Tokens that one step may verify of a request, where its drafts follow one another, and where they
are a tree."""
RANK_TIMEOUT_S = 60.0
"""Seconds that a rank waits for the other ranks of its replica in a step."""


def windows_up_to(most: int) -> tuple[int, ...]:
    """Return the windows of more than one token that steps may have, `most` being the largest."""
    return tuple(size for size in WINDOWS[1:] if size <= most)
