"""The metrics of hand-offs, and of the bytes that move between workers."""

from collections.abc import Mapping

from baton.core.role import Role
from baton.transfer.handoff import ALLOWED, HandoffState
from baton.transfer.memory.segments import Kind
from baton.worker.metric_factory import MetricFactory

_SIDES = ("outgoing", "incoming")


class TransferMetrics:
    """Hand-offs by state, and bytes by kind.

    Both ends of a hand-off count it, under different names, so that no sum counts it twice: it is
    `outgoing` on its prefill worker and `incoming` on its decode worker.
    """

    def __init__(self, make: MetricFactory, role: Role) -> None:
        self._labels = make.labels
        states = {
            side: make.gauge(f"{side}_handoffs", f"Hand-offs {way} in each state.", "state")
            for side, way in zip(_SIDES, ("from here", "to here"), strict=True)
        }
        moves = {
            side: make.counter(
                f"{side}_handoff_transitions",
                f"Transitions of hand-offs {way} between states.",
                "from",
                "to",
            )
            for side, way in zip(_SIDES, ("from here", "to here"), strict=True)
        }
        side = "outgoing" if role is Role.PREFILL else "incoming"
        # Every series, exported at 0: a rate needs the value before the first event. They are kept,
        # because finding one by its labels takes longer than counting.
        self._states = {
            state: states[side].labels(**self._labels, state=state.value) for state in ALLOWED
        }
        self._moves = {
            (source, to): moves[side].labels(
                **self._labels, **{"from": source.value, "to": to.value}
            )
            for source, allowed in ALLOWED.items()
            for to in allowed
        }
        sent = make.counter("sent_bytes", "Bytes of KV and state sent to other workers.", "kind")
        received = make.counter(
            "received_bytes", "Bytes of KV and state received from other workers.", "kind"
        )
        self._sent, self._received = (
            {kind: counter.labels(**self._labels, kind=kind.name.lower()) for kind in Kind}
            for counter in (sent, received)
        )
        self._incoming = side == "incoming"
        self._writing = make.histogram(
            "handoff_writing",
            "On the rank, from a hand-off's first segment to its last verified byte.",
        )
        self._links = make.gauge(
            "link_bandwidth_bytes",
            "Bytes a second that reach a rank while hand-offs to it write, of the last minute.",
            "peer",
        )

    def count_sent(self, kind: Kind, nbytes: int) -> None:
        self._sent[kind].inc(nbytes)

    def count_received(self, kind: Kind, nbytes: int) -> None:
        self._received[kind].inc(nbytes)

    def count_move(self, source: HandoffState, to: HandoffState) -> None:
        self._moves[source, to].inc()

    def observe_writing(self, seconds: float) -> None:
        """Record how long the bytes of a complete hand-off took. Only its rank does."""
        if self._incoming:
            self._writing.observe(seconds)

    def set_links(self, measured: Mapping[str, float]) -> None:
        """Export the bandwidth to each peer, in bytes a second, and no others."""
        self._links.clear()
        for peer, rate in measured.items():
            self._links.labels(**self._labels, peer=peer).set(rate)

    def set_handoffs(self, state: HandoffState, count: int) -> None:
        self._states[state].set(count)
