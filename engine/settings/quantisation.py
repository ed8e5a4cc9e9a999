"""The conventions of a quantised checkpoint, as its configuration states them."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

BLOCK = (128, 128)
"""The rows and columns of a weight that share a scale, where scales go by block."""
_REGULAR = "re:"  # begins an entry that is a regular expression, as compressed-tensors has them


@dataclass(frozen=True)
class Quantisation:
    """The conventions of a checkpoint. Set by `models.quantised`.

    The headers of the weight files say which modules are quantised. `kept` only cross-checks them.
    """

    name: str  # as messages call it: "fp8", "modelopt FP8"
    block: tuple[int, int] = BLOCK
    kept: tuple[str, ...] = ()  # modules that are listed as not converted

    def keeps(self, module: str) -> bool:
        """Return true if the configuration lists `module` as not converted.

        Quantisers match differently, so every way counts: a whole name, a run of its parts between
        dots, a pattern of a shell, and a regular expression at its beginning.
        """
        return any(_matches(entry, module) for entry in self.kept)


def _matches(entry: str, module: str) -> bool:
    if entry.startswith(_REGULAR):
        return re.match(entry.removeprefix(_REGULAR), module) is not None
    return f".{entry}." in f".{module}." or fnmatchcase(module, entry)


UNQUANTISED = Quantisation("no quantisation", kept=("*",))
"""The conventions of a configuration without `quantization_config`: no module is quantised."""
