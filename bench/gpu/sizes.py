"""Layer sizes of the models whose kernels are timed, and of small ones for tests."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sizes:
    """A model's layers, and the batches that they are timed with."""

    name: str
    hidden: int
    # heads, head_dim, groups, d_state, tokens of a chunk
    mamba: tuple[int, int, int, int, int] | None
    delta: tuple[int, int, int, int] | None  # key heads, value heads, key and value channels
    channel_decay: bool  # of the delta rule: one a key channel (KDA)
    conv: int | None  # taps of a mixer that is a gated convolution of `hidden` channels
    attention: tuple[int, int, int] | None  # heads, KV heads, head_dim
    latent: tuple[int, int, int, int] | None  # heads, rank, rotated, plain (and value) channels
    moe: tuple[int, int, int] | None  # experts, of a token, intermediate
    vocab: int
    decode_rows: int
    context: int  # tokens that each decoding row holds
    prompt: int  # tokens of one prompt
    page_size: int = 64


def _sizes(name: str, hidden: int, vocab: int, **layers: object) -> Sizes:
    """Return sizes timed with 64 rows of 4096 tokens and a prompt of 8192."""
    kinds = ("mamba", "delta", "conv", "attention", "latent", "moe")
    fields = {**dict.fromkeys(kinds), "channel_decay": False, **layers}
    return Sizes(name, hidden, vocab=vocab, decode_rows=64, context=4096, prompt=8192, **fields)  # type: ignore[arg-type]


NEMOTRON_9B = _sizes(
    "Nemotron-Nano-9B-v2", 4480, 131072, mamba=(128, 80, 8, 128, 128), attention=(40, 8, 128)
)
GRANITE_SMALL = _sizes(
    "Granite-4.0-H-small", 4096, 100352, mamba=(128, 64, 1, 128, 256), attention=(32, 8, 128),
    moe=(72, 10, 768),
)  # fmt: skip
QWEN3_NEXT = _sizes(
    "Qwen3-Next-80B-A3B", 2048, 151936, delta=(16, 32, 128, 128), attention=(16, 2, 256),
    moe=(512, 10, 512),
)  # fmt: skip
KIMI_LINEAR = _sizes(
    "Kimi-Linear-48B-A3B", 2304, 163840, delta=(32, 32, 128, 128), channel_decay=True,
    latent=(32, 512, 64, 128), moe=(256, 8, 1024),
)  # fmt: skip
LFM2 = _sizes("LFM2-2.6B", 2048, 65536, conv=3, attention=(32, 8, 64))
MODELS = (NEMOTRON_9B, GRANITE_SMALL, QWEN3_NEXT, KIMI_LINEAR, LFM2)
TINY = replace(
    _sizes(
        "tiny", 24, 50, mamba=(4, 6, 2, 7, 16), delta=(2, 4, 10, 6), attention=(6, 2, 12),
        latent=(4, 20, 8, 12), moe=(5, 2, 16), conv=3,
    ),
    decode_rows=3, context=40, prompt=20, page_size=8,
)  # fmt: skip
# Triton compiles an argument of 1 as a constant: kernels must work with both.
ONES = replace(
    TINY, name="ones", mamba=(1, 6, 1, 7, 16), delta=(1, 1, 10, 6), attention=(1, 1, 12),
    latent=(1, 20, 8, 12), moe=(2, 1, 16), decode_rows=1, context=1, prompt=1,
)  # fmt: skip
TINY_CHANNELS = replace(TINY, name="tiny KDA", delta=(2, 2, 10, 6), channel_decay=True)
