"""The settings of the servers for the own clients of a worker without Ray."""

from dataclasses import dataclass

from baton.api.server.server_options import ClientServerConfig


@dataclass(frozen=True)
class StandaloneConfig(ClientServerConfig):
    """The settings for a worker's own clients, set from the command line."""

    drain_s: float = 0.0  # seconds for running requests at the stop
