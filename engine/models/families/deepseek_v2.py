"""DeepSeek-V2: DeepSeek-V3 with experts chosen by a softmax."""

from dataclasses import replace
from functools import partial

from baton.core.errors import ConfigError
from baton.engine.models.families import deepseek_v3
from baton.engine.models.family import Family
from baton.engine.models.fields import Fields
from baton.engine.models.layers.moe import GroupedTopK, Router, SoftmaxRouter
from baton.engine.models.scope import Scope


def _router(fields: Fields, scope: Scope, hidden: int, experts: int) -> Router:
    fields.only("scoring_func", "softmax", "the router is built on it")
    fields.only("norm_topk_prob", False, "weights are what the softmax gives")
    method = fields.text("topk_method", "greedy")
    choice = GroupedTopK.read(fields, experts, normalised=False)
    if method == "greedy":
        choice = replace(choice, groups=1, top_groups=1)
    elif method != "group_limited_greedy":
        raise ConfigError(
            f'{fields.where}: topk_method should be "greedy" or "group_limited_greedy"; '
            f'got "{method}"'
        )
    return SoftmaxRouter(scope, hidden, choice)


FAMILY = Family(
    "deepseek_v2",
    "DeepseekV2ForCausalLM",
    partial(deepseek_v3.read, "deepseek_v2"),
    partial(deepseek_v3.build, router=_router),
    "latent attention; MLP, experts",
    verified=("fp32",),
)
