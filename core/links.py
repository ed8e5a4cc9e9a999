"""The measure of when two links count as equally fast, for workers and routers alike."""

ALIKE = 0.5
"""Links with more than this part of the best bandwidth count as equal to it: what is measured
depends on the sizes of the writes too, and turns among equals are worth more than such a
difference."""
