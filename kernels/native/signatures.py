"""The arguments of the native operations, field by field as in the headers."""

import ctypes
from ctypes import c_double, c_int64, c_void_p

import torch

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


def _fields(pointers: str, sizes: str, numbers: str = "") -> list[tuple[str, type]]:
    """Names of pointers, then of 64-bit integers, then of doubles."""
    return [
        *((name, c_void_p) for name in pointers.split()),
        *((name, c_int64) for name in sizes.split()),
        *((name, c_double) for name in numbers.split()),
    ]


class Arguments(ctypes.Structure):
    """Of one operation; `operation` is its name in the library."""

    operation: str


class Linear(Arguments):
    operation = "linear"
    _fields_ = _fields("x weight scale bias y rounded", "rows columns outputs x_stride dtype")


class PackedLinear(Arguments):
    operation = "packed_linear"
    _fields_ = _fields("x weight bias y rounded", "rows columns outputs x_stride dtype")


class Embedding(Arguments):
    operation = "embedding"
    _fields_ = _fields("ids table scale out", "rows width dtype")


class RmsNorm(Arguments):
    operation = "rms_norm"
    _fields_ = _fields("x weight out", "rows heads width x_stride", "eps weight_offset")


class SwiGlu(Arguments):
    operation = "swiglu"
    _fields_ = _fields("gate_up out", "rows width")


class GeGlu(Arguments):
    operation = "geglu"
    _fields_ = _fields("gate_up out", "rows width")


class Beside(Arguments):
    operation = "beside"
    _fields_ = _fields("x y out", "rows x_width y_width x_stride y_stride")


class Relu2(Arguments):
    operation = "relu2"
    _fields_ = _fields("x out", "size")


class SigmoidGated(Arguments):
    operation = "sigmoid_gated"
    _fields_ = _fields("x gate out", "rows width gate_stride single")


class AddScaled(Arguments):
    operation = "add_scaled"
    _fields_ = _fields("x y out", "size", "alpha")


class SelectRows(Arguments):
    operation = "select_rows"
    _fields_ = _fields("x rows out", "count width")


class Rope(Arguments):
    operation = "rope"
    _fields_ = _fields("x cache positions out", "rows heads head_dim rotary x_stride")


class KvWrite(Arguments):
    operation = "kv_write"
    _fields_ = _fields(
        "k v k_pool v_pool pages offsets", "tokens width k_stride v_stride page_stride dtype"
    )


class AttnDecode(Arguments):
    operation = "attn_decode"
    _fields_ = _fields(
        "q k_pool v_pool tables kv_lens out",
        "rows heads kv_heads head_dim page_size q_stride page_stride table_stride dtype window",
        "scale softcap",
    )


class AttnPrefill(Arguments):
    operation = "attn_prefill"
    _fields_ = _fields(
        "q k_pool v_pool tables starts kv_lens out",
        "rows tokens heads kv_heads head_dim page_size q_stride page_stride table_stride dtype "
        "window",
        "scale softcap",
    )


class RouteSoftmax(Arguments):
    operation = "route_softmax"
    _fields_ = _fields("logits weights chosen", "rows experts top_k")


class RouteGrouped(Arguments):
    operation = "route_grouped"
    _fields_ = _fields(
        "logits correction weights chosen",
        "rows experts top_k groups top_groups normalised",
        "factor",
    )


class RouteSoftmaxGrouped(Arguments):
    operation = "route_softmax_grouped"
    _fields_ = _fields(
        "logits weights chosen", "rows experts top_k groups top_groups normalised", "factor"
    )


class RotateTails(Arguments):
    operation = "rotate_tails"
    _fields_ = _fields(
        "x cache positions out", "rows heads rotated x_stride head_stride interleaved"
    )


class LatentWrite(Arguments):
    operation = "latent_write"
    _fields_ = _fields("latents pool pages offsets", "tokens width latent_stride page_stride dtype")


class MlaQuery(Arguments):
    operation = "mla_query"
    _fields_ = _fields(
        "plain rotated up out",
        "rows heads keys values rank tail plain_stride plain_head rotated_stride rotated_head "
        "dtype",
    )


class MlaDecode(Arguments):
    operation = "mla_decode"
    _fields_ = _fields(
        "q pool tables kv_lens out",
        "rows heads width rank page_size page_stride table_stride dtype",
        "scale",
    )


