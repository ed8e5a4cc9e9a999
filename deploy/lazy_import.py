"""Functions whose modules take seconds to import, such as those that need torch or Ray.

A command checks its options first, so that a wrong one is refused at once.
"""

import importlib


def import_and_call(at: str, *args: object) -> None:
    """Import a function, named as "module:function", and call it."""
    module, _, name = at.partition(":")
    vars(importlib.import_module(module))[name](*args)
