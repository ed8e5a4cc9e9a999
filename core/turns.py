"""The order of requests that wait."""

PASSED_A_STEP = 32
"""Requests that came earlier and that one more step of priority lets a request pass."""

Turn = tuple[int, int]
"""The smaller goes first."""


def turn_of(number: int, priority: int) -> Turn:
    """Return the turn of a request. number: the order of arrival.

    A larger priority goes first, but nobody is passed without end: a request stands where it would
    stand had it come 32 requests earlier for each step of its priority. That order never changes
    while they wait, and equal priorities are served as they came.
    """
    return number - PASSED_A_STEP * priority, number
