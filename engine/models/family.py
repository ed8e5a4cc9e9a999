"""The description of a model family, and the parts that families share."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

import torch

from baton.core.errors import ConfigError
from baton.engine.layout.layout import CacheShape, LatentShape, RecurrentShape
from baton.engine.loading.weights import holds_weights, tensor_names
from baton.engine.models.commit_group import commit_groups
from baton.engine.models.decoder import Block, Decoder, Residual
from baton.engine.models.fields import CONFIG_FILE, Fields, read_json
from baton.engine.models.layers.base import Layer
from baton.engine.models.layers.norm import Norm
from baton.engine.models.layers.vocabulary import HEAD, Embedding, Head
from baton.engine.models.mtp_layer import MtpLayer
from baton.engine.models.scope import Scope
from baton.engine.settings.choices import MtpRecycle
from baton.engine.settings.config import Mixer, ModelConfig
from baton.engine.step.recurrent_index import SHIFT_WIDTH

_log = logging.getLogger(__name__)
# Fields that config.json must have for any decoder, and for one with attention.
SIZES = ("hidden_size", "vocab_size", "num_hidden_layers")
REQUIRED = (*SIZES, "num_attention_heads", "max_position_embeddings")
# Tokens of a sequence where config.json sets no limit, as for models that are all recurrent.
_UNLIMITED = 1 << 17
_GENERATION_FILE = "generation_config.json"
# transformers 5 writes the second spelling of each, older versions the first.
_MIXERS = {
    "mamba": Mixer.MAMBA2,
    "linear_attention": Mixer.MAMBA2,
    "attention": Mixer.ATTENTION,
    "full_attention": Mixer.ATTENTION,
    "conv": Mixer.SHORT_CONV,
}
# Mixers whose state grows with each token, in pages. All others keep theirs in a slot.
_PAGED = (Mixer.ATTENTION, Mixer.MLA)


@dataclass(frozen=True)
class DTypes:
    """The dtypes of a model. Set by the engine's options."""

    activations: torch.dtype  # of weights, activations and KV
    conv: torch.dtype
    ssm: torch.dtype


