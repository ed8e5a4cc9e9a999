"""The bandwidths of its links that a worker reports."""

from collections.abc import Mapping

from baton.core.links import ALIKE

NEWS = 0.2
"""The part by which a measurement must differ from what was said last to be said."""


class LinkReport:
    """The bandwidths that were said last, in bytes a second."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def update(self, measured: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        """Return the bandwidth of the fastest link, 0 where none is known, and those of the slow
        ones by the peer's worker id.

        measured: by worker id. Links that are not in it are forgotten.
        """
        said = self._said
        self._said = {
            peer: said[peer] if peer in said and _same(said[peer], rate) else float(f"{rate:.2g}")
            for peer, rate in measured.items()
        }
        fastest = max(self._said.values(), default=0.0)
        return fastest, {peer: rate for peer, rate in self._said.items() if rate <= ALIKE * fastest}


def _same(said: float, rate: float) -> bool:
    return abs(rate - said) < NEWS * said
