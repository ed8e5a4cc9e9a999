"""Peers of our kernels: torch's attention and grouped products, and the Triton kernels of
flash-linear-attention and mamba_ssm, if installed.

They run on inputs of the sizes that ours are timed with. A peer that is absent or fails is reported
so.
"""

import importlib
from collections.abc import Callable
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from baton.bench.gpu.maker import Maker
from baton.bench.gpu.sizes import Sizes

Call = Callable[[], object]


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def peers(sizes: Sizes, make: Maker) -> dict[str, tuple[str, Call]]:
    """Return the peer's name and a call that does the same work, by our case's name."""
    found: dict[str, tuple[str, Call]] = {}
    if sizes.attention is not None:
        found |= _attention(sizes, sizes.attention, make)
    if sizes.moe is not None:
        found |= _experts(sizes, sizes.moe, make)
    if sizes.mamba is not None:
        found |= _mamba(sizes, sizes.mamba, make)
    if sizes.delta is not None:
        of_kind = _channel_delta if sizes.channel_decay else _delta
        found |= of_kind(sizes, sizes.delta, make)
    return found


def _attention(
    sizes: Sizes, shape: tuple[int, int, int], make: Maker
) -> dict[str, tuple[str, Call]]:
    """Return torch's attention over keys that lie together, where ours lie in pages."""
    heads, kv_heads, width = shape
    fastest = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]

    def call(batch: int, asked: int, held: int, *, causal: bool) -> Call:
        q = make.floats(batch, heads, asked, width)
        k, v = (make.floats(batch, kv_heads, held, width) for _ in range(2))

        def run() -> Tensor:
            with sdpa_kernel(fastest, set_priority=True):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

        return run

    return {
        "attn_decode": (
            "torch (cuDNN first)",
            call(sizes.decode_rows, 1, sizes.context, causal=False),
        ),
        "attn_prefill": (
            "torch (cuDNN first)",
            call(1, sizes.prompt, sizes.prompt, causal=True),
        ),
    }


