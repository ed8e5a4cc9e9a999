"""The wiring of a cluster that is not started."""

from pathlib import Path

from certificates import CLUSTER, authority

from baton.deploy.certs.cluster_credentials import ClusterCredentials
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.wiring import Wiring


def wired(config: ClusterConfig, http_port: int = 1, grpc_port: int = 2) -> Wiring:
    issued = ClusterCredentials(authority(), CLUSTER, Path("certificates"))
    return Wiring(config, http_port, grpc_port, internal_port=3, threads=1, credentials=issued)
