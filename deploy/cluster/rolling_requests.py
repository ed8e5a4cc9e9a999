"""The requests of `baton restart` and `baton drain`, and their handling where the cluster runs.

This module imports nothing of a cluster, so that the commands start at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from baton.deploy.errors import ControlError

RESTART = "restart"
DRAIN = "drain"
ROLES = ("prefill", "decode", "router")


@dataclass(frozen=True)
class RestartRequest:
    """The roles whose processes are restarted, one after another."""

    roles: tuple[str, ...]
    drain_s: float  # seconds for running requests on each

    @property
    def arguments(self) -> dict[str, Any]:
        return {"roles": list(self.roles), "drain_s": self.drain_s}

    @classmethod
    def parse(cls, arguments: Mapping[str, Any]) -> Self:
        """Parse what `arguments` returned. Raises ControlError for anything else."""
        roles, drain_s = arguments.get("roles"), arguments.get("drain_s")
        if not isinstance(roles, list) or not set(roles) <= set(ROLES) or not _seconds(drain_s):
            raise ControlError(
                f"{RESTART} takes roles, some of {', '.join(ROLES)}, and drain_s, seconds from 0; "
                f"got {dict(arguments)}"
            )
        return cls(tuple(roles), float(arguments["drain_s"]))


@dataclass(frozen=True)
class DrainRequest:
    """A worker that takes no more requests, or takes them again."""

    worker: str
    drain_s: float  # seconds for running requests
    undo: bool

    @property
    def arguments(self) -> dict[str, Any]:
        return {"worker": self.worker, "drain_s": self.drain_s, "undo": self.undo}

    @classmethod
    def parse(cls, arguments: Mapping[str, Any]) -> Self:
        """Parse what `arguments` returned. Raises ControlError for anything else."""
        worker, undo = arguments.get("worker"), arguments.get("undo")
        if not (
            isinstance(worker, str) and type(undo) is bool and _seconds(arguments.get("drain_s"))
        ):
            raise ControlError(
                f"{DRAIN} takes worker, as in decode-0, undo, a boolean, and drain_s, seconds "
                f"from 0; got {dict(arguments)}"
            )
        return cls(worker, float(arguments["drain_s"]), undo)


def _seconds(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and given >= 0
