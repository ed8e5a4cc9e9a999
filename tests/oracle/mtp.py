"""Checkpoints with a layer of multi-token prediction, and what it says in float64.

transformers has no such layer for most families. But it is a decoder layer of the model's own kind
and a norm, so it is made as a model of one layer, the donor: its layers and its last norm are the
donor's, embedding and head are the model's.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from oracle.checkpoints import load_reference, make_checkpoint
from oracle.specs import SPECS, Spec
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.engine.loading.weights import DummyWeights

_FILE = "model.safetensors"


@dataclass(frozen=True)
class MtpSpec:
    """The layer of one checkpoint.

    changed: fields of the donor's config that differ from the model's. count: the field of the
    model's config with the number of such layers
    rename: the name of a donor's tensor in the checkpoint; None: it has none
    fused, embedding_norm, hidden_norm: the names of what lies before the layer
    """

    name: str  # in oracle.specs
    changed: dict[str, Any]
    rename: Callable[[str], str | None]
    fused: str
    embedding_norm: str
    hidden_norm: str
    count: str = "num_nextn_predict_layers"

    @property
    def spec(self) -> Spec:
        return SPECS[self.name]

    @property
    def donor(self) -> Spec:
        config = {**self.spec.config, **self.changed}
        return replace(self.spec, name=f"{self.name}_donor", config=config)


def _qwen(name: str) -> str | None:
    if name == "model.norm.weight":
        return "mtp.norm.weight"
    inner = name.removeprefix("model.")
    return f"mtp.{inner}" if inner.startswith("layers.0.") else None


def _of_qwen(name: str) -> MtpSpec:
    return MtpSpec(
        name,
        {"num_hidden_layers": 1, "layer_types": ["full_attention"], "mlp_only_layers": []},
        _qwen,
        "mtp.fc.weight",
        "mtp.pre_fc_norm_embedding.weight",
        "mtp.pre_fc_norm_hidden.weight",
        "mtp_num_hidden_layers" if name.startswith("qwen3_5") else "num_nextn_predict_layers",
    )


def _nemotron(name: str) -> str | None:
    if name == "backbone.norm_f.weight":
        return "mtp.layers.1.final_layernorm.weight"
    inner = name.removeprefix("backbone.")
    return f"mtp.{inner}" if inner.startswith("layers.") else None


def _of_nemotron(name: str) -> MtpSpec:
    return MtpSpec(
        name,
        {"hybrid_override_pattern": "*E"},
        _nemotron,
        "mtp.layers.0.eh_proj.weight",
        "mtp.layers.0.enorm.weight",
        "mtp.layers.0.hnorm.weight",
    )


def _of_deepseek(name: str) -> MtpSpec:
    prefix = f"model.layers.{SPECS[name].config['num_hidden_layers']}."

    def rename(donated: str) -> str | None:
        if donated == "model.norm.weight":
            return f"{prefix}shared_head.norm.weight"
        copies = {
            "model.embed_tokens.weight": "embed_tokens.weight",
            "lm_head.weight": "shared_head.head.weight",
        }
        return prefix + copies.get(donated, donated.removeprefix("model.layers.0."))

    return MtpSpec(
        name,
        {"num_hidden_layers": 1, "first_k_dense_replace": 0},
        rename,
        f"{prefix}eh_proj.weight",
        f"{prefix}enorm.weight",
        f"{prefix}hnorm.weight",
    )


_MADE = {
    _of_qwen: ("qwen3_next_odd", "qwen3_next_moe", "qwen3_5_tied", "qwen3_5_moe"),
    _of_nemotron: ("nemotron_moe", "nemotron_latent"),
    _of_deepseek: ("deepseek3_grouped",),
}
MTP_SPECS = {name: made(name) for made, names in _MADE.items() for name in names}


def make_mtp_checkpoint(mtp: MtpSpec, folder: Path, donor: Path) -> Path:
    """Write the model with its layer to `folder`, and the donor to `donor`.

    Its norms have weights of 0.3 to 1.9: with ones, a norm that is left out shows little.
    """
    spec, hidden = mtp.spec, mtp.spec.config["hidden_size"]
    make_checkpoint(spec, folder)
    make_checkpoint(mtp.donor, donor)
    generator = torch.Generator().manual_seed(11)
    centre = 1.0 if spec.zero_centred else 0.0

    def factors(size: int) -> Tensor:
        return torch.rand(size, generator=generator) * 1.6 + 0.3 - centre

    given = load_file(donor / _FILE)
    for name, tensor in sorted(given.items()):
        if tensor.dim() == 1 and "norm" in name:
            given[name] = factors(len(tensor))
    save_file(given, donor / _FILE, metadata={"format": "pt"})
    source = DummyWeights(seed=12, gain=1.0)
    own = load_file(folder / _FILE)
    for name, tensor in given.items():
        target = mtp.rename(name)
        if target is not None:
            own[target] = tensor
    own[mtp.fused] = source.tensor(mtp.fused, (hidden, 2 * hidden))
    own[mtp.embedding_norm], own[mtp.hidden_norm] = factors(hidden), factors(hidden)
    save_file(own, folder / _FILE, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, mtp.count: 1}))
    return folder


class MtpReference:
    """The model and its layer in float64, by transformers' own modules."""

    def __init__(self, mtp: MtpSpec, folder: Path, donor: Path) -> None:
        self._model = load_reference(folder, torch.float64)
        self._donor = load_reference(donor, torch.float64)
        own = load_file(folder / _FILE)
        self._fused = own[mtp.fused].double()
        centre = 1.0 if mtp.spec.zero_centred else 0.0
        self._norms = [
            own[name].double() + centre for name in (mtp.embedding_norm, mtp.hidden_norm)
        ]
        config = self._model.config
        fields = ("rms_norm_eps", "layer_norm_epsilon")
        self._eps = next(getattr(config, name) for name in fields if hasattr(config, name))

    @torch.no_grad()
    def draft(self, ids: Sequence[int], drafts: Sequence[int], before_norm: bool = False) -> Tensor:
        """[len(drafts) + 1, vocab] float64: the logits behind `ids`, and behind each draft that
        is taken after them, where the layer goes on from its own hidden state: behind its last
        norm, or before_norm."""
        tokens = torch.tensor([*ids, *drafts])
        base = self._model.get_decoder()
        own = torch.tensor([ids])
        hidden = base(own, position_ids=torch.arange(len(ids))[None]).last_hidden_state[0]
        before = list(hidden[:-1])  # of the token before each from place 1 on
        logits = []
        for depth in range(len(drafts) + 1):
            count = len(ids) - 1 + depth
            embedded = base.get_input_embeddings()(tokens[1 : count + 1])
            parts = [embedded, torch.stack(before)]
            normed = [self._norm(x, w) for x, w in zip(parts, self._norms, strict=True)]
            entered = torch.cat(normed, dim=-1) @ self._fused.T
            places = torch.arange(1, count + 1)[None]
            layer = self._donor.get_decoder()
            entering: list[Tensor] = []
            last = layer.norm if hasattr(layer, "norm") else layer.norm_f
            hook = last.register_forward_pre_hook(lambda _, given, to=entering: to.append(given[0]))
            out = layer(inputs_embeds=entered[None], position_ids=places).last_hidden_state[0, -1]
            hook.remove()
            logits.append(self._model.lm_head(out))
            before.append(entering[0][0, -1] if before_norm else out)
        return torch.stack(logits)

    @torch.no_grad()
    def library_draft(self, ids: Sequence[int]) -> Tensor:
        """[vocab] float64: the logits behind `ids` by transformers' own class of such layers, which
        knows DeepSeek-V3's."""
        from transformers.modeling_layers import MtpModel

        self._model.config.num_mtp_layers = 1
        whole = MtpModel(self._model, 1).double().eval()
        (layer,), donor = whole.layers, self._donor.get_decoder()
        layer.mtp_block.load_state_dict(donor.layers[0].state_dict())
        layer.post_norm.load_state_dict(donor.norm.state_dict())
        layer.eh_proj.weight.copy_(self._fused)
        for norm, weight in zip((layer.enorm, layer.hnorm), self._norms, strict=True):
            norm.weight.copy_(weight)
        tokens, places = torch.tensor([ids]), torch.arange(len(ids))[None]
        hidden = self._model.get_decoder()(tokens, position_ids=places).last_hidden_state
        _, logits, _ = whole(
            tokens[:, 1:], hidden[:, :-1], attention_mask=None, position_ids=places[:, 1:],
            mtp_cache=None,
        )  # fmt: skip
        return logits[0, -1]

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self._eps).sqrt() * weight
