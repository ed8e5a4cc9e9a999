"""The training forward of a model and of its MTP layer, by transformers' own modules."""

from typing import Any

import torch
from torch import Tensor, nn

from mtp.families import MtpFamily

DEPTHS = 3
TOLD = 2  # tokens that a hidden state is to tell: its own, and the one before
_FAR = torch.finfo(torch.float32).min


def made(family: MtpFamily, changed: dict[str, Any]) -> Any:
    """Make transformers' model of a family, with some fields of its config changed."""
    transformers = _transformers()
    config = transformers.AutoConfig.for_model(family.name, **{**family.config, **changed})
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


class Body(nn.Module):
    """A model in training, whose hidden states are to tell their own token and the one before too.

    Those of large models do. The MTP layer needs it: by the hidden state in an entry it finds what
    stood behind the same words before.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        hidden, vocabulary = model.config.hidden_size, model.config.vocab_size
        self.told = nn.ModuleList(nn.Linear(hidden, vocabulary) for _ in range(TOLD))

    def forward(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return logits of the next token, and of the token itself and those before.

        ids: [B, L] int64; logits [B, L, vocab]
        """
        hidden = self.model.get_decoder()(ids, use_cache=False).last_hidden_state
        return self.model.lm_head(hidden), [told(hidden) for told in self.told]


class Drafter(nn.Module):
    """The MTP layer of a model, run as a server runs it: the first depth on true hidden states,
    each further depth on the result of the one before.

    A server writes the entries of accepted tokens from their true hidden states. So a query at
    depth d sees true entries but for the last d - 1 places, which have those of the depths before.
    """

    def __init__(self, family: MtpFamily) -> None:
        super().__init__()
        hidden = family.config["hidden_size"]
        self._eps, self._centre = family.eps, 1.0 if family.zero_centred else 0.0
        self.fuse = nn.Linear(2 * hidden, hidden, bias=False)
        ones = torch.ones(hidden) - self._centre
        self.embedding_norm, self.hidden_norm = (nn.Parameter(ones.clone()) for _ in range(2))
        self.donor = made(family, family.changed)

    def forward(self, hidden: Tensor, embedded: Tensor) -> list[Tensor]:
        """Return what each depth leaves behind the layer's last norm: [B, L, hidden] each.

        hidden, embedded: [B, L + 1, hidden], of all tokens of a text. Place 0 has no entry; result
        [:, i] of the depth d belongs to place 1 + i, and is right for i >= d alone.
        """
        length = embedded.shape[1] - 1
        places = torch.arange(1, length + 1)[None]
        before, found = hidden[:, :-1], []
        entries = _transformers().DynamicCache()
        for depth in range(DEPTHS):
            mask = visible(length, depth + 1)[-length:].expand(len(before), 1, -1, -1)
            out = self.donor.get_decoder()(
                inputs_embeds=self._fused(embedded[:, 1:], before),
                position_ids=places,
                attention_mask=mask,
                past_key_values=entries,
                use_cache=True,
            ).last_hidden_state
            found.append(out)
            before = torch.cat([torch.zeros_like(out[:, :1]), out[:, :-1]], dim=1)
        return found

    def _fused(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        parts = [self._norm(embedded, self.embedding_norm), self._norm(hidden, self.hidden_norm)]
        fused: Tensor = self.fuse(torch.cat(parts, dim=-1))
        return fused

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self._eps).rsqrt()
        return x * scale * (weight + self._centre)


def visible(length: int, depths: int) -> Tensor:
    """Return the mask of attention over the entries of `depths` depths, one after another:
    [depths * length, depths * length] float32, 0 where a query sees an entry.

    A query of depth d at place p sees true entries up to p - d (d counts from 0), and the entry of
    depth e at place p - d + e for each e up to d.
    """
    place = torch.arange(length).repeat(depths)
    depth = torch.arange(depths).repeat_interleave(length)
    behind = place[:, None] - place
    deeper = depth[:, None] - depth
    seen = (depth == 0) & (behind >= depth[:, None])
    seen |= (depth > 0) & (deeper >= 0) & (behind == deeper)
    return torch.where(seen, 0.0, _FAR)


def _transformers() -> Any:
    import transformers

    untyped: Any = transformers
    untyped.logging.set_verbosity_error()
    untyped.utils.logging.disable_progress_bar()
    return untyped
