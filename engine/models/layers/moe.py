"""Mixtures of experts: Granite's, and routed experts composed of a router and experts."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baton.core.errors import ConfigError
from baton.engine.models.fields import Fields
from baton.engine.models.layers.base import DividedLayer
from baton.engine.models.layers.expert_share import ExpertShare
from baton.engine.models.layers.linear import WholeLinear
from baton.engine.models.scope import Scope
from baton.engine.models.step import Step
from baton.kernels.linear import ExpertWeight, Matrix


@dataclass(frozen=True)
class ExpertNames:
    """The checkpoint's names of an expert's three matrices."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


_COMMON_NAMES = ExpertNames()


class SoftmaxTopKMoe(DividedLayer):
    """Experts are gated like GatedMlp, stacked: [experts, 2 * intermediate, hidden] gate first. In
    a quantised checkpoint each matrix may be a tensor of its own.

    Ranks divide the experts; see ExpertShare.
    """

    def __init__(
        self,
        scope: Scope,
        hidden: int,
        intermediate: int,
        experts: int,
        top_k: int,
        router: str,
        gate_up: str,
        down: str,
    ) -> None:
        """router, gate_up, down: the names of the tensors, already stacked over experts."""
        self.share = ExpertShare.of(scope, hidden, intermediate, experts, top_k)
        self.top_k = top_k
        self.kernels = scope.kernels
        self.comm = scope.comm
        self.router = scope.product(router, (experts, hidden), (), dtype=scope.dtype)
        if scope.holds("experts.0.gate_proj.weight"):  # as llm-compressor writes them
            pair = _separate(scope, self.share, hidden, _COMMON_NAMES)
        else:
            pair = _stacked(scope, self.share, hidden, gate_up, down)
        self.gate_up, self.down = pair

    def part(self, x: Tensor, step: Step) -> Tensor:
        """See `DividedLayer`."""
        logits = self.kernels.linear(x, self.router, None)
        chosen = self.share.local(*self.kernels.route_softmax_topk(logits, self.top_k))
        return self.kernels.experts_swiglu(x, *chosen, self.gate_up, self.down)


@dataclass(frozen=True)
class GroupedTopK:
    """The rule by which a token's experts are chosen; see kernels.moe.route_sigmoid_grouped."""

    experts: int
    top_k: int
    groups: int
    top_groups: int
    normalised: bool
    factor: float

    @staticmethod
    def read(fields: Fields, experts: int, normalised: bool) -> "GroupedTopK":
        """Read the choice from the fields that most families share. normalised: where the config is
        silent.
        """
        return GroupedTopK(
            experts=experts,
            top_k=fields.integer("num_experts_per_tok"),
            groups=fields.integer("n_group", 1),
            top_groups=fields.integer("topk_group", 1),
            normalised=fields.flag("norm_topk_prob", normalised),
            factor=fields.number("routed_scaling_factor", 1.0),
        )


class Router(Protocol):
    """Chooses each token's experts."""

    @property
    def choice(self) -> GroupedTopK: ...

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the experts of each token. x: [T, hidden] -> weights [T, top_k] float32, experts
        [T, top_k] int64
        """
        ...


def router_weight(scope: Scope, experts: int, hidden: int) -> Matrix:
    """Return the matrix by which experts are chosen, in float32; on a GPU in the model's dtype
    where that has all of its values: the products are the same, and matrix units compute them."""
    weight = scope.product("weight", (experts, hidden), (), dtype=torch.float32)
    if scope.device.type in ("cpu", "meta") or not isinstance(weight, Tensor):
        return weight
    narrow = weight.to(scope.dtype)
    if not torch.equal(narrow.float(), weight):
        return weight
    scope.tally.nbytes += narrow.nbytes - weight.nbytes
    return narrow


class SoftmaxRouter:
    """A softmax over all experts, within the groups that hold the likeliest; in float32."""

    def __init__(self, scope: Scope, hidden: int, choice: GroupedTopK) -> None:
        _check_groups(choice, 1)
        self.choice = choice
        self.kernels = scope.kernels
        self.weight = router_weight(scope, choice.experts, hidden)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the experts of each token. x: [T, hidden] -> weights [T, top_k] float32, experts
        [T, top_k] int64
        """
        choice = self.choice
        logits = self.kernels.router_logits(x, self.weight)
        if choice.normalised and choice.groups == 1 and choice.factor == 1.0:
            return self.kernels.route_softmax_topk(logits, choice.top_k)  # comes to the same
        return self.kernels.route_softmax_grouped(
            logits,
            choice.top_k,
            choice.groups,
            choice.top_groups,
            choice.normalised,
            choice.factor,
        )


