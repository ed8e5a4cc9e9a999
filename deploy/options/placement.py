"""The options for where workers run: GPUs and nodes of Ray."""

from dataclasses import dataclass

from baton.core.options import Group, Number, option
from baton.deploy.demand.demand import NodePlacement, RoleDemand, labels_from, resources_from
from baton.deploy.errors import StartError


# fmt: off
@dataclass(frozen=True, kw_only=True)
class PlacementOptions:
    """The words by which an operator names GPUs and nodes."""

    gpus_per_worker: float | None = option(
        None, Group.WORKERS,
        "GPUs that each worker asks Ray for; with --device cuda, when left out, one for each of "
        "its ranks, or an equal part where this machine has fewer GPUs than workers. A part of 1 "
        "lets workers share a GPU, and its memory.", Number(0, above=True))
    prefill_labels: tuple[str, ...] = option(
        (), Group.RAY,
        "Label of the Ray nodes on which prefill workers may run. VALUE may be !VALUE, in(A,B) or "
        "!in(A,B). May be given several times.", names=("--prefill-label",), metavar="KEY=VALUE")
    decode_labels: tuple[str, ...] = option(
        (), Group.RAY, "Label of the Ray nodes on which decode workers may run, likewise.",
        names=("--decode-label",), metavar="KEY=VALUE")
    prefill_resources: tuple[str, ...] = option(
        (), Group.RAY,
        "Custom resource of Ray that each prefill worker takes. May be given several times.",
        names=("--prefill-resource",), metavar="NAME=AMOUNT")
    decode_resources: tuple[str, ...] = option(
        (), Group.RAY, "Custom resource of Ray that each decode worker takes, likewise.",
        names=("--decode-resource",), metavar="NAME=AMOUNT")
    wait_for_nodes: bool = option(
        False, Group.RAY,
        "Wait up to --start-timeout for nodes that an autoscaler adds; otherwise, too little room "
        "in Ray is an error at once.")
# fmt: on


def placement_of(options: PlacementOptions) -> NodePlacement:
    """Return the rules that the words stand for. Raises StartError."""
    gpus = options.gpus_per_worker
    if gpus is not None and gpus > 1 and gpus % 1:
        raise StartError(f"--gpus-per-worker {gpus:g}: expected a whole number, or a part of 1")
    return NodePlacement(
        gpus,
        RoleDemand(
            labels_from("--prefill-label", options.prefill_labels),
            resources_from("--prefill-resource", options.prefill_resources),
        ),
        RoleDemand(
            labels_from("--decode-label", options.decode_labels),
            resources_from("--decode-resource", options.decode_resources),
        ),
        options.wait_for_nodes,
    )
