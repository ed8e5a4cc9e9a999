"""The conventions of a quantised checkpoint, as its configuration states them."""

import re
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property

BLOCK = (128, 128)
"""The rows and columns of a weight that share a scale, where scales go by block."""
_REGULAR = "re:"  # begins an entry that is a regular expression, as compressed-tensors has them
_WILD = frozenset("*?[")


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
        parts = module.split(".")
        ends = range(len(parts) + 1)
        runs = (".".join(parts[first:end]) for end in ends for first in range(end))
        # Looked up, not compared one by one: there may be hundreds of entries for 100,000 modules.
        if not self._names.isdisjoint(runs):
            return True
        return any(pattern.match(module) for pattern in self._patterns)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(entry for entry in self.kept if _pattern(entry) is None)

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        patterns = (_pattern(entry) for entry in self.kept)
        return tuple(re.compile(pattern) for pattern in patterns if pattern is not None)


def _pattern(entry: str) -> str | None:
    """Return the regular expression that an entry stands for; None where it is a plain name."""
    if entry.startswith(_REGULAR):
        return entry.removeprefix(_REGULAR)
    return None if _WILD.isdisjoint(entry) else translate(entry)


UNQUANTISED = Quantisation("no quantisation", kept=("*",))
"""The conventions of a configuration without `quantization_config`: no module is quantised."""
