"""The arguments of the native operations, field by field as in the C++ headers."""

import ctypes
from ctypes import c_double, c_int64, c_void_p
from typing import ClassVar

import torch
from torch import Tensor

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


def _fields(pointers: str, sizes: str, numbers: str = "") -> list[tuple[str, type]]:
    """Return `_fields_`: pointers first, then 64-bit integers, then doubles."""
    return [
        *((name, c_void_p) for name in pointers.split()),
        *((name, c_int64) for name in sizes.split()),
        *((name, c_double) for name in numbers.split()),
    ]


class Arguments(ctypes.Structure):
    """The arguments of one operation, built by keyword from tensors and numbers.

    operation: name of the operation in the library
    optional:  names of the pointers that may be None
    """

    operation: ClassVar[str]
    optional: ClassVar[frozenset[str]] = frozenset()
    _names: ClassVar[frozenset[str]]
    _pointers: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        cls._names = frozenset(field[0] for field in cls._fields_)
        cls._pointers = tuple(field[0] for field in cls._fields_ if field[1] is c_void_p)

    def __init__(self, **values: Tensor | float | None) -> None:
        """Take the address of each tensor. The caller keeps the tensors alive.

        Raises TypeError for a name that is missing or unknown, and for a pointer that is not given
        as a tensor; an optional one may be None.
        """
        if values.keys() != self._names:
            missing, unknown = self._names - values.keys(), values.keys() - self._names
            raise TypeError(
                f"{type(self).__name__} is missing {sorted(missing)} and does not know "
                f"{sorted(unknown)}"
            )
        for name in self._pointers:
            tensor = values[name]
            if isinstance(tensor, Tensor):
                values[name] = tensor.data_ptr()
            elif tensor is not None or name not in self.optional:
                raise TypeError(f"{type(self).__name__}.{name} must be a tensor, got {tensor!r}")
        super().__init__(**values)


class LinearArguments(Arguments):
    operation = "linear"
    optional = frozenset({"scale", "bias", "rounded"})
    _fields_ = _fields("x weight scale bias y rounded", "rows columns outputs x_stride dtype")


class PackedLinearArguments(Arguments):
    operation = "packed_linear"
    optional = frozenset({"bias", "rounded"})
    _fields_ = _fields("x weight bias y rounded", "rows columns outputs x_stride y_stride dtype")


class PackedFp8Arguments(Arguments):
    operation = "packed_fp8"
    optional = frozenset({"bias", "rounded"})
    _fields_ = _fields(
        "x weight scale bias y rounded", "rows columns outputs x_stride y_stride dtype group"
    )


class EmbeddingArguments(Arguments):
    operation = "embedding"
    optional = frozenset({"scale"})
    _fields_ = _fields("ids table scale out", "rows width dtype first count packed")


class RmsNormArguments(Arguments):
    operation = "rms_norm"
    _fields_ = _fields("x weight out", "rows heads width x_stride", "eps")


class SquareSumsArguments(Arguments):
    operation = "square_sums"
    _fields_ = _fields("x out", "rows width x_stride groups group")


class NormBySumsArguments(Arguments):
    operation = "norm_by_sums"
    _fields_ = _fields("x sums weight out", "rows width x_stride groups group whole", "eps")


class SwiGluArguments(Arguments):
    operation = "swiglu"
    _fields_ = _fields("gate_up out", "rows width")


class GeGluArguments(Arguments):
    operation = "geglu"
    _fields_ = _fields("gate_up out", "rows width")


class ConcatArguments(Arguments):
    operation = "concat"
    _fields_ = _fields("x y out", "rows x_width y_width x_stride y_stride")


class Relu2Arguments(Arguments):
    operation = "relu2"
    _fields_ = _fields("x out", "size")


class SigmoidGatedArguments(Arguments):
    operation = "sigmoid_gated"
    _fields_ = _fields("x gate out", "rows width gate_stride single")


class AddScaledArguments(Arguments):
    operation = "add_scaled"
    optional = frozenset({"x"})
    _fields_ = _fields("x y out", "size", "alpha")


class SelectRowsArguments(Arguments):
    operation = "select_rows"
    _fields_ = _fields("x rows out", "count width")


class RopeArguments(Arguments):
    operation = "rope"
    _fields_ = _fields("x cache positions out", "rows heads head_dim rotary x_stride")


class SampleTokensArguments(Arguments):
    operation = "sample_tokens"
    optional = frozenset({"top_k", "top_p", "min_p"})
    _fields_ = _fields(
        "logits rows temperature seeds positions top_k top_p min_p tokens", "count vocab stride"
    )


class KvWriteArguments(Arguments):
    operation = "kv_write"
    _fields_ = _fields(
        "k v k_pool v_pool pages offsets", "tokens width k_stride v_stride page_stride dtype"
    )


