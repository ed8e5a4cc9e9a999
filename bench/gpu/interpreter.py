"""Triton's interpreter without work that it repeats."""

from types import FunctionType
from typing import Any

import triton
import triton.language as tl
from triton.runtime import interpreter


def quicken() -> None:
    """Have the interpreter replace the functions of `triton.language` once a launch.

    It replaces them by its own when a kernel begins and puts them back when that ends. In between,
    each call of a device function replaces them again, which takes a third of a run's time and
    changes nothing. Does nothing where Triton compiles, or has no such function (before 3.7).
    """
    if not triton.knobs.runtime.interpret or not hasattr(interpreter, "_LangPatchScope"):
        return
    replace, replaced = interpreter._patch_lang, set[str]()

    def replace_once(function: FunctionType) -> Any:
        known = function.__globals__.values()
        languages = {each.__name__ for each in (tl, tl.core) if any(each is one for one in known)}
        if replaced and languages <= replaced:
            return interpreter._LangPatchScope()
        scope, begins = replace(function), not replaced
        replaced.update(languages)
        if begins:
            restore = scope.restore

            def end() -> None:
                replaced.clear()
                restore()

            scope.restore = end
        return scope

    interpreter._patch_lang = replace_once
