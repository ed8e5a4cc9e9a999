"""Random inputs whose experts rounding does not choose: two runs of ours can be compared on them.

Two runs that add up in another order are as good as each other; where experts are nearly tied, each
may take another one, and nothing that follows need be alike (see `Choices`).
"""

from collections.abc import Callable
from typing import TypeVar

from oracle.exact import Choices

T = TypeVar("T")

MOST_DRAWS = 5
"""Some prompts in a hundred have a token whose experts are nearly tied: so many in a row mean that
the inputs are not random, or that a router no longer tells its experts apart."""


def decided(run: Callable[[], T]) -> T:
    """Return the result of `run`, the first time that it meets no nearly tied experts. `run` draws
    its inputs afresh each time, and uses torch's kernels, whose choices can be seen. The results
    that are passed over are printed and counted."""
    for number in range(1, MOST_DRAWS + 1):
        with Choices() as choices:
            made = run()
        if not choices.nearly_tied():
            return made
        print(f"passed over: in draw {number}, experts are nearly tied")
    raise AssertionError(f"experts are nearly tied in each of {MOST_DRAWS} draws")
