"""The check that engines start here and answer: one for each kind of layer, with random weights."""

from collections.abc import Iterator, Sequence

from baton.deploy.doctor.finding import Finding, Level, ok
from baton.deploy.doctor.made_up_models import KINDS
from baton.deploy.doctor.probe import run_probe
from baton.deploy.errors import ProbeError

PROBE = "baton.deploy.doctor.token_probe"
FARTHEST = 3.0
"""Multiple of bfloat16's own rounding: 0.6 to 1.2 were measured with native kernels, and 7 or more
with one kernel of a layer wrong by half."""
_DEADLINE_S = 600.0  # every kernel is compiled, or every native one


def check_answers(device: str) -> Iterator[Finding]:
    """Start an engine for each kind of layer on `device`, cpu or cuda, up to its first tokens.

    A kernel that fails takes a GPU from its process: there, each kind has one of its own.
    """
    kinds = [(kind,) for kind in KINDS] if device == "cuda" else [tuple(KINDS)]
    for each in kinds:
        yield _finding(device, each)


def _finding(device: str, kinds: Sequence[str]) -> Finding:
    named = f"{'; '.join(kinds)}: on {device}"
    without = "--device cpu" if device == "cuda" else "--kernels torch"
    by_hand = f"python -m {PROBE} {device} {' '.join(map(repr, kinds))}"
    try:
        found = run_probe(PROBE, _DEADLINE_S, (device, *kinds))
    except ProbeError as err:
        return Finding(
            "answer", Level.PROBLEM, f"{named}, none: {err}",
            "workers with a model of such layers end at their start, or at their first request",
            f"`{by_hand}` prints the whole error; {without} computes without what failed",
        )  # fmt: skip
    wrong = [f"{kind} ({far:.3g} times)" for kind, far in found.items() if not far <= FARTHEST]
    if not wrong:
        return ok("answer", f"{named}, as torch computes it")
    return Finding(
        "answer", Level.PROBLEM,
        f"on {device}, farther from float32 than bfloat16's rounding: {', '.join(wrong)}",
        "kernels compute wrong numbers here, and answers of such models are wrong",
        f"compare the driver, torch and Triton with constraints.txt; `{by_hand}` measures it "
        f"again; {without} computes without these kernels",
    )  # fmt: skip
