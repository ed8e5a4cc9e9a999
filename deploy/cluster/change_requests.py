"""The requests of `baton scale`, `restart`, `drain` and `apply` to whoever runs the cluster.

This module imports nothing of a cluster, so that the commands start at once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, TypeGuard

from baton.deploy.errors import ControlError
from baton.deploy.options.setting import Setting, settings_from

SCALE = "scale"
RESTART = "restart"
DRAIN = "drain"
APPLY = "apply"
ROLES = ("prefill", "decode", "router")
_SCALED = ("prefill", "decode")


@dataclass(frozen=True)
class ScaleRequest:
    """The number of workers that there should be of each named role."""

    counts: Mapping[str, int]  # by role
    drain_s: float  # seconds for running requests on a worker that leaves

    @property
    def arguments(self) -> dict[str, object]:
        return {"counts": dict(self.counts), "drain_s": self.drain_s}

    @classmethod
    def parse(cls, arguments: Mapping[str, object]) -> Self:
        """Parse what `arguments` returned. Raises ControlError for anything else."""
        counts, drain_s = arguments.get("counts"), arguments.get("drain_s")
        if (
            not isinstance(counts, dict)
            or not all(role in _SCALED and type(n) is int for role, n in counts.items())
            or not isinstance(drain_s, int | float)
            or drain_s < 0
        ):
            raise ControlError(
                f"{SCALE} takes counts, as in {{'decode': 4}}, and drain_s, seconds from 0; got "
                f"{dict(arguments)}"
            )
        return cls(counts, float(drain_s))


def parse_counts(words: tuple[str, ...]) -> dict[str, int]:
    """Parse words such as `decode=4` into counts by role. Raises ValueError with the reason."""
    counts: dict[str, int] = {}
    for word in words:
        found = re.fullmatch(r"(prefill|decode)=(\d+)", word)
        if found is None:
            raise ValueError(f"{word!r} is not prefill=COUNT or decode=COUNT")
        if found[1] in counts:
            raise ValueError(f"{found[1]} is given twice")
        counts[found[1]] = int(found[2])
    if not counts:
        raise ValueError("name a role and how many of it there should be, as in decode=4")
    return counts


@dataclass(frozen=True)
class RestartRequest:
    """The roles whose processes are restarted, one after another."""

    roles: tuple[str, ...]
    drain_s: float  # seconds for running requests on each

    @property
    def arguments(self) -> dict[str, object]:
        return {"roles": list(self.roles), "drain_s": self.drain_s}

    @classmethod
    def parse(cls, arguments: Mapping[str, object]) -> Self:
        """Parse what `arguments` returned. Raises ControlError for anything else."""
        roles, drain_s = arguments.get("roles"), arguments.get("drain_s")
        if not isinstance(roles, list) or not set(roles) <= set(ROLES) or not _seconds(drain_s):
            raise ControlError(
                f"{RESTART} takes roles, some of {', '.join(ROLES)}, and drain_s, seconds from 0; "
                f"got {dict(arguments)}"
            )
        return cls(tuple(roles), float(drain_s))


@dataclass(frozen=True)
class ApplyRequest:
    """The settings of a file for `baton serve`, which a running cluster is to have."""

    settings: tuple[Setting, ...]
    drain_s: float  # seconds for running requests on each process that is restarted or leaves
    dry_run: bool  # tell what would change, and change nothing

    @property
    def arguments(self) -> dict[str, object]:
        settings = [each.as_json() for each in self.settings]
        return {"settings": settings, "drain_s": self.drain_s, "dry_run": self.dry_run}

    @classmethod
    def parse(cls, arguments: Mapping[str, object]) -> Self:
        """Parse what `arguments` returned. Raises ControlError for anything else."""
        dry_run, drain_s = arguments.get("dry_run"), arguments.get("drain_s")
        if type(dry_run) is not bool or not _seconds(drain_s):
            raise ControlError(
                f"{APPLY} takes settings, drain_s, seconds from 0, and dry_run, a boolean; got "
                f"{dict(arguments)}"
            )
        return cls(settings_from(arguments.get("settings")), float(drain_s), dry_run)


@dataclass(frozen=True)
class OptionChange:
    """One option whose value in a file is another than that of the running cluster."""

    before: Setting
    after: Setting
    restarts: tuple[str, ...] = ()  # the roles that must be restarted; none: it is done at once
    new_start: bool = False  # only a new start of the cluster can change it

    def as_json(self) -> dict[str, object]:
        return {
            "before": self.before.as_json(),
            "after": self.after.as_json(),
            "restarts": list(self.restarts),
            "new_start": self.new_start,
        }


def changes_in(answer: Mapping[str, object]) -> tuple[OptionChange, ...]:
    """Parse an answer to an `ApplyRequest`. Raises ControlError for another form."""
    try:
        return tuple(
            OptionChange(
                settings_from([each["before"]])[0],
                settings_from([each["after"]])[0],
                tuple(map(str, each["restarts"])),
                bool(each["new_start"]),
            )
            for each in answer["changes"]  # type: ignore[attr-defined]
        )
    except (KeyError, TypeError) as err:
        raise ControlError(f"expected changes of options; got {dict(answer)}") from err


@dataclass(frozen=True)
class DrainRequest:
    """A worker that takes no more requests, or takes them again."""

    worker: str
    drain_s: float  # seconds for running requests
    undo: bool

    @property
    def arguments(self) -> dict[str, object]:
        return {"worker": self.worker, "drain_s": self.drain_s, "undo": self.undo}

    @classmethod
    def parse(cls, arguments: Mapping[str, object]) -> Self:
        """Parse what `arguments` returned. Raises ControlError for anything else."""
        worker, undo = arguments.get("worker"), arguments.get("undo")
        drain_s = arguments.get("drain_s")
        if not isinstance(worker, str) or type(undo) is not bool or not _seconds(drain_s):
            raise ControlError(
                f"{DRAIN} takes worker, as in decode-0, undo, a boolean, and drain_s, seconds "
                f"from 0; got {dict(arguments)}"
            )
        return cls(worker, float(drain_s), undo)


def names_in(answer: Mapping[str, object]) -> dict[str, list[str]]:
    """Return the names that an answer has under each key. Raises ControlError for another form."""
    found = {key: list(map(str, names)) for key, names in answer.items() if isinstance(names, list)}
    if found.keys() != answer.keys():
        raise ControlError(f"expected lists of names in the cluster's answer; got {dict(answer)}")
    return found


def _seconds(given: object) -> TypeGuard[float]:
    return isinstance(given, int | float) and not isinstance(given, bool) and given >= 0
