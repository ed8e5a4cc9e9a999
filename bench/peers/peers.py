"""Other engines on the same model, measured in the same run."""

from collections.abc import Callable

from baton.bench.contract import Peer, summarise
from baton.bench.peers.llama_cpp_peer import LlamaCppPeer, PeerError
from baton.bench.peers.transformers_peer import TransformersPeer

Runnable = TransformersPeer | LlamaCppPeer


class Peers:
    """The peers by name; in place of one that is left out, the reason."""

    def __init__(self, peers: dict[str, Runnable | Peer]) -> None:
        self._peers = peers
        self._rounds: dict[str, list[dict[str, float]]] = {name: [] for name in peers}

    def measure(self, measured: Callable[[Runnable], dict[str, float]]) -> None:
        """Measure one round of each peer. A peer that stops is left out from then on."""
        for name, peer in self._peers.items():
            if isinstance(peer, Runnable):
                try:
                    self._rounds[name].append(measured(peer))
                except PeerError as error:
                    _close(peer)
                    self._peers[name] = {"skipped": str(error)}

    def close(self) -> dict[str, Peer]:
        """End the peers and return each one's results, or the reason why it was left out."""
        found: dict[str, Peer] = {}
        for name, peer in self._peers.items():
            if isinstance(peer, Runnable):
                _close(peer)
                found[name] = summarise(self._rounds[name])
            else:
                found[name] = peer
        return found


def _close(peer: Runnable) -> None:
    if isinstance(peer, LlamaCppPeer):
        peer.close()
