"""The wiring of a cluster that is not started."""

from pathlib import Path

from certificates import CLUSTER, authority

from baton.deploy.certs.cluster_credentials import ClusterCredentials
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.router_ports import RouterPorts
from baton.deploy.cluster.wiring import Wiring


def wired(config: ClusterConfig, *ports: RouterPorts) -> Wiring:
    issued = ClusterCredentials(authority(), CLUSTER, Path("certificates"))
    return Wiring(config, ports or (RouterPorts(1, 2, 3),), threads=1, credentials=issued)