class ReadConfig(Protocol):
    def __call__(self, fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig: ...


class Build(Protocol):
    def __call__(self, config: ModelConfig, scope: Scope) -> Decoder: ...


@dataclass(frozen=True)
class MtpTensors:
    """The layer of multi-token prediction in a family's checkpoints.

    count: the field of config.json with the number of such layers; default: without it.
    recycle: what a further draft goes on from; each family says by whose measurement.
    used: those of `Family.ignored` that are read where the layer is run. ignored: patterns of
    tensors that are not used then, such as copies of the model's own.
    """

    count: str
    default: int
    recycle: MtpRecycle
    used: tuple[str, ...] = ("mtp.*",)
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """One model family: how to read its config.json, and how to compose its layers.

    ignored: patterns of tensors that its checkpoints may hold and that are not used; those of
    every family are rotary frequencies.
    {} in one is the number of layers: layers past the last guess further tokens.
    mtp: the layer that guesses further tokens; None: the family has none, or it is not run.
    aliases: other model_types that mean this family.
    verified: dtypes in which it is compared with transformers (tests/oracle), dense models alone
    in bfloat16.
    """

    model_type: str  # of config.json
    architecture: str  # in config.json's `architectures`
    read: ReadConfig
    build: Build
    layers: str  # what they are, in a few words
    verified: tuple[str, ...] = ("fp32", "bf16")
    ignored: tuple[str, ...] = ("*.rotary_emb.inv_freq",)
    mtp: "MtpTensors | None" = None
    aliases: tuple[str, ...] = ()
    more_architectures: tuple[str, ...] = ()  # others of its models

    @property
    def architectures(self) -> tuple[str, ...]:
        """Every name that config.json may give the model's class."""
        return (self.architecture, *self.more_architectures)

    def ignored_by(self, config: ModelConfig) -> list[str]:
        """Return the patterns of tensors that a model of this configuration does not use."""
        unused = self.ignored
        if config.mtp and self.mtp is not None:
            unused = (*(each for each in unused if each not in self.mtp.used), *self.mtp.ignored)
        return [pattern.format(len(config.layers)) for pattern in unused]


def layer_mixers(
    fields: Fields, names: tuple[str, ...], known: Mapping[str, Mixer] = _MIXERS
) -> tuple[tuple[Mixer, ...], ...]:
    """Return one mixer a layer, from layer types as config.json spells them. known: what
    they mean.
    """
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ConfigError(
            f"{fields.where}: unknown layer types {', '.join(unknown)}; "
            f"known are {', '.join(known)}"
        )
    count = fields.integer("num_hidden_layers")
    if len(names) != count:
        raise ConfigError(
            f"{fields.where}: {len(names)} layer types for num_hidden_layers = {count}"
        )
    return tuple((known[name],) for name in names)


def model_config(
    family: str,
    fields: Fields,
    folder: Path,
    dtypes: DTypes,
    layers: tuple[tuple[Mixer, ...], ...],
    recurrent: RecurrentShape | None = None,
    attention: CacheShape | None = None,
    chunk_size: int = 1,
) -> ModelConfig:
    """Make the configuration of a family whose recurrent layers have one shape.

    recurrent, attention: None where the family has no such layer.
    """
    mixers = [mixer for block in layers for mixer in block]
    attentions = sum(mixer in _PAGED for mixer in mixers)
    return ModelConfig(
        family=family,
        folder=folder,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        max_model_len=fields.integer("max_position_embeddings", _UNLIMITED),
        layers=layers,
        recurrent=(recurrent,) * (len(mixers) - attentions) if recurrent else (),
        attention=(attention,) * attentions if attention else (),
        mamba_chunk_size=chunk_size,
        eos_token_ids=_eos_token_ids(fields, folder),
        dtype=dtypes.activations,
        conv_dtype=dtypes.conv,
        ssm_dtype=dtypes.ssm,
        raw=dict(fields.raw),
        query_heads=fields.integer("num_attention_heads", 0, minimum=0) if attention else 0,
        expanded_latent=_expanded_latent(fields) if isinstance(attention, LatentShape) else 0,
    )


def has_mtp(config: ModelConfig, family: Family) -> bool:
    """Return true if `with_mtp` can run a layer of the model's files; where there are no weights
    yet, if config.json has one.
    """
    tensors = family.mtp
    if tensors is None or not config.attention or _mtp_layers(config, tensors) != 1:
        return False
    if not holds_weights(config.folder):
        return True
    # A config.json may count a layer that was left out of the files.
    patterns = [pattern.format(len(config.layers)) for pattern in tensors.used]
    names = tensor_names(config.folder)
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def _mtp_layers(config: ModelConfig, tensors: MtpTensors) -> int:
    fields = Fields(config.raw, str(config.folder / CONFIG_FILE))
    return fields.integer(tensors.count, tensors.default, minimum=0)


def with_mtp(config: ModelConfig, family: Family) -> ModelConfig:
    """Return the configuration with the layer of multi-token prediction: one more attention layer
    of a page, and in a slot the hidden state of the last token. Raises ConfigError.
    """
    where = str(config.folder / CONFIG_FILE)
    if family.mtp is None:
        raise ConfigError(
            f"{where}: multi-token prediction of {family.model_type} models is not supported; use "
            "speculative_algorithm ngram, or off"
        )
    count = _mtp_layers(config, family.mtp)
    if count != 1 or not config.attention:
        raise ConfigError(
            f"{where}: {family.mtp.count} is {count}, and multi-token prediction runs one layer; "
            "use speculative_algorithm ngram, or off"
        )
    hidden = RecurrentShape(conv=(config.hidden_size, SHIFT_WIDTH - 1), ssm=None, replicated=True)
    return replace(
        config,
        mtp=True,
        mtp_recycle=family.mtp.recycle,
        recurrent=(*config.recurrent, hidden),
        attention=(*config.attention, config.attention[-1]),
    )


def log_difference(config: ModelConfig, scope: Scope, name: str, other: str) -> None:
    """Log that a checkpoint's tensors are used though config.json ties them to others."""
    if scope.device.type != "meta":
        _log.warning(
            "%s holds a %s that differs from %s, to which its config.json (tie_word_embeddings) "
            "ties it; both are used as they are",
            config.folder,
            name,
            other,
        )


def _expanded_latent(fields: Fields) -> int:
    """Return the values of all heads' keys and values that one latent holds."""
    each = fields.integer("qk_nope_head_dim") + fields.integer("v_head_dim")
    return fields.integer("num_attention_heads") * each


def placed(config: ModelConfig) -> Iterator[tuple[int, Mixer, int]]:
    """Return (layer, mixer, the mixer's place among those of its kind), layers without one left
    out.
    """
    seen: Counter[Mixer] = Counter()
    for layer, mixers in enumerate(config.layers):
        for mixer in mixers:
            yield layer, mixer, seen[mixer]
            seen[mixer] += 1


def residual(
    scope: Scope,
    norm: str,
    hidden: int,
    eps: float,
    *branches: Layer,
    multiplier: float = 1.0,
    zero_centred: bool = False,
) -> Residual:
    """Build `branches` side by side behind the norm called `norm`. zero_centred: see Norm."""
    first = Norm(scope, norm, hidden, eps, zero_centred)
    return Residual(scope.kernels, first, branches, multiplier)


def decoder(
    config: ModelConfig,
    scope: Scope,
    blocks: Sequence[Block],
    eps: float,
    embedding: str = "model.embed_tokens",
    norm: str = "model.norm",
    tied: bool = False,
    embedding_multiplier: float = 1.0,
    logits_divisor: float = 1.0,
    zero_centred: bool = False,
    mtp: MtpLayer | None = None,
) -> Decoder:
    """Build a decoder of `blocks` between the embedding and the last norm that are called so, and
    the head.

    tied: true if head and embedding are one where the config does not say. Where the checkpoint
    holds a head of other values, they are two. zero_centred: as of Norm. mtp: the layer of
    multi-token prediction, where it is run.
    """
    hidden = config.hidden_size
    tied = Fields(config.raw, "config.json").flag("tie_word_embeddings", tied)
    if tied and scope.differs(HEAD, f"{embedding}.weight"):
        tied = False
        log_difference(config, scope, HEAD, f"{embedding}.weight")
    table = Embedding(scope, embedding, config.vocab_size, hidden, multiplied=tied)
    return Decoder(
        config,
        scope.kernels,
        table,
        tuple(blocks),
        norm=Norm(scope, norm, hidden, eps, zero_centred),
        head=Head(scope, table, hidden, tied, 1.0 / logits_divisor),
        tally=scope.tally,
        # The MTP layer goes on from the hidden states of all tokens.
        mixing=len(blocks)
        if mtp is not None
        else max((i for i, block in enumerate(blocks, 1) if block.mixes), default=0),
        embedding_multiplier=embedding_multiplier,
        commits=commit_groups(scope.recurrent, config.recurrent),
        mtp=mtp,
    )


def _eos_token_ids(fields: Fields, folder: Path) -> tuple[int, ...]:
    """Return the ids of config.json, and those that generation_config.json adds."""
    sources = [fields]
    path = folder / _GENERATION_FILE
    if path.is_file():
        sources.append(Fields(read_json(path), str(path)))
    ids = [ident for source in sources for ident in source.integers("eos_token_id", ())]
    return tuple(dict.fromkeys(ids))
