"""What can go wrong in bringing a cluster up or finding one.

DeployError
├── StartError      a cluster that cannot start; the message says why and what to do
├── ScaleError      a cluster that cannot grow or shrink as was asked; it serves on as it was
└── NotRunning      no cluster answers where one was looked for
"""


class DeployError(Exception):
    """The root: catch this to catch all of them."""


class StartError(DeployError):
    """A cluster that cannot start."""


class ScaleError(DeployError):
    """A cluster that cannot grow or shrink as was asked."""


class NotRunning(DeployError):
    """No cluster answers where one was looked for."""