class LatentRead(Arguments):
    operation = "latent_read"
    _fields_ = _fields(
        "pool tables kv_lens out",
        "rows tokens width page_size page_stride table_stride dtype",
    )


class MlaPrefill(Arguments):
    operation = "mla_prefill"
    _fields_ = _fields(
        "plain rotated expanded latents starts kv_lens out",
        "rows tokens heads keys values rank tail "
        "plain_stride plain_head rotated_stride rotated_head out_stride",
        "scale",
    )


class FromLatent(Arguments):
    operation = "from_latent"
    _fields_ = _fields("mean up out", "rows heads keys values rank dtype")


class Experts(Arguments):
    operation = "experts"
    _fields_ = _fields(
        "x weights chosen up down up_scale down_scale gathered activated outer order y",
        "rows width inner experts top_k x_stride dtype gated",
    )


class ConvStep(Arguments):
    operation = "conv_step"
    _fields_ = _fields(
        "x before after taps bias pool read_slots write_slots has_initial out",
        "rows channels x_stride width pool_stride dtype silu",
    )


class ConvPrefill(Arguments):
    operation = "conv_prefill"
    _fields_ = _fields(
        "x before after taps bias pool read_slots write_slots has_initial starts "
        "row_snapshots snapshot_ends snapshot_slots out",
        "rows tokens channels x_stride width pool_stride dtype silu",
    )


class DeltaStep(Arguments):
    operation = "delta_step"
    _fields_ = _fields(
        "qkv z b a conv_weight A dt_bias norm_weight conv_pool state_pool "
        "read_slots write_slots has_initial convolved y",
        "rows qkv_stride z_stride b_stride a_stride key_heads heads key_dim value_dim width "
        "conv_stride state_stride conv_dtype state_dtype channelwise silu_gate",
        "eps",
    )


class DeltaPrefill(Arguments):
    operation = "delta_prefill"
    _fields_ = _fields(
        "qkv z b a conv_weight A dt_bias norm_weight conv_pool state_pool "
        "read_slots write_slots has_initial starts row_snapshots snapshot_ends snapshot_slots "
        "row_chunks chunk_starts chunk_slots y",
        "rows tokens qkv_stride z_stride b_stride a_stride key_heads heads key_dim value_dim width "
        "conv_stride state_stride conv_dtype state_dtype channelwise silu_gate",
        "eps",
    )


class Mamba2Step(Arguments):
    operation = "mamba2_step"
    _fields_ = _fields(
        "zxbcdt conv_weight conv_bias A D dt_bias norm_weight conv_pool ssm_pool "
        "read_slots write_slots has_initial convolved y",
        "rows stride heads head_dim groups d_state width "
        "conv_stride ssm_stride conv_dtype ssm_dtype gate_last",
        "dt_low dt_high eps",
    )


class Mamba2Prefill(Arguments):
    operation = "mamba2_prefill"
    _fields_ = _fields(
        "zxbcdt conv_weight conv_bias A D dt_bias norm_weight conv_pool ssm_pool "
        "read_slots write_slots has_initial starts row_chunks chunk_starts chunk_slots "
        "row_snapshots snapshot_ends snapshot_slots convolved scores y",
        "rows tokens chunks chunk stride heads head_dim groups d_state width "
        "conv_stride ssm_stride conv_dtype ssm_dtype gate_last",
        "dt_low dt_high eps",
    )


OPERATIONS: tuple[type[Arguments], ...] = (
    Linear,
    PackedLinear,
    Embedding,
    RmsNorm,
    SwiGlu,
    GeGlu,
    Beside,
    Relu2,
    SigmoidGated,
    AddScaled,
    SelectRows,
    Rope,
    KvWrite,
    AttnDecode,
    AttnPrefill,
    RouteSoftmax,
    RouteGrouped,
    RouteSoftmaxGrouped,
    RotateTails,
    LatentWrite,
    MlaQuery,
    MlaDecode,
    LatentRead,
    MlaPrefill,
    FromLatent,
    Experts,
    ConvStep,
    ConvPrefill,
    DeltaStep,
    DeltaPrefill,
    Mamba2Step,
    Mamba2Prefill,
)
