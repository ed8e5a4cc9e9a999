"""The choices of which state moves between workers besides that of hand-offs. Its import needs
neither torch nor gRPC.
"""

from enum import StrEnum


class StateReturn(StrEnum):
    """The time at which a prefill worker fetches the state that a conversation's last turn left on
    a rank."""

    OFF = "off"
    AUTO = "auto"  # when the next turn comes, where fetching is sooner than computing
    DEMAND = "demand"  # it fetches it when the next turn comes
    EAGER = "eager"  # when the last turn ends, and on demand elsewhere


class SendSnapshots(StrEnum):
    """The choice of a prompt's snapshots that follow its state to the rank's prefix cache."""

    OFF = "off"
    LAST = "last"  # the one at the prompt's last grid depth
