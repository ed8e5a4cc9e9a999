"""The bound of the work on one schema, which may come from an attacker."""

MAX_STEPS = 20_000
"""Comparisons of schemas and patterns, names that are copied: about 20 ms."""


class Effort:
    """The steps that are left for what is not linear in the size of a schema."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def take(self, steps: int) -> bool:
        """Return False if so many steps are too many; then a keyword is left out instead."""
        self._left -= steps
        return self._left >= 0