class GroupedRouter:
    """Sigmoid scores, with a correction that balances the choice; computed in float32."""

    def __init__(self, scope: Scope, hidden: int, choice: GroupedTopK) -> None:
        _check_groups(choice, 2)
        self.choice = choice
        self.kernels = scope.kernels
        self.weight = router_weight(scope, choice.experts, hidden)
        self.correction = scope.tensor(
            "e_score_correction_bias", choice.experts, dtype=torch.float32
        )

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the experts of each token. x: [T, hidden] -> weights [T, top_k] float32, experts
        [T, top_k] int64
        """
        choice = self.choice
        return self.kernels.route_sigmoid_grouped(
            self.kernels.router_logits(x, self.weight),
            self.correction,
            choice.top_k,
            choice.groups,
            choice.top_groups,
            choice.normalised,
            choice.factor,
        )


class RoutedSwiglu(DividedLayer):
    """Experts that are gated like GatedMlp. In the checkpoint each matrix is a tensor of its own,
    or all experts' are one: [experts, 2 * intermediate, hidden], gate first.

    Ranks divide the experts; see ExpertShare.
    """

    def __init__(
        self,
        scope: Scope,
        hidden: int,
        intermediate: int,
        router: Router,
        names: ExpertNames = _COMMON_NAMES,
    ) -> None:
        count = router.choice.experts
        share = ExpertShare.of(scope, hidden, intermediate, count, router.choice.top_k)
        self.share = share
        self.comm = scope.comm
        self.kernels = scope.kernels
        self.router = router
        if scope.holds("experts.gate_up_proj"):
            pair = _stacked(scope, share, hidden, "experts.gate_up_proj", "experts.down_proj")
        else:
            pair = _separate(scope, share, hidden, names)
        self.gate_up, self.down = pair

    def part(self, x: Tensor, step: Step) -> Tensor:
        """See `DividedLayer`."""
        chosen = self.share.local(*self.router(x))
        return self.kernels.experts_swiglu(x, *chosen, self.gate_up, self.down)


class RoutedRelu2(DividedLayer):
    """Experts without a gate, each a tensor of its own in the checkpoint.

    They may work on fewer channels than the model, between a projection down and one up again.
    Ranks divide the experts; see ExpertShare.
    """

    def __init__(
        self,
        scope: Scope,
        hidden: int,
        intermediate: int,
        choice: GroupedTopK,
        latent: int | None,
        bias: bool,
    ) -> None:
        """latent: channels that the experts work on; None: all of `hidden`. bias: of the
        projections to and from them."""
        width = latent or hidden
        share = ExpertShare.of(scope, width, intermediate, choice.experts, choice.top_k)
        self.share = share
        self.comm = scope.comm
        self.kernels = scope.kernels
        self.router = GroupedRouter(scope.at("gate"), hidden, choice)
        up = [[f"experts.{expert}.up_proj.weight"] for expert in share.own]
        down = [[f"experts.{expert}.down_proj.weight"] for expert in share.own]
        self.up = scope.experts(up, (intermediate, width), share.inner)
        self.down = scope.experts(down, (width, intermediate), share.inner, dim=1)
        self.latent = (
            None
            if latent is None
            else (
                WholeLinear(scope, "fc1_latent_proj", width, hidden, bias),
                WholeLinear(scope, "fc2_latent_proj", hidden, width, bias),
            )
        )

    @property
    def divided(self) -> bool:
        """See `DividedLayer`: a projection has a bias, and takes the sum."""
        return self.latent is None

    def part(self, x: Tensor, step: Step) -> Tensor:
        """See `DividedLayer`. x: [T, hidden] -> [T, channels that the experts work on]"""
        chosen = self.share.local(*self.router(x))
        if self.latent:
            x = self.latent[0](x)
        return self.kernels.experts_relu2(x, *chosen, self.up, self.down)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = super().__call__(x, step)
        return self.latent[1](y) if self.latent else y


def _stacked(
    scope: Scope, share: ExpertShare, hidden: int, gate_up: str, down: str
) -> tuple[ExpertWeight, ExpertWeight]:
    """Return this rank's part of all experts' matrices, which are one tensor each of these names.

    The first is [experts, 2 * intermediate, hidden], gate first; the second [experts, hidden,
    intermediate].
    """
    width = share.intermediate
    in_shape, out_shape = (share.experts, 2 * width, hidden), (share.experts, hidden, width)
    return share.stacked(scope, gate_up, in_shape, 1), share.stacked(scope, down, out_shape, 2)


def _separate(
    scope: Scope, share: ExpertShare, hidden: int, names: ExpertNames
) -> tuple[ExpertWeight, ExpertWeight]:
    """Return the same two tensors as `_stacked`, of experts that have tensors of their own."""
    pairs = [
        [f"experts.{expert}.{name}.weight" for name in (names.gate, names.up)]
        for expert in share.own
    ]
    singles = [[f"experts.{expert}.{names.down}.weight"] for expert in share.own]
    return (
        scope.experts(pairs, (share.intermediate, hidden), share.inner),
        scope.experts(singles, (hidden, share.intermediate), share.inner, dim=1),
    )


def _check_groups(choice: GroupedTopK, least: int) -> None:
    """Raise ConfigError where experts cannot be chosen by groups.

    least: experts that a group is judged by.
    """
    if (
        choice.experts % choice.groups
        or choice.top_groups > choice.groups
        or (choice.groups > 1 and choice.experts // choice.groups < least)
        or choice.top_k > choice.experts // choice.groups * choice.top_groups
    ):
        raise ConfigError(
            f"{choice.experts} experts cannot be chosen from {choice.top_groups} of "
            f"{choice.groups} groups, {choice.top_k} a token: groups must be equal, of {least} "
            "experts or more, and those that are chosen must hold as many as a token has"
        )