def _experts(sizes: Sizes, shape: tuple[int, int, int], make: Maker) -> dict[str, tuple[str, Call]]:
    """Return torch's grouped products of tokens that are sorted already; ours also route them."""
    experts, top_k, inner = shape
    w_in = make.floats(experts, 2 * inner, sizes.hidden)
    w_out = make.floats(experts, sizes.hidden, inner)

    def call(tokens: int) -> Call:
        pairs = tokens * top_k
        x = make.floats(pairs, sizes.hidden)
        ends = make.ints([pairs * (expert + 1) // experts for expert in range(experts)]).int()

        def run() -> Tensor:
            gate, up = F.grouped_mm(x, w_in.mT, offs=ends).chunk(2, dim=-1)
            return F.grouped_mm(F.silu(gate) * up, w_out.mT, offs=ends)

        return run

    return {
        "moe_decode": ("torch grouped_mm", call(sizes.decode_rows)),
        "moe_prefill": ("torch grouped_mm", call(sizes.prompt)),
    }


def _mamba(
    sizes: Sizes, shape: tuple[int, int, int, int, int], make: Maker
) -> dict[str, tuple[str, Call]]:
    """Return mamba_ssm's calls: state update and scan alone; ours add convolution, gate and
    norm.
    """
    update = _module("mamba_ssm.ops.triton.selective_state_update")
    scan = _module("mamba_ssm.ops.triton.ssd_combined")
    heads, head_dim, groups, state, chunk = shape
    rows, tokens = sizes.decode_rows, sizes.prompt
    A, D, dt_bias = -make.wide(heads).abs(), make.wide(heads), make.wide(heads)
    found: dict[str, tuple[str, Call]] = {}
    if update is not None:
        pool = make.wide(rows + 1, heads, head_dim, state)
        slots = make.slots(rows).int()
        x, B, C = (make.floats(rows, *s) for s in ((heads, head_dim), *[(groups, state)] * 2))
        dt = make.floats(rows, heads)[:, :, None].expand(-1, -1, head_dim)
        wide = (
            A[:, None, None].expand(-1, head_dim, state),
            D[:, None].expand(-1, head_dim),
            dt_bias[:, None].expand(-1, head_dim),
        )
        found["mamba2_step"] = (
            "mamba_ssm selective_state_update",
            lambda: update.selective_state_update(
                pool, x, dt, wide[0], B, C, D=wide[1], dt_bias=wide[2], dt_softplus=True,
                state_batch_indices=slots,
            ),
        )  # fmt: skip
    if scan is not None:
        long = make.floats(1, tokens, heads, head_dim)
        long_dt = make.floats(1, tokens, heads)
        long_B, long_C = (make.floats(1, tokens, groups, state) for _ in range(2))
        found["mamba2_prefill"] = (
            "mamba_ssm mamba_chunk_scan_combined",
            lambda: scan.mamba_chunk_scan_combined(
                long, long_dt, A, long_B, long_C, chunk_size=chunk, D=D, dt_bias=dt_bias,
                dt_softplus=True, return_final_states=True,
            ),
        )  # fmt: skip
    return found


def _delta(
    sizes: Sizes, shape: tuple[int, int, int, int], make: Maker
) -> dict[str, tuple[str, Call]]:
    """Return fla's calls: the delta rule alone; ours add convolution, gate and norm."""
    fla = _module("fla.ops.gated_delta_rule")
    if fla is None:
        return {}
    key_heads, heads, K, V = shape

    def inputs(batch: int, tokens: int) -> dict[str, torch.Tensor]:
        return {
            "q": make.floats(batch, tokens, key_heads, K),
            "k": make.floats(batch, tokens, key_heads, K),
            "v": make.floats(batch, tokens, heads, V),
            "g": -make.wide(batch, tokens, heads).abs(),
            "beta": make.wide(batch, tokens, heads).sigmoid(),
        }

    token, prompt = inputs(sizes.decode_rows, 1), inputs(1, sizes.prompt)
    state = make.wide(sizes.decode_rows, heads, K, V)
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    return {
        "delta_step": (
            "fla fused_recurrent_gated_delta_rule",
            lambda: fla.fused_recurrent_gated_delta_rule(**token, initial_state=state, **options),
        ),
        "delta_prefill": (
            "fla chunk_gated_delta_rule",
            lambda: fla.chunk_gated_delta_rule(**prompt, **options),
        ),
    }


def _channel_delta(
    sizes: Sizes, shape: tuple[int, int, int, int], make: Maker
) -> dict[str, tuple[str, Call]]:
    """Return fla's calls of Kimi Delta Attention: ours add convolution, gate and norm. Decays and
    rates are taken from projections inside, as by ours."""
    fla = _module("fla.ops.kda")
    if fla is None:
        return {}
    _, heads, K, V = shape

    def inputs(batch: int, tokens: int) -> dict[str, torch.Tensor]:
        return {
            "q": make.floats(batch, tokens, heads, K),
            "k": make.floats(batch, tokens, heads, K),
            "v": make.floats(batch, tokens, heads, V),
            "g": make.floats(batch, tokens, heads, K),
            "beta": make.floats(batch, tokens, heads).sigmoid(),
            "A_log": make.wide(heads),
            "dt_bias": make.wide(heads * K),
        }

    token, prompt = inputs(sizes.decode_rows, 1), inputs(1, sizes.prompt)
    state = make.wide(sizes.decode_rows, heads, K, V)
    options = {
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
        "use_gate_in_kernel": True,
    }
    return {
        "delta_step": (
            "fla fused_recurrent_kda",
            lambda: fla.fused_recurrent_kda(**token, initial_state=state, **options),
        ),
        "delta_prefill": ("fla chunk_kda", lambda: fla.chunk_kda(**prompt, **options)),
    }