class AttnDecodeArguments(Arguments):
    operation = "attn_decode"
    optional = frozenset({"parts"})
    _fields_ = _fields(
        "q k_pool v_pool tables table_rows kv_lens out parts",
        "rows heads kv_heads head_dim page_size q_stride page_stride table_stride dtype",
        "scale",
    )


class AttnPrefillArguments(Arguments):
    operation = "attn_prefill"
    _fields_ = _fields(
        "q k_pool v_pool tables table_rows starts kv_lens out",
        "rows tokens heads kv_heads head_dim page_size q_stride page_stride table_stride dtype",
        "scale",
    )


class RouteSoftmaxArguments(Arguments):
    operation = "route_softmax"
    _fields_ = _fields("logits weights chosen", "rows experts top_k")


class RouteGroupedArguments(Arguments):
    operation = "route_grouped"
    _fields_ = _fields(
        "logits correction weights chosen",
        "rows experts top_k groups top_groups normalised",
        "factor",
    )


class RouteSoftmaxGroupedArguments(Arguments):
    operation = "route_softmax_grouped"
    _fields_ = _fields(
        "logits weights chosen", "rows experts top_k groups top_groups normalised", "factor"
    )


class PartialRopeArguments(Arguments):
    operation = "apply_partial_rope"
    _fields_ = _fields(
        "x cache positions out", "rows heads rotated x_stride head_stride interleaved"
    )


class LatentWriteArguments(Arguments):
    operation = "latent_write"
    _fields_ = _fields("latents pool pages offsets", "tokens width latent_stride page_stride dtype")


class MlaQueryArguments(Arguments):
    operation = "mla_query"
    _fields_ = _fields(
        "plain rotated up out",
        "rows heads keys values rank tail plain_stride plain_head rotated_stride rotated_head "
        "dtype",
    )


class MlaDecodeArguments(Arguments):
    operation = "mla_decode"
    optional = frozenset({"parts"})
    _fields_ = _fields(
        "q pool tables table_rows kv_lens out parts",
        "rows heads width rank page_size page_stride table_stride dtype",
        "scale",
    )


class LatentReadArguments(Arguments):
    operation = "latent_read"
    _fields_ = _fields(
        "pool tables table_rows kv_lens out",
        "rows tokens width page_size page_stride table_stride dtype",
    )


class MlaPrefillArguments(Arguments):
    operation = "mla_prefill"
    _fields_ = _fields(
        "plain rotated expanded latents starts kv_lens out",
        "rows tokens heads keys values rank tail "
        "plain_stride plain_head rotated_stride rotated_head out_stride",
        "scale",
    )


class FromLatentArguments(Arguments):
    operation = "from_latent"
    _fields_ = _fields("mean up out", "rows heads keys values rank dtype")


class ExpertsArguments(Arguments):
    operation = "experts"
    optional = frozenset({"up_scale", "down_scale"})
    _fields_ = _fields(
        "x weights chosen up down up_scale down_scale gathered activated outer order y",
        "rows width inner experts top_k x_stride dtype gated",
    )


class ConvStepArguments(Arguments):
    operation = "conv_step"
    optional = frozenset({"bias", "has_initial"})
    _fields_ = _fields(
        "x before after taps bias pool read_slots write_slots has_initial out",
        "rows channels x_stride width pool_stride dtype silu",
    )


class ConvPrefillArguments(Arguments):
    operation = "conv_prefill"
    optional = frozenset({"bias"})
    _fields_ = _fields(
        "x before after taps bias pool read_slots write_slots has_initial starts "
        "row_snapshots snapshot_ends snapshot_slots out",
        "rows tokens channels x_stride width pool_stride dtype silu",
    )


class DeltaStepArguments(Arguments):
    operation = "delta_step"
    optional = frozenset({"has_initial"})
    _fields_ = _fields(
        "qkv z b a conv_weight A dt_bias norm_weight conv_pool state_pool "
        "read_slots write_slots has_initial convolved y",
        "rows qkv_stride z_stride b_stride a_stride key_heads heads key_dim value_dim width "
        "conv_stride state_stride conv_dtype state_dtype channelwise silu_gate",
        "eps",
    )


class DeltaPrefillArguments(Arguments):
    operation = "delta_prefill"
    _fields_ = _fields(
        "qkv z b a conv_weight A dt_bias norm_weight conv_pool state_pool "
        "read_slots write_slots has_initial starts row_snapshots snapshot_ends snapshot_slots "
        "row_chunks chunk_starts chunk_slots y",
        "rows tokens qkv_stride z_stride b_stride a_stride key_heads heads key_dim value_dim width "
        "conv_stride state_stride conv_dtype state_dtype channelwise silu_gate",
        "eps",
    )


