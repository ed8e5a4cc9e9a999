"""Errors of starting or finding a cluster; `core/errors.py` has the tree."""

from baton.core.error_codes import ErrorCode
from baton.core.errors import BatonError


class DeployError(BatonError):
    """The base of this room's errors. The command line prints the message and exits."""


class StartError(DeployError):
    """A cluster that cannot start; the message says why and what to do."""


class EngineLostError(DeployError):
    """A worker whose engine has stopped: it can only be started again."""

    code = ErrorCode.UNAVAILABLE


class RayLostError(DeployError):
    """Ray has ended under a running cluster: nothing starts its workers again."""

    code = ErrorCode.UNAVAILABLE


class ScaleError(DeployError):
    """A cluster that cannot grow or shrink as was asked; it keeps serving as it was."""

    code = ErrorCode.INVALID_REQUEST


class ControlError(DeployError):
    """A request that the cluster does not have, or whose arguments are wrong."""

    code = ErrorCode.INVALID_REQUEST


class NotRunning(DeployError):
    """A cluster or router that was looked for and does not answer."""

    code = ErrorCode.UNAVAILABLE


class RouterRefused(NotRunning):
    """A router that answers with an error."""

    def __init__(self, message: str, http_status: int = 0, reason: str = "") -> None:
        """reason: what the router says."""
        super().__init__(message)
        self.http_status = http_status
        self.reason = reason


class ProbeError(DeployError):
    """A probe of `baton doctor` that raised, ended or did not answer; the message says which."""
