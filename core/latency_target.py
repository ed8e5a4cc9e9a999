"""The target of the time between two tokens, which router and engine keep."""

from dataclasses import dataclass

from baton.core.options import Group, Number, option


# fmt: off
@dataclass(frozen=True, kw_only=True)
class LatencyTarget:
    """The option of the time between tokens that prompts may cause."""

    # Seconds of a step that writes answers and computes a prompt; None: any.
    itl_target_s: float | None = option(
        None, Group.MEMORY,
        "Most milliseconds between two tokens of an answer while its decode worker computes a "
        "prompt: it takes as large a part of the prompt at a time as that allows, and none while "
        "it writes answers if even the least would take longer. When left out, see "
        "--prefill-beside-decode.",
        Number(0, above=True), names=("--itl-target-ms",), factor=1e-3)
# fmt: on