class Mamba2StepArguments(Arguments):
    operation = "mamba2_step"
    optional = frozenset({"conv_bias", "norm_weight", "has_initial"})
    _fields_ = _fields(
        "zxbcdt conv_weight conv_bias A D dt_bias norm_weight conv_pool ssm_pool "
        "read_slots write_slots has_initial convolved y",
        "rows stride heads head_dim groups d_state width "
        "conv_stride ssm_stride conv_dtype ssm_dtype gate_last",
        "dt_low dt_high eps",
    )


class Mamba2PrefillArguments(Arguments):
    operation = "mamba2_prefill"
    optional = frozenset({"conv_bias", "norm_weight"})
    _fields_ = _fields(
        "zxbcdt conv_weight conv_bias A D dt_bias norm_weight conv_pool ssm_pool "
        "read_slots write_slots has_initial starts row_chunks chunk_starts chunk_slots "
        "row_snapshots snapshot_ends snapshot_slots convolved scores y",
        "rows tokens chunks chunk stride heads head_dim groups d_state width "
        "conv_stride ssm_stride conv_dtype ssm_dtype gate_last",
        "dt_low dt_high eps",
    )


_NOT_ALWAYS = frozenset(
    {"has_initial", "write_slots", "counts", "track_slots", "track_counts", "kept"}
)
_ROWS = "read_slots write_slots has_initial counts track_slots track_counts kept"


class GuessNgramsArguments(Arguments):
    operation = "guess_ngrams"
    _fields_ = _fields(
        "tokens rows ends guesses found", "count stride searched shortest longest most"
    )


class ConvTokensArguments(Arguments):
    operation = "conv_tokens"
    optional = _NOT_ALWAYS | {"before", "after", "taps", "bias", "out"}
    _fields_ = _fields(
        f"x before after taps bias pool {_ROWS} out",
        "rows tokens channels x_stride width pool_stride kept_stride dtype silu "
        "layers x_layer pool_layer",
    )


class Mamba2TokensArguments(Arguments):
    operation = "mamba2_tokens"
    optional = _NOT_ALWAYS | {"z", "conv_bias", "norm_weight", "y"}
    _fields_ = _fields(
        f"inputs z conv_weight conv_bias A D dt_bias norm_weight conv_pool ssm_pool {_ROWS} "
        "convolved y",
        "rows tokens stride kept_stride heads head_dim groups d_state width "
        "conv_stride ssm_stride conv_dtype ssm_dtype gate_last "
        "layers input_layer conv_layer ssm_layer",
        "dt_low dt_high eps",
    )


class DeltaTokensArguments(Arguments):
    operation = "delta_tokens"
    optional = _NOT_ALWAYS | {"z", "y"}
    _fields_ = _fields(
        f"qkv z b a conv_weight A dt_bias norm_weight conv_pool state_pool {_ROWS} convolved y",
        "rows tokens qkv_stride z_stride b_stride a_stride kept_stride "
        "key_heads heads key_dim value_dim width "
        "conv_stride state_stride conv_dtype state_dtype channelwise silu_gate "
        "layers input_layer conv_layer state_layer",
        "eps",
    )


class AllReduceArguments(Arguments):
    operation = "all_reduce"
    _fields_ = _fields("x shared state", "count rank ranks capacity parent", "limit")


class GatherColumnsArguments(Arguments):
    operation = "gather_columns"
    _fields_ = _fields("x out widths shared state", "rows rank ranks capacity parent", "limit")


OPERATIONS: tuple[type[Arguments], ...] = (
    LinearArguments,
    PackedLinearArguments,
    PackedFp8Arguments,
    EmbeddingArguments,
    RmsNormArguments,
    SquareSumsArguments,
    NormBySumsArguments,
    SwiGluArguments,
    GeGluArguments,
    ConcatArguments,
    Relu2Arguments,
    SigmoidGatedArguments,
    AddScaledArguments,
    SelectRowsArguments,
    AllReduceArguments,
    GatherColumnsArguments,
    SampleTokensArguments,
    RopeArguments,
    KvWriteArguments,
    AttnDecodeArguments,
    AttnPrefillArguments,
    RouteSoftmaxArguments,
    RouteGroupedArguments,
    RouteSoftmaxGroupedArguments,
    PartialRopeArguments,
    LatentWriteArguments,
    MlaQueryArguments,
    MlaDecodeArguments,
    LatentReadArguments,
    MlaPrefillArguments,
    FromLatentArguments,
    ExpertsArguments,
    ConvStepArguments,
    ConvPrefillArguments,
    DeltaStepArguments,
    DeltaPrefillArguments,
    Mamba2StepArguments,
    Mamba2PrefillArguments,
    GuessNgramsArguments,
    ConvTokensArguments,
    Mamba2TokensArguments,
    DeltaTokensArguments,
)
