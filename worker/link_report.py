"""The bandwidths of its links that a worker reports."""

from collections.abc import Mapping

from baton.core.links import is_slow

NEWS = 0.2
"""The part by which a measurement must differ from what was said last to be said."""


class LinkReport:
    """The bandwidths that were said last, in bytes a second."""

    def __init__(self, state_bytes: int, token_bytes: int) -> None:
        """state_bytes: of a request's recurrent state. token_bytes: of a token's KV."""
        self._sizes = state_bytes, token_bytes
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
        slow = {p: rate for p, rate in self._said.items() if is_slow(rate, fastest, *self._sizes)}
        return fastest, slow


def _same(said: float, rate: float) -> bool:
    return abs(rate - said) < NEWS * said
