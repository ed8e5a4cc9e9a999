"""Functions whose modules take seconds to import, such as those that need torch or Ray.

A command checks its options first, so that a wrong one is refused at once.
"""

import importlib
from typing import Any


def import_and_call(at: str, *args: Any, **kwargs: Any) -> Any:
    """Import a function, named as "module:function", and call it."""
    module, _, name = at.partition(":")
    return vars(importlib.import_module(module))[name](*args, **kwargs)
