"""The placement policies by name. A module in `router/policies/` is all that a policy needs."""

import importlib
import inspect
import pkgutil

import baton.router.policies as folder
from baton.router.placement.policy import Policy


def _policies() -> dict[str, type[Policy]]:
    """Import every module of the folder and collect the policy classes that it defines."""
    found: dict[str, type[Policy]] = {}
    for info in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
        module = importlib.import_module(info.name)
        for _, each in inspect.getmembers(module, inspect.isclass):
            if issubclass(each, Policy) and each.__module__ == module.__name__:
                if each.name in found:
                    raise ValueError(f"{info.name} and {found[each.name].__module__} both define "
                                     f"the placement policy {each.name!r}; rename one")  # fmt: skip
                found[each.name] = each
    return found


POLICIES = _policies()
"""Concrete `Policy` classes by `name`; each is constructed without arguments."""
