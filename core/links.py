"""The measure of when two links count as equally fast, for workers and routers alike."""

ALIKE = 0.5
"""Links with more than this part of the best bandwidth count as equal to it: what is measured
depends on the sizes of the writes too, and turns among equals are worth more than such a
difference."""
LATE_S = 0.005
"""So do those over which a hand-off takes no more than this longer than over the best link."""
_TOKENS = 512
"""The tokens of that hand-off."""


def is_slow(rate: float, best: float, state_bytes: int, token_bytes: int) -> bool:
    """Return true if a link is not as good as the best one, by their bandwidths in bytes a second.

    state_bytes: of a request's recurrent state. token_bytes: of a token's KV.
    """
    size = state_bytes + _TOKENS * token_bytes
    return rate <= ALIKE * best and size * (1 / rate - 1 / best) > LATE_S
