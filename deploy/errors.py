"""What can go wrong in bringing a cluster up or finding one.

DeployError
├── StartError      a cluster that cannot start; the message says why and what to do
└── NotRunning      no cluster answers where one was looked for
"""


class DeployError(Exception):
    """The root: catch this to catch all of them."""


class StartError(DeployError):
    """A cluster that cannot start."""


class NotRunning(DeployError):
    """No cluster answers where one was looked for."""
