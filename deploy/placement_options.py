"""The command-line options for where workers run: GPUs, nodes of Ray, addresses."""

from collections.abc import Callable
from typing import Any

import click

from baton.deploy.demand.demand import NodePlacement, RoleDemand, labels_from, resources_from
from baton.deploy.errors import StartError

_PLACEMENT = (
    click.option("--gpus-per-worker", type=click.FloatRange(0, min_open=True), default=None,
                 help="GPUs that each worker asks Ray for; with --device cuda, when left out, one "
                 "for each of its ranks, or an equal part where this machine has fewer GPUs than "
                 "workers. A part of 1 lets workers share a GPU, and its memory."),
    click.option("--prefill-label", "prefill_labels", multiple=True, metavar="KEY=VALUE",
                 help="Label of the Ray nodes on which prefill workers may run. VALUE may be "
                 "!VALUE, in(A,B) or !in(A,B). May be given several times."),
    click.option("--decode-label", "decode_labels", multiple=True, metavar="KEY=VALUE",
                 help="Label of the Ray nodes on which decode workers may run, likewise."),
    click.option("--prefill-resource", "prefill_resources", multiple=True, metavar="NAME=AMOUNT",
                 help="Custom resource of Ray that each prefill worker takes. May be given several "
                 "times."),
    click.option("--decode-resource", "decode_resources", multiple=True, metavar="NAME=AMOUNT",
                 help="Custom resource of Ray that each decode worker takes, likewise."),
    click.option("--wait-for-nodes", is_flag=True,
                 help="Wait up to --start-timeout for nodes that an autoscaler adds; otherwise, "
                 "too little room in Ray is an error at once."),
    click.option("--worker-interface", default=None, metavar="NAME",
                 help="Network interface, on each host, whose address workers listen on and "
                 "register; the address by which their host joined Ray when left out."),
)  # fmt: skip


def placement_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for where workers run; `placement_from` reads their values."""
    for option in reversed(_PLACEMENT):
        command = option(command)
    return command


def placement_from(options: dict[str, Any]) -> NodePlacement:
    """Build the placement from the options' values. Raises StartError."""
    gpus = options["gpus_per_worker"]
    if gpus is not None and gpus > 1 and gpus % 1:
        raise StartError(f"--gpus-per-worker {gpus:g}: expected a whole number, or a part of 1")
    return NodePlacement(
        gpus,
        RoleDemand(
            labels_from("--prefill-label", options["prefill_labels"]),
            resources_from("--prefill-resource", options["prefill_resources"]),
        ),
        RoleDemand(
            labels_from("--decode-label", options["decode_labels"]),
            resources_from("--decode-resource", options["decode_resources"]),
        ),
        options["wait_for_nodes"],
    )
